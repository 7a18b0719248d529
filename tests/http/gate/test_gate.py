"""The gate's decisions about the head of a request, on a fixed clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from swiftlet_serve.errors import Unavailable
from swiftlet_serve.http.gate.gate import Gate
from swiftlet_serve.http.gate.request import Head, Request, Route
from swiftlet_serve.scheduling.admission import admissible
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.types import Priority

NOW = 1000.0


async def never(_: Request) -> Response:
    raise AssertionError("no request is answered")


ROUTES = (Route("POST", "/classify", never, runs_model=True, reads_body=True), Route("GET", "/models", never))


class BusyRuntime:
    """A runtime with a fixed expected wait."""

    def __init__(self, wait_s: float = 0.0, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.stats = RequestStats()
        self.wait_s = wait_s
        self.rate_limiter = None
        self.leaving = self.closed = False

    @property
    def admission(self) -> BusyRuntime:
        return self

    def reserve(self, _: RequestRecord, remaining_s: float, priority: Priority, *, complete: bool, client: str) -> None:
        assert not complete
        if not admissible(self.wait_s, 0.0, remaining_s, priority):
            raise Unavailable("overloaded", "The queue is full.", retry_after=1.0)

    def release(self, _: RequestRecord) -> None:
        pass

    def minimum_s(self) -> float:
        return 0.0


def begin(
    timeout_ms: int | None = 1000,
    waited_s: float = 0.0,
    took_s: float = 0.0,
    wait_s: float = 0.0,
    method: str = "POST",
    path: str = "/classify",
    **settings: Any,
) -> Request | Response:
    """Begins a request that arrived `waited_s` ago and took `took_s` to arrive."""
    gate = Gate(BusyRuntime(wait_s, **settings), ROUTES, clock=lambda: NOW)
    headers = [] if timeout_ms is None else [(b"x-request-timeout-ms", str(timeout_ms).encode())]
    return gate.begin(Head(method, path, headers, "192.0.2.1", NOW - waited_s - took_s, waited_s))


def test_deadline_counts_from_the_first_byte():
    assert begin(timeout_ms=1000, waited_s=0.125, took_s=0.5).deadline == NOW + 0.375


def test_response_deadline_is_earlier_by_the_lag():
    assert begin(timeout_ms=1000, waited_s=0.125, took_s=0.5).response_deadline == NOW + 0.375 - 0.125


def test_deadline_without_a_header_is_that_of_the_settings():
    request = begin(timeout_ms=None)

    assert (request.deadline, request.priority) == (NOW + Settings().timeout_ms / 1000, "interactive")


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2))
def test_gate_admits_exactly_the_requests_that_can_be_answered_in_time(waited, took, wait):
    """A refused request has too little time left, for any wait of the queue."""
    left = 1.0 - waited - took
    begun = begin(waited_s=waited, took_s=took, wait_s=wait)
    if isinstance(begun, Request):
        assert NOW + wait <= begun.response_deadline <= begun.deadline
    elif begun.status_code == 504:
        assert left <= 1e-9
    else:
        assert begun.status_code == 503
        assert left - waited <= 1e-9 or wait >= 0.75 * (left - waited) - 1e-9


@pytest.mark.parametrize(("waited_s", "status"), [(1.0, 504), (0.5, 503)])
def test_gate_refuses_late_requests_on_an_idle_server(waited_s, status):
    assert begin(waited_s=waited_s).status_code == status


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/classify", 405), ("POST", "/models", 405), ("POST", "/qa", 404), ("GET", "/models", None)],
)
def test_gate_checks_no_deadline_of_other_requests(method, path, status):
    begun = begin(waited_s=60.0, wait_s=60.0, method=method, path=path)

    assert (None if isinstance(begun, Request) else begun.status_code) == status
