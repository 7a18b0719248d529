"""Histograms with classic buckets, with bounds that one chooses, and native ones, whose bounds grow exponentially."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Final

SCHEMA: Final = 3
"""Prometheus's name for the growth of native buckets: 2 ** SCHEMA of them double the bound."""

PER_DOUBLING: Final = 2**SCHEMA


class Histogram:
    """Number of values in each bucket, and their sum.

    A fine histogram counts in cells that end at the bounds of its own buckets and at those of native buckets, so that
    it gives both exactly.
    """

    __slots__ = ("_cells", "_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float], cells: Sequence[float] = ()) -> None:
        """Creates an empty histogram.

        Args:
            bounds: the buckets' inclusive upper bounds, in ascending order. The last bucket is unbounded.
            cells: the bounds of the cells, from `fine_cells`. Without them, the buckets are the cells.
        """
        self.bounds = bounds
        self._cells = cells or bounds
        self._counts = [0] * (len(self._cells) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._cells, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        """The number of values in each bucket."""
        ends = _ends(tuple(self.bounds), tuple(self._cells))
        return [sum(self._counts[start:end]) for start, end in zip((0, *ends), (*ends, None), strict=True)]

    def native(self) -> dict[int, int] | None:
        """Returns the number of values in each native bucket that has some, by its index; None without fine cells.

        Values beyond the cells count in the bucket of the nearest cell.
        """
        if self._cells is self.bounds:
            return None
        counts: Counter[int] = Counter()
        for end, count in zip((*self._cells, self._cells[-1]), self._counts, strict=True):
            if count:
                counts[native_index(end)] += count
        return counts

    @property
    def cells(self) -> Sequence[int]:
        """The number of values in each cell."""
        return self._counts

    def add_cells(self, counts: Sequence[int], sum_: float) -> None:
        """Adds the values of a histogram with the same cells.

        Raises:
            ValueError: the number of cells differs.
        """
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self.sum += sum_

    def copy(self) -> Histogram:
        other = Histogram(self.bounds, self._cells)
        other._counts, other.sum = self._counts.copy(), self.sum
        return other


@cache
def _ends(bounds: tuple[float, ...], cells: tuple[float, ...]) -> tuple[int, ...]:
    """Returns the index after each bucket's last cell."""
    return tuple(cells.index(bound) + 1 for bound in bounds)


def native_index(value: float) -> int:
    """Returns the index of the native bucket that holds a positive value. It ends at 2 ** (index / PER_DOUBLING)."""
    return math.ceil(math.log2(value) * PER_DOUBLING - 1e-9)  # the rounding of a bound must not move it


def fine_cells(bounds: Sequence[float]) -> tuple[float, ...]:
    """Returns the bounds of cells for these buckets and native ones, from half the first bound to twice the last."""
    first, last = native_index(bounds[0]) - PER_DOUBLING, native_index(bounds[-1]) + PER_DOUBLING
    return tuple(sorted({*bounds, *(2 ** (index / PER_DOUBLING) for index in range(first, last + 1))}))
