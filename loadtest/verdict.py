"""Finds the highest rate that holds a latency target, with a confidence interval, in pure functions of load runs.

The 99th percentile is within the target exactly if at most 1 % of the requests are bad: failed, or later than the
target. A run measures this share. For each rate the median of its runs counts, so that one disturbance of the machine
does not decide. The share rises with the rate, so isotonic regression fits a rising curve to the medians. The highest
rate is where the curve crosses 1 %.

The interval is a bootstrap: the calculation is repeated on runs drawn with replacement, and within them on whole
seconds, because the requests of one second share a queue and are not independent. It reaches from the highest rate that
holds to the lowest that does not. It is never narrower than the distance between two tried rates.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from swiftlet_serve.telemetry.percentile import percentile

MAX_BAD_SHARE: Final = 0.01
BOOTSTRAP_DRAWS: Final = 1000
CONFIDENCE: Final = 0.95
MAX_RUNS: Final = 24
MIN_RATE: Final = 0.1  # requests per second; a search tries no lower rate


@dataclass(frozen=True)
class Run:
    """The requests of one rate, and the bad ones among them, by the second when they were due."""

    rate: float
    requests: tuple[int, ...]
    bad: tuple[int, ...]

    @property
    def bad_share(self) -> float:
        return sum(self.bad) / max(1, sum(self.requests))


@dataclass(frozen=True)
class Estimate:
    """The highest rate that holds, in requests per second, with its 95 % interval."""

    rate: float
    low: float
    high: float
    unbounded: bool  # no tried rate failed, so the true rate may be higher


Curve: TypeAlias = list[tuple[float, float]]  # rates in rising order, each with its share of bad requests


def fit(runs: Sequence[Run]) -> Curve:
    """Returns the rising curve nearest to the median of each rate's runs, weighted by their requests."""
    blocks: list[tuple[float, int, list[float]]] = []  # share, requests, rates
    for rate in sorted({run.rate for run in runs}):
        same = [run for run in runs if run.rate == rate]
        share, requests = statistics.median(run.bad_share for run in same), sum(sum(run.requests) for run in same)
        rates = [rate]
        while blocks and blocks[-1][0] >= share:  # the curve would fall: pool both blocks
            previous_share, weight, previous_rates = blocks.pop()
            share = (previous_share * weight + share * requests) / max(1, weight + requests)
            requests, rates = weight + requests, previous_rates + rates
        blocks.append((share, requests, rates))
    return [(rate, share) for share, _, rates in blocks for rate in rates]


def crossing(curve: Curve) -> float:
    """Returns the rate where the curve crosses the maximum share.

    The result is 0 if the whole curve is above it, and the highest rate if the whole curve is below it.
    """
    below = (0.0, MAX_BAD_SHARE)  # rates under the lowest one were not measured, so none of them is claimed to hold
    for rate, share in curve:
        if share > MAX_BAD_SHARE:
            return below[0] + (rate - below[0]) * (MAX_BAD_SHARE - below[1]) / (share - below[1])
        below = (rate, share)
    return below[0]


def bracket(curve: Curve) -> tuple[float | None, float | None]:
    """Returns the highest rate that holds and the lowest that does not; None for a missing one."""
    below = max((rate for rate, share in curve if share <= MAX_BAD_SHARE), default=None)
    return below, min((rate for rate, share in curve if share > MAX_BAD_SHARE), default=None)


def estimate(runs: Sequence[Run], draws: int = BOOTSTRAP_DRAWS, seed: int = 1) -> Estimate:
    """Estimates the highest rate that holds, with its interval."""
    curve, draw = fit(runs), random.Random(seed)
    by_rate = [[run for run in runs if run.rate == rate] for rate, _ in curve]
    brackets = [
        bracket(fit([_resampled(run, draw) for same in by_rate for run in draw.choices(same, k=len(same))]))
        for _ in range(draws)
    ]
    tail = (1 - CONFIDENCE) / 2
    low = percentile((below or 0.0 for below, _ in brackets), tail)
    high = percentile((above or curve[-1][0] for _, above in brackets), 1 - tail)
    rate = crossing(curve)
    return Estimate(rate, min(low, rate), max(high, rate), bracket(curve)[1] is None)


def _resampled(run: Run, draw: random.Random) -> Run:
    seconds = draw.choices(range(len(run.requests)), k=len(run.requests))
    return Run(run.rate, tuple(run.requests[n] for n in seconds), tuple(run.bad[n] for n in seconds))


def next_rate(
    runs: Sequence[Run], first: float, resolution: float, repeats: int, max_rate: float = math.inf
) -> float | None:
    """Returns the rate to try next, or None if the runs suffice.

    Doubles or halves until the crossing lies between two rates. Bisects until their quotient is at most `resolution`,
    and then repeats both. If a repetition changes the curve, the search continues from there.
    """
    if not runs:
        return first
    if len(runs) >= MAX_RUNS:
        return None
    curve = fit(runs)
    below, above = bracket(curve)
    if above is None:
        return min(2 * curve[-1][0], max_rate) if curve[-1][0] < max_rate else None
    if below is None:
        return above / 2 if above / 2 >= MIN_RATE else None
    if above / below > resolution:
        return math.sqrt(above * below)
    return next((rate for rate in (below, above) if sum(run.rate == rate for run in runs) < repeats), None)


def verdict(estimated: Estimate, required: float | None) -> tuple[bool, str]:
    """Returns whether a required rate is shown to hold, and the verdict in words."""
    if required is None:
        return estimated.rate > 0, "holds" if estimated.rate > 0 else "does not hold at any rate tried"
    if estimated.low >= required:
        return True, "holds"
    return False, "does not hold" if estimated.high < required and not estimated.unbounded else "is not shown to hold"
