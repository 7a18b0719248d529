"""The outermost layer: each request has a record, comes in or does not, and is answered in one way where it fails."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swiftlet_serve.service.errors import Internal, SwiftletError, draining, log_exception
from swiftlet_serve.service.http import problem_details
from swiftlet_serve.service.http.request_guard import RequestGuard
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.telemetry.request_record import OTHER, RequestRecord

log = logging.getLogger(__name__)

RANDOM: Final = random.Random()  # noqa: S311  # ids are no secrets, and this asks the system for nothing
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:=-]{1,128}")

Observer = Callable[[RequestRecord], None]
"""Is told of every request, when its answer leaves or its client has gone."""


class Reception:
    """Takes down every request, and turns away those that the gate does not let in."""

    def __init__(self, runtime: Runtime, gate: RequestGuard, observers: Sequence[Observer] = ()) -> None:
        self._runtime = runtime
        self._gate = gate
        self._observers = observers

    def refuse(self, scope: Scope) -> Response | None:
        """The answer to a request that is not let in; None to one that is. Its record is in the scope's state then."""
        # Starlette's own look through the list, and at every letter, for each one that is asked for.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        method = scope["method"] if scope["method"] in METHODS else OTHER
        state = scope.setdefault("state", {})
        state["record"] = record = RequestRecord(_request_id(headers), method, traceparent=headers.get("traceparent"))
        record.started = state.get("received", record.started)
        record.on_accept = self._accept
        try:
            self._gate.admit(record, scope, headers)
        except Exception as error:
            response = self.excuse(record, error)
            self.sign(record, response.raw_headers)
            self.end(record, scope, response.status_code)
            return response
        return None

    def _accept(self, record: RequestRecord) -> None:
        self._runtime.meet(record)
        self._runtime.stats.accept(record)

    def excuse(self, record: RequestRecord, error: BaseException) -> Response:
        """The answer to a request that failed."""
        if isinstance(error, SwiftletError):
            failure = error
        elif isinstance(error, asyncio.CancelledError):  # the server leaves without waiting any longer
            failure = draining()
        else:
            log_exception(log, f"request {record.id} failed", error)
            failure = Internal("internal", "The server made a mistake. The log has more under this request's id.")
        record.code = failure.code
        return problem_details.render(failure, record.id)

    def sign(self, record: RequestRecord, headers: list[tuple[bytes, bytes]]) -> None:
        """Adds to the headers of an answer what all have."""
        headers.append((b"x-request-id", record.id.encode()))
        if self._runtime.leaving:
            headers.append((b"connection", b"close"))

    def end(self, record: RequestRecord, scope: Scope, status: int | None) -> None:
        """Tells all who look on what became of a request; none of them can fail it.

        Without a status there is no answer, since there is no client any more.
        """
        if task := self._gate.route(scope):
            self._runtime.meet(record)
        record.status, record.ended = status, time.monotonic()
        record.route = task or str(getattr(scope.get("route"), "path", OTHER))
        for observe in self._observers:
            try:
                observe(record)
            except Exception as error:
                log_exception(log, f"request {record.id} could not be noted", error)


class Edge:
    """Has the reception take down every request, and answers those that fail further in."""

    def __init__(self, app: ASGIApp, reception: Reception) -> None:
        self.app = app
        self._reception = reception

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        reception = self._reception
        if "record" not in scope.get("state", {}) and (refusal := reception.refuse(scope)):  # the server did not ask
            await refusal(scope, receive, send)
            return
        record: RequestRecord = scope["state"]["record"]

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = list(message["headers"])
                reception.sign(record, message["headers"])
                reception.end(record, scope, message["status"])
            await send(message)

        try:
            with request_record.recording(record):
                await self.app(scope, receive, send_named)
        except ClientDisconnect:  # nobody is left to answer
            if record.status is None:
                reception.end(record, scope, None)
        except (Exception, asyncio.CancelledError) as error:
            response = reception.excuse(record, error)
            if record.status is None:
                await response(scope, receive, send_named)


def _request_id(headers: Mapping[str, str]) -> str:
    """The caller's own, if it is one that can stand in a log; else a new one."""
    for name in ("x-request-id", "x-amzn-trace-id"):
        if name in headers and REQUEST_ID.fullmatch(headers[name]):
            return headers[name]
    return f"{RANDOM.getrandbits(128):032x}"
