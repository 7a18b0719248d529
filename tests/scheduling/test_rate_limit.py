"""The rate limiter holds every client to its rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import TooManyRequests
from swiftlet_serve.scheduling.rate_limit import ClientRateLimiter, RateLimiter


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


@given(st.floats(1, 1e5), st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_tokens_keep_the_rate_and_a_burst_of_one_second_and_one_request(rate, requests):
    limiter, now, admitted = ClientRateLimiter(tokens=rate), 0.0, []
    for pause, tokens in requests:
        now += pause
        try:
            limiter.begin("a", now)
        except TooManyRequests as error:
            limiter.begin("a", now + 1.001 * error.retry_after + 1e-6)  # it tells the truth
            continue
        limiter.charge_tokens("a", now, tokens)
        admitted.append((now, tokens))

    for i, (start, _) in enumerate(admitted):
        total = 0
        for end, tokens in admitted[i:]:
            assert total <= rate * (end - start + 1) * (1 + 1e-9) + 1e-6  # before the last request
            total += tokens


def test_request_of_more_tokens_than_the_quota_is_admitted_and_paid():
    limiter = ClientRateLimiter(tokens=100)
    limiter.begin("a", 0.0)
    limiter.charge_tokens("a", 0.0, 1100)

    with pytest.raises(TooManyRequests, match="rate limit of tokens") as raised:
        limiter.begin("a", 4.0)
    assert raised.value.retry_after == pytest.approx(6.0)
    limiter.begin("b", 4.0)
    limiter.begin("a", 10.001)


def test_request_refused_for_its_tokens_costs_no_request():
    limiter = ClientRateLimiter(requests=1, tokens=1)
    limiter.begin("a", 0.0)
    limiter.charge_tokens("a", 0.0, 11)

    for now in (1.0, 2.0, 9.0):
        with pytest.raises(TooManyRequests, match="tokens"):
            limiter.begin("a", now)
    limiter.begin("a", 10.001)
    with pytest.raises(TooManyRequests, match=r"its rate limit\."):
        limiter.begin("a", 10.002)
