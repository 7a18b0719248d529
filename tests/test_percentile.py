"""The percentile that the server, the load tests and the benchmarks report."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.telemetry.percentile import percentile


@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0.01, 1))
def test_percentile_is_the_smallest_value_that_a_share_does_not_exceed(values, share):
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) * (1 - 1e-9)
    assert sum(value < found for value in values) < share * len(values)


def test_percentile_of_whole_ranks_is_exact():
    """Of n values the k-th is the percentile of the share k / n, whatever the rounding of that quotient."""
    for n in range(1, 200):
        assert [percentile(range(1, n + 1), k / n) for k in range(1, n + 1)] == list(range(1, n + 1))


def test_percentile_of_no_values_is_nan():
    assert math.isnan(percentile([], 0.99))
