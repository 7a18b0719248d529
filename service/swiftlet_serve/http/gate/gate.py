"""The one door of the server: it lets requests in, runs them, and finishes their records.

Three transports stand in front of it and only read and write: our HTTP/1.1 connections, gRPC and ASGI. A transport
passes the head of a request to `begin`, the body to the request, and the request to `answer`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from starlette.responses import Response

from swiftlet_serve.errors import (
    Internal,
    NotFound,
    SwiftletError,
    Unauthorized,
    deadline_too_short,
    draining,
    invalid_value,
    log_exception,
)
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.cors import Cors
from swiftlet_serve.http.gate.proxies import client_address, client_of, is_trusted
from swiftlet_serve.http.gate.request import Head, Request, Route
from swiftlet_serve.http.gate.route_table import RouteTable, unknown_route, unsupported_method
from swiftlet_serve.inference.catalog import VersionChoice
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.settings import MAX_TIMEOUT_MS
from swiftlet_serve.telemetry.request_record import OTHER, RequestRecord
from swiftlet_serve.types import Priority

log = logging.getLogger(__name__)

TIMEOUT_HEADER: Final = "x-request-timeout-ms"
PRIORITY_HEADER: Final = "x-request-priority"
VERSION_HEADER: Final = "x-model-version"
KEY_HEADER: Final = "x-routing-key"
PRIORITIES: Final[dict[str, Priority]] = {"interactive": "interactive", "bulk": "bulk"}
RANDOM: Final = random.Random()  # noqa: S311  # request IDs are not secret, and this needs no system call
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:=-]{1,128}")
REQUEST_ID_HEADERS: Final = ("x-request-id", "x-amzn-trace-id")
TIMEOUT_CODES: Final = frozenset({"deadline_exceeded", "overloaded"})  # errors that a longer timeout can avoid
NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
"""A header of every response: browsers must not take it for something else than it says."""

Observer = Callable[[RequestRecord], None]
"""Called with every record when its response starts, or when its client has disconnected."""


OnResponse = Callable[[Request, Response], None]
"""Called with a request and its response, before the response is sent. Must return at once."""


async def _no_route(_: Request) -> Response:
    raise unknown_route()


NO_ROUTE: Final = Route("", OTHER, _no_route)
"""The route of an unknown path."""


class Gate:
    """Lets requests in or refuses them, and answers those that it let in."""

    def __init__(
        self,
        runtime: Runtime,
        routes: Iterable[Route],
        keys: ApiKeys | None = None,
        observers: Sequence[Observer] | None = None,
        cors: Cors | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_response: OnResponse | None = None,
    ) -> None:
        """Creates a gate.

        Args:
            runtime: the loaded models, with the settings, the admission and the clients' rate limits.
            routes: all routes.
            keys: the API keys that all routes but the public ones require; None requires none.
            observers: called with each finished record, before the runtime's statistics: a tracer sets the trace ID
                that they keep. None: the requests are not counted either.
            cors: lets pages of other origins in; None for none.
            clock: returns the time in seconds.
            on_response: called with each request whose body was read, and its response.
        """
        self.table = RouteTable(routes)
        self._runtime = runtime
        self._keys = keys
        self._observers = () if observers is None else (*observers, runtime.stats.finish)
        self._stats = None if observers is None else runtime.stats
        self._cors = cors
        self._clock = clock
        self._on_response = on_response

    # Steps of a request

    def begin(self, head: Head) -> Request | Response:
        """Lets a request in. Returns the response of a request that is refused."""
        # The first of equal names counts.
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(head.headers)}
        if self._cors is not None and (preflight := self._cors.preflight(head.method, headers)):
            preflight.raw_headers.append(NOSNIFF)
            return preflight
        method = head.method if head.method in METHODS else OTHER
        record = RequestRecord(_request_id(headers), method, started=head.received)
        record.traceparent = headers.get("traceparent")
        match = self.table.match(head.method, head.path)
        route, parameters, allow = (NO_ROUTE, {}, "") if match is None else match
        size = self._runtime.settings.max_body_bytes if route.max_body_bytes is None else route.max_body_bytes
        request = Request(head, headers, record, route, parameters, route.render_error, size, bytearray())
        try:
            self._check(request, allow)
        except Exception as error:
            return self.fail(request, error)
        return request

    async def answer(self, request: Request) -> Response | None:
        """Returns the response to a request whose body is complete; None if its client has gone."""
        try:
            request.decompress()
            response = await request.route.respond(request)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of a library in Rust, which is not an Exception
            is_cancelled = isinstance(error, asyncio.CancelledError)
            if request.is_disconnected or (request.client_cancels and is_cancelled):
                self.abandon(request)
                return None
            response = self.fail(request, error)
        else:
            response = self._finish(request, response)
        if self._on_response is not None:
            try:
                self._on_response(request, response)
            except Exception as error:
                log_exception(log, f"request {request.record.id} could not be copied", error)
        return response

    def fail(self, request: Request, error: BaseException) -> Response:
        """Returns the response to a request that failed, and finishes its record."""
        record = request.record
        if isinstance(error, SwiftletError):
            failure = self._check_timeout(request, error)
        elif isinstance(error, asyncio.CancelledError):  # the server shuts down without waiting any longer
            failure = draining()
        else:
            log_exception(log, f"request {record.id} failed", error)
            detail = "The server failed unexpectedly. Its log has the cause under the ID of this request."
            failure = Internal("internal", detail)
        record.code = failure.code
        return self._finish(request, request.render_error(failure, record.id))

    def abandon(self, request: Request) -> None:
        """Finishes the record of a request whose client disconnected before the response."""
        self._observe(request, None)

    def refuse_unread(self, error: SwiftletError, request_id: str) -> Response:
        """Returns the response to a request whose head is invalid. Such requests are only counted."""
        self.count_refused(error.code)
        response = problem_details.render(error, request_id)
        response.raw_headers += [(b"x-request-id", request_id.encode()), NOSNIFF]
        return response

    def count_refused(self, code: str) -> None:
        """Counts a request that had no record."""
        if self._stats is not None:
            self._stats.count_refused(code)

    def count_crowded(self) -> None:
        """Counts a page or pipelined request that waited in a crowd."""
        if self._stats is not None:
            self._stats.add_crowded()

    # Admission

    def _check(self, request: Request, allow: str) -> None:
        """Decides about a request. `allow` lists the methods of its route if its own is not among them.

        Raises:
            NotFound, MethodNotAllowed: no route has this path, or this method.
            UnsupportedMediaType, PayloadTooLarge: the route cannot read the body.
            SwiftletError: as `_identify` and `_admit`.
        """
        self._identify(request)
        route = request.route
        if route is NO_ROUTE:
            raise unknown_route()
        if allow and route.advice and request.head.method == "POST":
            raise NotFound("unknown_route", route.advice)
        if allow:
            raise unsupported_method(allow)
        if route.reads_body:
            request.check_body_headers()
        if route.runs_model:
            self._admit(request)

    def _identify(self, request: Request) -> None:
        """Notes the client of a request in its record.

        Raises:
            Unauthorized: the API key is missing or unknown.
        """
        head, trusted = request.head, self._runtime.settings.trusted_proxies
        address = head.peer or "unknown"
        if trusted and is_trusted(address, trusted):
            forwarded = [value.decode("latin-1") for name, value in head.headers if name == b"x-forwarded-for"]
            address = client_address(address, forwarded, trusted)
        record = request.record
        record.client, record.account = address, client_of(address)  # also of a request without a valid key
        if self._keys is not None and not request.route.public:
            record.client = record.account = _owner(self._keys, request.headers)

    def _admit(self, request: Request) -> None:
        """Sets the deadline of a request that runs a model, and checks that it can be met.

        Raises:
            Unprocessable: a header is invalid.
            TooManyRequests: the client exceeds its rate limit.
            DeadlineExceeded: the deadline passed before the request was read.
            Unavailable: the server is shutting down, or the queue is too long for the deadline.
        """
        now, runtime, record, headers = self._clock(), self._runtime, request.record, request.headers
        if runtime.admission.closed:
            raise draining()
        timeout_s = _timeout_ms(headers, runtime.settings.timeout_ms) / 1000
        request.deadline = request.head.received + timeout_s
        request.priority, request.version = _priority(headers), _version(headers)
        record.bulk = request.priority == "bulk"
        record.timeout_s = timeout_s if TIMEOUT_HEADER in headers else None
        if runtime.rate_limiter is not None:
            runtime.rate_limiter.begin(record.account, now)
        request.check_deadline(now)
        remaining_s, complete = request.response_deadline - self._clock(), request.head.has_whole_body
        runtime.admission.reserve(record, remaining_s, request.priority, complete=complete, client=record.account)

    # The end of a request

    def _check_timeout(self, request: Request, error: SwiftletError) -> SwiftletError:
        """Returns the error to report: that the timeout is too short, if no retry could meet it."""
        if error.code not in TIMEOUT_CODES or not request.route.runs_model:
            return error
        record, runtime = request.record, self._runtime
        timeout_s = record.timeout_s or runtime.settings.timeout_ms / 1000
        minimum_s = (record.minimum_s or runtime.admission.minimum_s()) + runtime.stats.minimum_overhead_s
        return deadline_too_short(minimum_s) if minimum_s > timeout_s else error

    def _finish(self, request: Request, response: Response) -> Response:
        """Adds the headers that all responses have, and finishes the record."""
        headers = response.raw_headers
        headers += [(b"x-request-id", request.record.id.encode()), NOSNIFF]
        if self._runtime.leaving:
            headers.append((b"connection", b"close"))
        if self._cors is not None:
            self._cors.add_headers(request.headers, headers)
        self._observe(request, response.status_code)
        return response

    def _observe(self, request: Request, status: int | None) -> None:
        """Completes a record and passes it to the observers, whose errors do not affect the response.

        `status` is the response's; None if the client disconnected before there was one.
        """
        record = request.record
        if request.route.runs_model:
            self._runtime.admission.release(record)
        record.status, record.ended = status, time.monotonic()
        record.route = request.route.path
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


def _owner(keys: ApiKeys, headers: Mapping[str, str]) -> str:
    """Returns the owner of a request's API key.

    Raises:
        Unauthorized: the key is missing or unknown.
    """
    scheme, _, token = headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")
    if key is None:
        raise _unauthorized("missing_key", "The request has no API key.", "Bearer")
    owner = keys.owner(key)
    if owner is None:
        raise _unauthorized("bad_key", "The API key is not valid.", 'Bearer error="invalid_token"')
    return owner


def _unauthorized(code: str, problem: str, challenge: str) -> Unauthorized:
    detail = f"{problem} Send a valid key as Authorization: Bearer KEY or X-API-Key: KEY."
    return Unauthorized(code, detail, headers={"www-authenticate": challenge})


def _timeout_ms(headers: Mapping[str, str], default: int) -> int:
    """Returns the request's timeout in milliseconds.

    Raises:
        Unprocessable: the header is not a number in its range.
    """
    value = headers.get(TIMEOUT_HEADER)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= MAX_TIMEOUT_MS:
        detail = f"X-Request-Timeout-Ms is invalid. Send a whole number from 1 to {MAX_TIMEOUT_MS}."
        raise invalid_value("", "timeout_header", detail, MAX_TIMEOUT_MS)
    return int(value)


def _priority(headers: Mapping[str, str]) -> Priority:
    """Returns the request's priority.

    Raises:
        Unprocessable: the header is not a known priority.
    """
    priority = PRIORITIES.get(headers.get(PRIORITY_HEADER, "interactive"))
    if priority is None:
        detail = f"X-Request-Priority is invalid. Send one of: {', '.join(PRIORITIES)}."
        raise invalid_value("", "priority_header", detail)
    return priority


def _version(headers: Mapping[str, str]) -> VersionChoice:
    """Returns what the headers say about the version of the model.

    Raises:
        Unprocessable: the version is no whole number.
    """
    version = headers.get(VERSION_HEADER)
    if version is None:
        return VersionChoice(None, headers.get(KEY_HEADER, ""))
    if not re.fullmatch(r"[0-9]{1,9}", version):
        detail = "X-Model-Version is invalid. Send a whole number: one of the versions in /models."
        raise invalid_value("", "version_header", detail)
    return VersionChoice(int(version))
