"""A breaker opens for what is broken, and for nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.service.workers.circuit_breaker import CircuitBreaker

LIMITS = st.integers(1, 10)
GOOD_OR_NOT = st.lists(st.booleans())


@given(LIMITS)
def test_an_engine_is_tried_once_so_many_calls_in_a_row_have_failed(limit):
    breaker = CircuitBreaker(limit)

    assert [breaker.record_call(good=False) for _ in range(limit)] == [False] * (limit - 1) + [True]


@given(LIMITS, GOOD_OR_NOT)
def test_calls_alone_replace_nothing_and_open_nothing(limit, calls):
    """Whoever sends nothing but what no engine can answer shuts nobody out."""
    breaker = CircuitBreaker(limit)
    for good in [*calls, *[False] * 3 * limit]:
        if breaker.record_call(good):
            assert not breaker.record_probe(good=True)
        assert not breaker.open


def test_an_engine_is_replaced_when_it_fails_a_trial_and_whenever_its_failures_have_doubled():
    breaker = CircuitBreaker()

    assert [n for n in range(1, 9) if breaker.record_probe(good=False)] == [1, 2, 4, 8]


def test_it_opens_when_a_new_engine_was_no_help():
    breaker, opened = CircuitBreaker(), []
    for _ in range(3):
        breaker.record_probe(good=False)
        opened.append(breaker.open)

    assert opened == [False, True, True]


@given(LIMITS, GOOD_OR_NOT, st.integers(0, 10))
def test_it_is_closed_after_a_trial_that_succeeds(limit, calls, trials):
    breaker = CircuitBreaker(limit)
    for good in calls:
        breaker.record_call(good)
    for _ in range(trials):
        breaker.record_probe(good=False)

    assert not breaker.record_probe(good=True)
    assert not breaker.open
    assert breaker.record_call(good=False) == (limit == 1)
