"""Histograms."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


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
