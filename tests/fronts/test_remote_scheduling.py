"""What a front knows of the coordinator's decisions."""

from __future__ import annotations

import weakref

import pytest

from swiftlet_serve.errors import TooManyRequests, rate_limit_exceeded
from swiftlet_serve.fronts.remote_scheduling import RemoteRateLimiter


def test_refused_clients_are_refused_until_their_time_without_the_memory_of_their_requests():
    """The trace of an error holds the frames that it passed, with the texts of the request."""
    limiter, error = RemoteRateLimiter(lambda client, requests: None), rate_limit_exceeded(2.0, "rate limit of tokens")
    kept = weakref.ref(error)
    limiter.refuse("client", error, 10.0)
    detail = error.detail
    del error

    assert kept() is None
    with pytest.raises(TooManyRequests) as refusal:
        limiter.begin("client", 11.5)
    assert (refusal.value.code, refusal.value.detail, refusal.value.retry_after) == ("quota_exceeded", detail, 0.5)
    limiter.begin("client", 12.0)
    limiter.begin("other", 11.5)
