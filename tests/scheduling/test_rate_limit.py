"""The rate limiter holds every client to its rate."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.service.scheduling.rate_limit import RateLimiter


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1), min_size=1, max_size=100))
def test_rate_limiter_allows_the_rate_and_a_burst_of_one_second(rate, pauses):
    limiter, now, times = RateLimiter(rate), 0.0, []
    for pause in pauses:
        now += pause
        if limiter.take("a", now) == 0:
            times.append(now)

    for i, start in enumerate(times):
        for n, end in enumerate(times[i:], 1):
            assert n <= rate * (end - start) + max(1, rate) + 1e-6


@given(st.floats(0.1, 100), st.integers(1, 200))
def test_rate_limiter_admits_after_the_returned_wait_and_not_before(rate, n):
    limiter = RateLimiter(rate)
    waits = [limiter.take("a", 0.0) for _ in range(n)]

    wait = limiter.take("a", 0.0)
    if wait:
        assert limiter.take("a", 0.99 * wait) > 0
        assert limiter.take("a", wait) == 0
    assert waits[0] == 0


def test_rate_limiter_keeps_clients_apart():
    limiter = RateLimiter(2)

    assert [limiter.take("a", 0) > 0 for _ in range(4)] == [False, False, True, True]
    assert limiter.take("b", 0) == 0


def test_rate_limiter_forgets_the_least_recently_seen_client():
    limiter = RateLimiter(1, max_clients=3)
    for client in ("a", "b", "c", "d"):
        limiter.take(client, 0)

    assert len(limiter) == 3
    assert limiter.take("d", 0) > 0
    assert limiter.take("a", 0) == 0
