"""The records of requests, from the head of a request to the start of its response."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.responses import Response
from starlette.types import Scope

from swiftlet_serve.errors import Internal, SwiftletError, deadline_too_short, draining, log_exception
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.gate.request_guard import RequestGuard, runs_model
from swiftlet_serve.http.gate.route_table import Match, RenderError
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import OTHER, RequestRecord

log = logging.getLogger(__name__)

RANDOM: Final = random.Random()  # noqa: S311  # request IDs are not secret, and this needs no system call
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:=-]{1,128}")
REQUEST_ID_HEADERS: Final = ("x-request-id", "x-amzn-trace-id")
TIMEOUT_CODES: Final = frozenset({"deadline_exceeded", "overloaded"})  # errors that a longer timeout can avoid

Observer = Callable[[RequestRecord], None]
"""Called with every record when its response starts, or when its client has disconnected."""


class RequestTracker:
    """Creates the record of each request, refuses requests that the guard rejects, and finishes the records."""

    def __init__(self, runtime: Runtime, guard: RequestGuard, observers: Sequence[Observer] | None = None) -> None:
        """Creates a tracker.

        Args:
            runtime: the loaded models.
            guard: admits the requests.
            observers: called with each finished record, before the runtime's statistics: a tracer sets the trace ID
                that they keep. None: the requests are not counted either.
        """
        self._runtime = runtime
        self._guard = guard
        self._observers = () if observers is None else (*observers, runtime.stats.finish)

    def begin(self, scope: Scope) -> Response | None:
        """Creates a request's record in `scope["state"]`. Returns the response of a refused request, else None."""
        # Starlette's Headers would search the list, letter by letter, on each access. The first of equal names counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        method = scope["method"] if scope["method"] in METHODS else OTHER
        state = scope.setdefault("state", {})
        state["record"] = record = RequestRecord(_request_id(headers), method, traceparent=headers.get("traceparent"))
        record.started = state.get("received", record.started)
        try:
            self._guard.admit(record, scope, headers)
        except Exception as error:
            response = self.error_response(scope, error)
            self.add_headers(record, response.raw_headers)
            self.finish(record, scope, response.status_code)
            return response
        return None

    def error_response(self, scope: Scope, error: BaseException) -> Response:
        """Returns the response to a request that failed with `error`, and notes the error's code in the record."""
        record: RequestRecord = scope["state"]["record"]
        match: Match | None = scope["state"].get("match")
        if isinstance(error, SwiftletError):
            failure = self._check_timeout(record, scope, error)
        elif isinstance(error, asyncio.CancelledError):  # the server shuts down without waiting any longer
            failure = draining()
        else:
            log_exception(log, f"request {record.id} failed", error)
            detail = "The server failed unexpectedly. Its log has the cause under the ID of this request."
            failure = Internal("internal", detail)
        record.code = failure.code
        of_route = problem_details.render if match is None else match.route.render_error
        # Where two protocols share a route, the body of the request tells which one it is.
        render: RenderError = scope["state"].get("render_error", of_route)
        return render(failure, record.id)

    def _check_timeout(self, record: RequestRecord, scope: Scope, error: SwiftletError) -> SwiftletError:
        """Returns the error to report: that the timeout is too short, if no retry could meet it."""
        if error.code not in TIMEOUT_CODES or not runs_model(scope):
            return error
        timeout_s = record.timeout_s or self._runtime.settings.timeout_ms / 1000
        engine_s = record.minimum_s or self._runtime.admission.minimum_s()
        minimum_s = engine_s + self._runtime.stats.minimum_overhead_s
        return deadline_too_short(minimum_s) if minimum_s > timeout_s else error

    def add_headers(self, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        """Adds the headers that all responses have."""
        headers.append((b"x-request-id", record.id.encode()))
        if self._runtime.leaving:
            headers.append((b"connection", b"close"))

    def finish(self, record: RequestRecord, scope: Scope, status: int | None) -> None:
        """Completes a record and passes it to the observers, whose errors do not affect the response.

        Args:
            record: the request's record.
            scope: the request's ASGI scope.
            status: the response's status; None if the client disconnected before the response.
        """
        match: Match | None = scope["state"]["match"]
        if runs_model(scope):
            self._runtime.admission.release(record)
        record.status, record.ended = status, time.monotonic()
        record.route = match.route.path if match else str(getattr(scope.get("route"), "path", OTHER))
        for observe in self._observers:
            try:
                observe(record)
            except Exception as error:
                log_exception(log, f"an observer of request {record.id} failed", error)


def _request_id(headers: Mapping[str, str]) -> str:
    """Returns the client's request ID if it is safe to log, and otherwise a new one."""
    for name in REQUEST_ID_HEADERS:
        if name in headers and REQUEST_ID.fullmatch(headers[name]):
            return headers[name]
    return f"{RANDOM.getrandbits(128):032x}"
