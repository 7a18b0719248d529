"""When requests are due, in seconds from the start: of an even chance, of a chance with a shape, or of a trace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

STAIRS: Final = 4
BURST: Final = 3.0

# The rate at a moment, as a multiple of the one asked for, by the share of the time that is over.
SHAPES: Final[dict[str, Callable[[float], float]]] = {
    "steady": lambda _: 1.0,
    "step": lambda share: (1 + int(share * STAIRS)) / STAIRS,
    "burst": lambda share: BURST if 0.4 <= share < 0.6 else 1.0,
    "soak": lambda _: 1.0,  # steady, for so long that what leaks or drifts is seen
}


def poisson(rate: float, seconds: float, pick: random.Random) -> list[float]:
    """Arrivals that know nothing of each other, as those of many clients do."""
    times, now = [], pick.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += pick.expovariate(rate)
    return times


def shaped(shape: str, rate: float, seconds: float, pick: random.Random) -> list[float]:
    """The same with a rate that changes: arrivals of the highest rate, thinned."""
    multiple = SHAPES[shape]
    most = BURST if shape == "burst" else 1.0
    return [time for time in poisson(most * rate, seconds, pick) if pick.random() * most < multiple(time / seconds)]


def replayed(trace: Sequence[float], rate: float, seconds: float) -> list[float]:
    """A trace, stretched or squeezed to a mean rate, and again from its start until the time is up.

    Raises:
        ValueError: the trace has fewer than two moments, or all are the same.
    """
    ordered = sorted(trace)
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        raise ValueError("a trace needs two different moments at least")
    count = len(ordered)
    pace = (count - 1) / (ordered[-1] - ordered[0]) / rate
    times = ((time - ordered[0]) * pace + round_ * count / rate for round_ in itertools.count() for time in ordered)
    return list(itertools.takewhile(lambda time: time < seconds, times))


def read_trace(path: Path) -> list[float]:
    """One moment a line, in seconds since whenever.

    Raises:
        ValueError: a line is no number.
    """
    return [float(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
