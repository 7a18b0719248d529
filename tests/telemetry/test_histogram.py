"""Histograms count exactly, in classic and in native buckets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.service.telemetry.histogram import PER_DOUBLING, Histogram, fine_cells, native_index
from swiftlet_serve.service.telemetry.request_stats import REQUEST_BUCKETS_S, REQUEST_CELLS_S

VALUES = st.lists(st.one_of(st.sampled_from(REQUEST_CELLS_S), st.floats(1e-9, 100)))


@given(VALUES)
def test_fine_histogram_has_the_counts_of_its_own_buckets(values):
    fine, plain = Histogram(REQUEST_BUCKETS_S, REQUEST_CELLS_S), Histogram(REQUEST_BUCKETS_S)
    for value in values:
        fine.add(value)
        plain.add(value)

    assert fine.counts == plain.counts
    assert (fine.count, fine.sum) == (plain.count, plain.sum)
    assert plain.native() is None


@given(VALUES)
def test_native_buckets_hold_every_value_between_their_bounds(values):
    fine = Histogram(REQUEST_BUCKETS_S, REQUEST_CELLS_S)
    for value in values:
        fine.add(value)

    native = fine.native()
    assert sum(native.values()) == len(values)
    low, high = REQUEST_CELLS_S[0], REQUEST_CELLS_S[-1]
    for index, count in native.items():
        first, last = (2 ** (at / PER_DOUBLING) for at in (index - 1, index))
        inside = [first * (1 - 1e-9) < min(max(value, low), high) <= last * (1 + 1e-9) for value in values]
        assert count <= sum(inside)


@given(st.integers(-200, 200))
def test_bound_of_a_native_bucket_lies_in_it(index):
    bound = 2 ** (index / PER_DOUBLING)

    assert native_index(bound) == index
    assert native_index(bound * 1.001) == index + 1


def test_cells_contain_all_bounds_and_reach_beyond_them():
    bounds = (0.1, 0.3, 1.0)
    cells = fine_cells(bounds)

    assert set(bounds) <= set(cells)
    assert list(cells) == sorted(cells)
    assert cells[0] < 0.06
    assert cells[-1] == pytest.approx(2.0)
    assert all(math.isclose(2 ** (native_index(cell) / PER_DOUBLING), cell) for cell in set(cells) - set(bounds))


def test_copy_does_not_change_with_the_original():
    histogram = Histogram((1, 2))
    histogram.add(1.5)
    copy = histogram.copy()
    histogram.add(1.5)

    assert (copy.counts, copy.sum, histogram.count) == ([0, 1, 0], 1.5, 2)
