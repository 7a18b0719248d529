"""The summary of a load."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.measurement import Measurement, RequestResult, generator_limited, summarize
from loadtest.verdict import MAX_BAD_SHARE
from loadtest.workload import TASKS

results = st.builds(
    lambda path, due, late, took, status: RequestResult(path, due, due + late, due + late + took, status, 1),
    st.sampled_from(sorted(TASKS)),
    st.floats(100, 109.9),
    st.floats(0, 1),
    st.floats(0, 2),
    st.sampled_from([200, 200, 200, 0, 503, -1]),
)


def ten_requests(late: float, took: float, rate: float = 10, cpu_share: float = 0.0) -> Measurement:
    one = RequestResult("/qa", 0.5, 0.5 + late, 0.5 + late + took, 200, 1)
    return summarize([one] * 10, 0, 1, rate, 500, cpu_share)


@given(st.lists(results, min_size=1, max_size=300), st.integers(1, 2000))
def test_summary_p99_is_within_the_target_if_at_most_one_percent_are_bad(several, target_ms):
    found = summarize(several, 100, 10, 30, target_ms)

    assert found.bad_share == pytest.approx(sum(one.latency_s > target_ms / 1000 for one in several) / len(several))
    assert (sum(found.run.requests), sum(found.statuses.values())) == (len(several), len(several))
    assert sum(found.run.bad) == round(found.bad_share * len(several)) >= found.failed
    assert (found.p99_ms <= target_ms) == (found.bad_share <= MAX_BAD_SHARE)
    assert found.bad_share_since_sent <= found.bad_share


@given(st.lists(results, min_size=1, max_size=300))
def test_summary_counts_every_answered_request_in_the_histogram(several):
    found = summarize(several, 100, 10, 30, 500)
    answered = [1000 * one.latency_s for one in several if one.status == 200]

    assert sum(count for *_, count in found.histogram) == len(answered)
    for low, high, count in found.histogram:
        assert count == sum(low <= max(one, 1e-3) < high for one in answered)
    assert all(one[1] == other[0] for one, other in pairwise(found.histogram))
    assert not found.histogram or found.histogram[0][2] > 0 < found.histogram[-1][2]


def test_summary_has_the_percentiles_of_all_requests():
    several = [RequestResult("/qa", 0.0, 0.0, n / 1000, 200 if n < 100 else 503, 1) for n in range(1, 101)]
    found = summarize(several, 0, 1, 100, 500).percentiles_ms

    expected = {"50": 50, "75": 75, "90": 90, "95": 95, "99": 99, "99.9": math.inf, "100": math.inf}
    assert found == {name: pytest.approx(value) for name, value in expected.items()}


@pytest.mark.parametrize(
    ("late", "took", "cpu_share", "expected"),
    [
        (0.0, 0.1, 0.5, (0.0, False)),
        (0.0, 0.9, 0.5, (1.0, False)),  # the server is slow
        (0.9, 0.1, 0.5, (1.0, True)),  # the generator is late
        (0.9, 0.9, 0.5, (1.0, False)),  # both, and the server alone suffices
        (0.0, 0.9, 0.95, (1.0, True)),  # unknown: the generator had no CPU time left
    ],
)
def test_summary_tells_whether_the_generator_was_the_limit(late, took, cpu_share, expected):
    found = ten_requests(late, took, cpu_share=cpu_share)

    assert (found.bad_share, found.generator_limited) == expected


def test_rate_is_generator_limited_if_no_higher_rate_failed_otherwise():
    held, late, slow = (ten_requests(*case) for case in ((0.0, 0.1, 90), (0.9, 0.1, 120), (0.0, 0.9, 110)))

    assert generator_limited([held, late], 100)
    assert not generator_limited([held, late, slow], 100)
    assert generator_limited([held, slow, late], 115)
    assert not generator_limited([held], 100)
    assert not generator_limited([], 100)
