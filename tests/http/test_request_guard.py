"""Whether a request may come in, decided from its head, on a clock that the test holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from swiftlet_serve.service.errors import DeadlineExceeded, SwiftletError, Unavailable
from swiftlet_serve.service.http.request_guard import RequestContext, RequestGuard
from swiftlet_serve.service.scheduling.admission import admissible
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.types import Priority

NOW = 1000.0


class Busy:
    """A runtime that others' work keeps busy for so long."""

    def __init__(self, wait_s: float, **settings: Any) -> None:
        self.settings = Settings(**settings)
        self.wait_s = wait_s

    def check_open(self) -> None:
        pass

    def expect(self, _: RequestRecord, left_s: float, priority: Priority, *, whole: bool) -> None:
        assert not whole
        if not admissible(self.wait_s, 0.0, left_s, priority):
            raise Unavailable("overloaded", "It is.", retry_after=1.0)


def visit(
    timeout_ms: int = 1000, waited_s: float = 0.0, took_s: float = 0.0, wait_s: float = 0.0, **settings: Any
) -> RequestContext:
    """What the gate makes of a request whose first byte came `took_s` before its last, and that `waited_s` ago."""
    gate = RequestGuard(Busy(wait_s, **settings), tasks=["classify"], clock=lambda: NOW)
    heard = NOW - waited_s
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/classify",
        "headers": [(b"x-request-timeout-ms", str(timeout_ms).encode())],
        "state": {"received": heard - took_s, "lag_s": waited_s},
    }
    gate.admit(RequestRecord(), scope, Headers(scope=scope))
    return scope["state"]["visit"]


def test_the_deadline_counts_from_when_the_first_byte_came():
    found = visit(timeout_ms=1000, waited_s=0.125, took_s=0.5)

    assert (found.received, found.deadline) == (NOW - 0.625, NOW + 0.375)


def test_an_answer_has_to_be_there_as_much_earlier_as_the_event_loop_lags():
    assert visit(timeout_ms=1000, waited_s=0.125, took_s=0.5).due == NOW + 0.375 - 0.125


@given(st.floats(0, 2), st.floats(0, 2), st.floats(0, 2))
def test_who_is_let_in_has_time_to_be_answered_and_to_hear_of_it(waited, took, wait):
    """And who is not has none, or too little: whatever the machine's other work is, an idle engine is no excuse."""
    left = 1.0 - waited - took
    try:
        found = visit(waited_s=waited, took_s=took, wait_s=wait)
    except DeadlineExceeded:
        assert left <= 1e-9
    except Unavailable:
        assert left - waited <= 1e-9 or wait >= 0.75 * (left - waited) - 1e-9
    else:
        assert NOW + wait <= found.due <= found.deadline


@pytest.mark.parametrize(("waited_s", "status"), [(1.0, 504), (0.5, 503)])
def test_what_comes_too_late_or_could_only_leave_too_late_is_refused_though_nothing_waits(waited_s, status):
    with pytest.raises(SwiftletError) as refused:
        visit(waited_s=waited_s)

    assert refused.value.status == status


def test_without_a_server_that_knows_better_a_request_comes_when_the_gate_sees_it():
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/qa", "headers": []}
    RequestGuard(Busy(0.0, timeout_ms=3000), tasks=["qa"], clock=lambda: NOW).admit(
        RequestRecord(), scope, Headers(scope=scope)
    )

    assert scope["state"]["visit"] == RequestContext(NOW, NOW + 3.0, 0.0, "interactive")


@pytest.mark.parametrize(("method", "path"), [("GET", "/classify"), ("POST", "/models"), ("POST", "/qa")])
def test_what_is_no_request_to_a_task_needs_no_time(method, path):
    scope: dict[str, Any] = {"type": "http", "method": method, "path": path, "headers": [], "state": {"received": 0.0}}
    RequestGuard(Busy(60.0), tasks=["classify"], clock=lambda: NOW).admit(RequestRecord(), scope, Headers(scope=scope))

    assert "visit" not in scope["state"]
