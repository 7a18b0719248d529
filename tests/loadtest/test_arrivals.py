"""Arrival times."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.arrivals import BURST, SHAPES, read_trace, replayed, shaped

seeds = st.integers(0, 2**32)
rates = st.floats(0.5, 500)


@given(seeds, st.sampled_from(sorted(SHAPES)))
def test_shaped_arrivals_are_in_order_and_within_the_time(seed, shape):
    times = shaped(shape, 20, 10, random.Random(seed))

    assert times == sorted(times)
    assert all(0 <= time < 10 for time in times)


@given(seeds)
def test_steady_arrivals_are_a_poisson_process(seed):
    """Its gaps are exponential: their mean is their deviation. With 5,000 gaps, 7 sigma are 10 %."""
    times = shaped("steady", 50, 100, random.Random(seed))
    gaps = [after - before for before, after in pairwise(times)]
    mean = fmean(gaps)

    assert mean == pytest.approx(1 / 50, rel=0.1)
    assert math.sqrt(fmean((gap - mean) ** 2 for gap in gaps)) == pytest.approx(mean, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "expected"), [("step", [0.25, 0.5, 0.75, 1.0]), ("burst", [1, 1, BURST, 1, 1]), ("soak", [1, 1])]
)
def test_shaped_arrivals_follow_the_shape(shape, expected):
    times = shaped(shape, 100, 100, random.Random(1))
    width = 100 / len(expected)
    counts = [sum(n * width <= time < (n + 1) * width for time in times) for n in range(len(expected))]

    assert [count / width / 100 for count in counts] == pytest.approx(expected, abs=0.1)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50, unique=True), rates)
def test_replayed_trace_keeps_its_order_and_gets_the_rate(trace, rate):
    repeats = 3
    times = replayed([moment / 7 for moment in trace], rate, repeats * len(trace) / rate)

    assert times == sorted(times)
    assert abs(len(times) - repeats * len(trace)) <= 1  # rounding decides about an arrival at the very end
    scale = (times[len(trace) - 1] - times[0]) / (max(trace) - min(trace))
    assert times[: len(trace)] == pytest.approx([scale * (moment - min(trace)) for moment in sorted(trace)])


@pytest.mark.parametrize("trace", [[], [1.0], [2.0, 2.0]])
def test_replayed_refuses_a_trace_without_duration(trace):
    with pytest.raises(ValueError, match="two different times"):
        replayed(trace, 1, 1)


def test_read_trace_reads_one_time_on_each_line(tmp_path):
    (tmp_path / "trace").write_text("0.5\n3\n\n1e1\n")

    assert read_trace(tmp_path / "trace") == [0.5, 3.0, 10.0]
