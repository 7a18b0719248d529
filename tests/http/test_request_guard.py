"""The request guard's decisions, on a fixed clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from swiftlet_serve.errors import DeadlineExceeded, SwiftletError, Unavailable
from swiftlet_serve.http.gate.request_guard import RequestContext, RequestGuard
from swiftlet_serve.http.gate.route_table import Route, RouteTable
from swiftlet_serve.scheduling.admission import admissible
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Priority

NOW = 1000.0
ENDPOINT: Any = object()  # never called
CLASSIFY, QA = (RouteTable([Route(path, ENDPOINT)]) for path in ("/classify", "/qa"))


class BusyRuntime:
    """A runtime with a fixed expected wait."""

    def __init__(self, wait_s: float, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.wait_s = wait_s
        self.rate_limiter = None

    def check_open(self) -> None:
        pass

    @property
    def admission(self) -> BusyRuntime:
        return self

    def reserve(self, _: RequestRecord, left_s: float, priority: Priority, *, complete: bool, client: str) -> None:
        assert not complete
        if not admissible(self.wait_s, 0.0, left_s, priority):
            raise Unavailable("overloaded", "The queue is full.", retry_after=1.0)


def admit(
    timeout_ms: int = 1000, waited_s: float = 0.0, took_s: float = 0.0, wait_s: float = 0.0, **settings: Any
) -> RequestContext:
    """Admits a request that arrived `waited_s` ago and took `took_s` to arrive. Returns its context."""
    guard = RequestGuard(BusyRuntime(wait_s, **settings), routes=CLASSIFY, clock=lambda: NOW)
    arrived = NOW - waited_s
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/classify",
        "headers": [(b"x-request-timeout-ms", str(timeout_ms).encode())],
        "state": {"received": arrived - took_s, "lag_s": waited_s},
    }
    guard.admit(RequestRecord(), scope, Headers(scope=scope))
    return scope["state"]["context"]


def test_deadline_counts_from_the_first_byte():
    found = admit(timeout_ms=1000, waited_s=0.125, took_s=0.5)

    assert (found.received, found.deadline) == (NOW - 0.625, NOW + 0.375)


def test_response_deadline_is_earlier_by_the_lag():
    assert admit(timeout_ms=1000, waited_s=0.125, took_s=0.5).response_deadline == NOW + 0.375 - 0.125


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2))
def test_guard_admits_exactly_the_requests_that_can_be_answered_in_time(waited, took, wait):
    """A refused request has too little time left, for any wait of the queue."""
    left = 1.0 - waited - took
    try:
        found = admit(waited_s=waited, took_s=took, wait_s=wait)
    except DeadlineExceeded:
        assert left <= 1e-9
    except Unavailable:
        assert left - waited <= 1e-9 or wait >= 0.75 * (left - waited) - 1e-9
    else:
        assert NOW + wait <= found.response_deadline <= found.deadline


@pytest.mark.parametrize(("waited_s", "status"), [(1.0, 504), (0.5, 503)])
def test_guard_refuses_late_requests_on_an_idle_server(waited_s, status):
    with pytest.raises(SwiftletError) as refused:
        admit(waited_s=waited_s)

    assert refused.value.status == status


def test_arrival_defaults_to_the_time_of_the_check():
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/qa", "headers": []}
    RequestGuard(BusyRuntime(0.0, timeout_ms=3000), routes=QA, clock=lambda: NOW).admit(
        RequestRecord(), scope, Headers(scope=scope)
    )

    assert scope["state"]["context"] == RequestContext(NOW, NOW + 3.0, 0.0, "interactive")


@pytest.mark.parametrize(("method", "path"), [("GET", "/classify"), ("POST", "/models"), ("POST", "/qa")])
def test_guard_checks_no_deadline_of_other_requests(method, path):
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": [], "state": {"received": 0.0}}
    RequestGuard(BusyRuntime(60.0), routes=CLASSIFY, clock=lambda: NOW).admit(
        RequestRecord(), scope, Headers(scope=scope)
    )

    assert "context" not in scope["state"]
