"""The percentile that the server, the load tests and the benchmarks report."""

from __future__ import annotations

import math
from collections.abc import Iterable

ROUNDING = 1e-9  # 0.07 * 100 is a little more than 7


def percentile(values: Iterable[float], share: float) -> float:
    """Returns the nearest-rank percentile: the smallest value that at least `share` of the values do not exceed.

    `share` is in (0, 1]. The result is NaN if there are no values.
    """
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered) - ROUNDING) - 1] if ordered else math.nan
