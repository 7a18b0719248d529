"""The verdict: the highest rate that holds, its interval, and the search for it."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.verdict import MAX_BAD_SHARE, MAX_RUNS, Estimate, Run, crossing, estimate, fit, next_rate, verdict


def run(rate: float, share: float, draw: random.Random | None = None, seconds: int = 20) -> Run:
    """Returns a run with that share of bad requests, exactly or by chance."""
    requests = (max(1, round(rate)),) * seconds
    if draw:
        return Run(rate, requests, tuple(sum(draw.random() < share for _ in range(count)) for count in requests))
    return Run(rate, requests, tuple(round(share * count) for count in requests))


runs = st.lists(
    st.builds(
        lambda rate, pairs: Run(rate, tuple(a for a, _ in pairs), tuple(min(a, b) for a, b in pairs)),
        st.sampled_from([10.0, 20.0, 30.0, 50.0, 80.0]),
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=8,
)


@given(runs)
def test_fit_rises_and_keeps_the_mean_of_the_medians(several):
    curve = fit(several)

    assert [rate for rate, _ in curve] == sorted({run.rate for run in several})
    assert all(before <= after + 1e-12 for (_, before), (_, after) in pairwise(curve))
    weights = {rate: sum(sum(run.requests) for run in several if run.rate == rate) for rate, _ in curve}
    medians = {rate: median(run.bad_share for run in several if run.rate == rate) for rate in weights}
    assert sum(share * weights[rate] for rate, share in curve) == pytest.approx(
        sum(medians[rate] * weights[rate] for rate in weights)
    )


def test_fit_keeps_a_curve_that_rises():
    assert fit([run(10, 0), run(200, 0.02), run(100, 0.01)]) == [(10, 0), (100, 0.01), (200, 0.02)]


def test_fit_ignores_one_disturbed_run_of_three():
    assert fit([run(100, 0), run(100, 0.5), run(100, 0)]) == [(100, 0)]


@given(runs)
def test_estimate_lies_in_its_interval_below_the_highest_tried_rate(several):
    found = estimate(several, draws=40)

    assert 0 <= found.low <= found.rate <= found.high <= max(run.rate for run in several)
    assert found.unbounded == (fit(several)[-1][1] <= MAX_BAD_SHARE)


@given(runs, st.floats(0.01, 100))
def test_crossing_scales_with_the_unit_of_the_rate(several, factor):
    scaled = [Run(factor * run.rate, run.requests, run.bad) for run in several]

    assert crossing(fit(scaled)) == pytest.approx(factor * crossing(fit(several)))


def test_crossing_is_where_the_share_is_one_percent():
    assert crossing([(100, 0.0), (200, 0.02)]) == 150
    assert crossing([(100, 0.0), (200, 0.01)]) == 200
    assert crossing([(100, 0.5)]) == 0


def test_interval_holds_the_true_rate_about_as_often_as_it_states():
    """The bad share grows from 0 at 80/s by 1 % for each 20/s, so the true rate is 100."""
    hits = 0
    for seed in range(40):
        draw = random.Random(seed)
        several = [run(rate, max(0, rate - 80) / 2000, draw) for rate in (60, 90, 95, 105, 110, 140) for _ in range(3)]
        found = estimate(several, draws=100, seed=seed)
        hits += found.low <= 100 <= found.high

    assert hits / 40 >= 0.85


@given(st.floats(1, 1000), st.floats(1, 1000), st.integers(1, 4))
def test_search_ends_and_finds_the_limit_of_a_server(limit, first, repeats):
    """The server answers everything up to its limit and nothing above."""
    several: list[Run] = []
    while rate := next_rate(several, first, 1.15, repeats):
        several.append(run(rate, 1.0 if rate > limit else 0.0))

    assert len(several) < MAX_RUNS
    passed = max(run.rate for run in several if run.rate <= limit)
    failed = min(run.rate for run in several if run.rate > limit)
    assert failed / passed <= 1.15
    assert all(sum(run.rate == rate for run in several) == repeats for rate in (passed, failed))
    found = estimate(several, draws=20)
    assert (found.low, found.high) == (passed, failed)
    assert passed <= found.rate <= failed


def test_search_gives_up_on_a_server_that_holds_no_rate():
    several: list[Run] = []
    while rate := next_rate(several, 10, 1.1, 3):
        several.append(run(rate, 1.0))

    assert verdict(estimate(several, draws=20), None) == (False, "does not hold at any rate tried")


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        (None, (True, "holds")),
        (80, (True, "holds")),
        (90, (True, "holds")),
        (100, (False, "is not shown to hold")),
        (120, (False, "does not hold")),
    ],
)
def test_verdict_holds_only_what_was_shown(required, expected):
    assert verdict(Estimate(100, 90, 110, unbounded=False), required) == expected


def test_verdict_does_not_refute_a_rate_above_the_tried_ones():
    assert verdict(Estimate(100, 90, 100, unbounded=True), 120) == (False, "is not shown to hold")
