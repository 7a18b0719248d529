"""Histograms."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from swiftlet_serve.telemetry.percentile import ROUNDING


class Histogram:
    """Number of values in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the buckets' inclusive upper bounds, in ascending order. The last bucket is unbounded."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float:
        """Returns the upper bound of the bucket with the nearest-rank percentile; NaN without values.

        `share` is in (0, 1].
        """
        rank, seen = share * self.count, 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            seen += count
            if seen and seen >= rank - ROUNDING:
                return bound
        return math.nan

    def add_counts(self, counts: Sequence[int], sum_: float) -> None:
        """Adds the values of a histogram with the same buckets.

        Raises:
            ValueError: the number of buckets differs.
        """
        self.counts = [own + more for own, more in zip(self.counts, counts, strict=True)]
        self.sum += sum_

    def copy(self) -> Histogram:
        copy = Histogram(self.bounds)
        copy.counts, copy.sum = self.counts.copy(), self.sum
        return copy
