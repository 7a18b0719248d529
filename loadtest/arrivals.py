"""Arrival times of an open loop, in seconds from its start: Poisson, with a changing rate, or from a trace."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

STEPS: Final = 4
BURST: Final = 3.0

# The rate as a multiple of the requested one, by the elapsed share of the time.
SHAPES: Final[dict[str, Callable[[float], float]]] = {
    "steady": lambda _: 1.0,
    "step": lambda share: (1 + int(share * STEPS)) / STEPS,
    "burst": lambda share: BURST if 0.4 <= share < 0.6 else 1.0,
    "soak": lambda _: 1.0,  # steady, and long enough to show leaks and drift
}


def poisson(rate: float, seconds: float, draw: random.Random) -> list[float]:
    """Returns independent arrivals, as many clients cause them."""
    times, now = [], draw.expovariate(rate)
    while now < seconds:
        times.append(now)
        now += draw.expovariate(rate)
    return times


def shaped(shape: str, rate: float, seconds: float, draw: random.Random) -> list[float]:
    """Returns Poisson arrivals whose rate follows a shape: arrivals of the highest rate, thinned."""
    multiple = SHAPES[shape]
    highest = BURST if shape == "burst" else 1.0
    return [
        time for time in poisson(highest * rate, seconds, draw) if draw.random() * highest < multiple(time / seconds)
    ]


def replayed(trace: Sequence[float], rate: float, seconds: float) -> list[float]:
    """Returns the arrivals of a trace, scaled to a mean rate and repeated until the time is over.

    Raises:
        ValueError: the trace has no two different times.
    """
    ordered = sorted(trace)
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        raise ValueError("A trace needs at least two different times.")
    count = len(ordered)
    scale = (count - 1) / (ordered[-1] - ordered[0]) / rate
    times = ((time - ordered[0]) * scale + repeat * count / rate for repeat in itertools.count() for time in ordered)
    return list(itertools.takewhile(lambda time: time < seconds, times))


def read_trace(path: Path) -> list[float]:
    """Reads a trace: one time on each line, in seconds from any origin.

    Raises:
        ValueError: a line is not a number.
    """
    return [float(line) for line in path.read_text("utf-8").split("\n") if line.strip()]
