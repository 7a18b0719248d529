"""The highest rate that holds a latency target, and how sure that is: what is found out of runs, as pure functions.

That 99 % of the requests are answered in time is the same as that at most 1 % are not: later than the target, or not at
all. This share of bad requests is what a run measures. What counts for a rate is the median of its runs, so that one
bad moment of a machine with other work does not decide. The share rises with the rate, so the medians are fitted by the
rising curve next to them (isotonic regression), and the rate looked for is where this curve crosses 1 %. Its interval
goes from the last rate that holds to the first that does not, of the same calculation on runs drawn again (a bootstrap
of runs, and in them of whole seconds, because the requests of a second wait in one queue and are not independent). So
it is never narrower than what was tried.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

SHARE: Final = 0.01
DRAWS: Final = 1000
MOST_RUNS: Final = 24
FLOOR: Final = 0.1  # requests a second: where even these fail, no lower rate is tried


@dataclass(frozen=True)
class Run:
    """What became of the requests of one rate, by the second that they were due in."""

    rate: float
    asked: tuple[int, ...]
    bad: tuple[int, ...]

    @property
    def share(self) -> float:
        return sum(self.bad) / max(1, sum(self.asked))


@dataclass(frozen=True)
class Estimate:
    """Requests a second, with a 95 % interval. `open` where no rate failed, so that it may be any higher one."""

    rate: float
    low: float
    high: float
    open: bool


Curve: TypeAlias = list[tuple[float, float]]  # rates, ascending, and the share of bad requests at each


def fit(runs: Sequence[Run]) -> Curve:
    """The rising curve that is nearest to the medians of the runs of each rate, weighed by their requests."""
    blocks: list[tuple[float, int, list[float]]] = []  # share, requests, rates
    for rate in sorted({run.rate for run in runs}):
        same = [run for run in runs if run.rate == rate]
        share, asked, rates = statistics.median(run.share for run in same), sum(sum(run.asked) for run in same), [rate]
        while blocks and blocks[-1][0] >= share:  # it would fall: pool them
            before, weight, more = blocks.pop()
            share = (before * weight + share * asked) / max(1, weight + asked)
            asked, rates = weight + asked, more + rates
        blocks.append((share, asked, rates))
    return [(rate, share) for share, _, rates in blocks for rate in rates]


def crossing(curve: Curve) -> float:
    """Where the curve crosses the share: 0 where it is above it from the start, the highest rate where it never is."""
    below = (0.0, SHARE)  # nothing was measured there, so nothing is claimed between it and the lowest rate
    for rate, share in curve:
        if share > SHARE:
            return below[0] + (rate - below[0]) * (SHARE - below[1]) / (share - below[1])
        below = (rate, share)
    return below[0]


def bracket(curve: Curve) -> tuple[float | None, float | None]:
    """The highest rate that holds, and the lowest that does not; None where there is none."""
    below = max((rate for rate, share in curve if share <= SHARE), default=None)
    return below, min((rate for rate, share in curve if share > SHARE), default=None)


def estimate(runs: Sequence[Run], draws: int = DRAWS, seed: int = 1) -> Estimate:
    """The rate looked for, with its interval."""
    curve, pick = fit(runs), random.Random(seed)
    by_rate = [[run for run in runs if run.rate == rate] for rate, _ in curve]
    drawn = [
        bracket(fit([_again(run, pick) for same in by_rate for run in pick.choices(same, k=len(same))]))
        for _ in range(draws)
    ]
    lows = sorted(below or 0.0 for below, _ in drawn)
    highs = sorted(above or curve[-1][0] for _, above in drawn)
    low, high = lows[int(0.025 * draws)], highs[math.ceil(0.975 * draws) - 1]
    rate = crossing(curve)
    return Estimate(rate, min(low, rate), max(high, rate), bracket(curve)[1] is None)


def _again(run: Run, pick: random.Random) -> Run:
    seconds = pick.choices(range(len(run.asked)), k=len(run.asked))
    return Run(run.rate, tuple(run.asked[n] for n in seconds), tuple(run.bad[n] for n in seconds))


def next_rate(
    runs: Sequence[Run], start: float, resolution: float, repeats: int, most: float = math.inf
) -> float | None:
    """Which rate to try now; None where enough is known.

    Doubles or halves until the crossing lies between two rates, bisects until these are near each other (their
    quotient at most `resolution`), and repeats them; if a repetition changes what the curve says, goes on from there.
    """
    if not runs:
        return start
    if len(runs) >= MOST_RUNS:
        return None
    curve = fit(runs)
    below, above = bracket(curve)
    if above is None:
        return min(2 * curve[-1][0], most) if curve[-1][0] < most else None
    if below is None:
        return above / 2 if above / 2 >= FLOOR else None
    if above / below > resolution:
        return math.sqrt(above * below)
    return next((rate for rate in (below, above) if sum(run.rate == rate for run in runs) < repeats), None)


def judge(found: Estimate, wanted: float | None) -> tuple[bool, str]:
    """Whether a rate that is wanted is held, and a word for it. Only what was shown counts."""
    if wanted is None:
        return found.rate > 0, "holds" if found.rate > 0 else "does not hold at any rate tried"
    if found.low >= wanted:
        return True, "holds"
    return False, "does not hold" if found.high < wanted and not found.open else "is not shown to hold"
