"""The circuit breaker opens for a broken engine and for nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.workers.circuit_breaker import CircuitBreaker

THRESHOLDS = st.integers(1, 10)
SUCCESSES = st.lists(st.booleans())


@given(THRESHOLDS)
def test_breaker_requests_a_probe_after_threshold_consecutive_failures(threshold):
    breaker = CircuitBreaker(threshold)

    assert [breaker.record_call(good=False) for _ in range(threshold)] == [False] * (threshold - 1) + [True]


@given(THRESHOLDS, SUCCESSES)
def test_breaker_stays_closed_while_probes_succeed(threshold, calls):
    """A client that sends only inputs that fail must not affect other clients."""
    breaker = CircuitBreaker(threshold)
    for good in [*calls, *[False] * 3 * threshold]:
        if breaker.record_call(good):
            assert not breaker.record_probe(good=True)
        assert not breaker.open


def test_breaker_replaces_the_engine_when_failed_probes_have_doubled():
    breaker = CircuitBreaker()

    assert [n for n in range(1, 9) if breaker.record_probe(good=False)] == [1, 2, 4, 8]


def test_breaker_opens_after_the_second_failed_probe():
    breaker, opened = CircuitBreaker(), []
    for _ in range(3):
        breaker.record_probe(good=False)
        opened.append(breaker.open)

    assert opened == [False, True, True]


@given(THRESHOLDS, SUCCESSES, st.integers(0, 10))
def test_breaker_closes_after_a_successful_probe(threshold, calls, probes):
    breaker = CircuitBreaker(threshold)
    for good in calls:
        breaker.record_call(good)
    for _ in range(probes):
        breaker.record_probe(good=False)

    assert not breaker.record_probe(good=True)
    assert not breaker.open
    assert breaker.record_call(good=False) == (threshold == 1)
