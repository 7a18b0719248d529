"""Checks of a request's head: API key, rate limit, deadline and expected wait.

The checks run once the path's route is known and before the body is read, so a refusal costs very little.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from swiftlet_serve.errors import Unauthorized, deadline_exceeded, invalid_value
from swiftlet_serve.http import playground
from swiftlet_serve.http.gate.api_keys import ApiKeys
from swiftlet_serve.http.gate.proxies import client_address, client_of, is_trusted
from swiftlet_serve.http.gate.route_table import Match, RouteTable
from swiftlet_serve.inference.catalog import ANY, Route
from swiftlet_serve.inference.runtime import Runtime
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Priority

LIVE: Final = "/health/live"
READY: Final = "/health/ready"
PUBLIC_PATHS: Final = frozenset({LIVE, READY, *playground.FILES})  # need no API key
TIMEOUT_HEADER: Final = "x-request-timeout-ms"
PRIORITY_HEADER: Final = "x-request-priority"
VERSION_HEADER: Final = "x-model-version"
KEY_HEADER: Final = "x-routing-key"
PRIORITIES: Final[dict[str, Priority]] = {"interactive": "interactive", "bulk": "bulk"}
MAX_TIMEOUT_MS: Final = 600_000


class RequestContext(NamedTuple):
    """The times and the priority of an admitted request. Times are seconds of `time.monotonic()`."""

    received: float
    deadline: Deadline
    lag_s: float  # between the arrival of the request and its read; the response may be delayed as long
    priority: Priority
    route: Route = ANY

    @property
    def response_deadline(self) -> Deadline:
        """The time at which the response must be ready in order to be sent by the deadline."""
        return self.deadline - self.lag_s

    def check_deadline(self, now: float) -> None:
        """Raises DeadlineExceeded if the deadline has passed."""
        if now >= self.deadline:
            raise deadline_exceeded()


class RequestGuard:
    """Admits a request, or raises the error that it is refused with."""

    def __init__(
        self,
        runtime: Runtime,
        keys: ApiKeys | None = None,
        routes: RouteTable | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a guard.

        Args:
            runtime: provides the settings, the clients' rate limits and the expected wait.
            keys: the API keys that all paths but `PUBLIC_PATHS` require; None requires none.
            routes: the routes that run a model; None for none.
            clock: returns the time in seconds.
        """
        self._runtime = runtime
        self._keys = keys
        self._routes = routes or RouteTable()
        self._clock = clock

    def admit(self, record: RequestRecord, scope: Scope, headers: Mapping[str, str]) -> None:
        """Checks a request, and notes its client in the record and its `match` and `context` in the scope's state.

        The match is that of the route table. Only requests that run a model have a context. The server sets in
        `scope["state"]`: `received`, the time of arrival; `lag_s`, as in `RequestContext`; and `has_whole_body`,
        whether the body has arrived too.

        Args:
            record: the request's record.
            scope: the request's ASGI scope. Behind a trusted proxy its client and scheme are replaced.
            headers: the request's headers, the first of equal names.

        Raises:
            Unauthorized: the API key is missing or unknown.
            Unprocessable: a header is invalid.
            TooManyRequests: the client exceeds its rate limit.
            DeadlineExceeded: the deadline passed before the request was read.
            Unavailable: the server is shutting down, or the queue is too long for the deadline.
        """
        state = scope.setdefault("state", {})
        state["match"] = self._routes.match(scope["path"])
        address = self._resolve_client(scope, headers)
        owner = self._owner(scope, headers)
        record.client, record.account = owner or address, owner or client_of(address)
        if scope["method"] == "POST" and runs_model(scope):
            state["context"] = context = self._create_context(record, headers, state)
            left_s = context.response_deadline - self._clock()
            is_complete = state.get("has_whole_body", False)
            self._runtime.admission.reserve(
                record, left_s, context.priority, complete=is_complete, client=record.account
            )

    def _create_context(
        self, record: RequestRecord, headers: Mapping[str, str], state: Mapping[str, Any]
    ) -> RequestContext:
        now = self._clock()
        self._runtime.check_open()
        received = state.get("received", now)
        timeout_s = _timeout_ms(headers, self._runtime.settings.timeout_ms) / 1000
        times = received, received + timeout_s, state.get("lag_s", 0.0)
        context = RequestContext(*times, _priority(headers), _route(headers))
        record.bulk = context.priority == "bulk"
        record.timeout_s = timeout_s if TIMEOUT_HEADER in headers else None
        if self._runtime.rate_limiter is not None:
            self._runtime.rate_limiter.begin(record.account, now)
        context.check_deadline(now)
        return context

    def _owner(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Returns the owner of the request's API key; None if the path requires no key.

        Raises:
            Unauthorized: the key is missing or unknown.
        """
        match: Match | None = scope["state"].get("match")
        if self._keys is None or scope["path"] in PUBLIC_PATHS or (match is not None and match.route.public):
            return None
        return authorize(self._keys, headers)

    def _resolve_client(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Returns the client's address. Behind a trusted proxy, sets the scope's client and scheme."""
        trusted = self._runtime.settings.trusted_proxies
        peer = scope["client"][0] if scope.get("client") else "unknown"
        if not is_trusted(peer, trusted):
            return peer
        if (scheme := headers.get("x-forwarded-proto")) in ("http", "https"):
            scope["scheme"] = scheme
        address = client_address(peer, Headers(scope=scope).getlist("x-forwarded-for"), trusted)
        scope["client"] = (address, 0)
        return address


def authorize(keys: ApiKeys, headers: Mapping[str, str]) -> str:
    """Returns the owner of a request's API key.

    Raises:
        Unauthorized: the key is missing or unknown.
    """
    key = _api_key(headers)
    if key is None:
        raise _unauthorized("missing_key", "The request has no API key.", "Bearer")
    owner = keys.owner(key)
    if owner is None:
        raise _unauthorized("bad_key", "The API key is not valid.", 'Bearer error="invalid_token"')
    return owner


def runs_model(scope: Scope) -> bool:
    """Returns whether the route of a request runs a model."""
    match: Match | None = scope["state"].get("match")
    return match is not None and match.route.endpoint is not None


def _api_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


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


def _route(headers: Mapping[str, str]) -> Route:
    """Returns what the headers say about the version of the model.

    Raises:
        Unprocessable: the version is no whole number.
    """
    version = headers.get(VERSION_HEADER)
    if version is None:
        return Route(None, headers.get(KEY_HEADER, ""))
    if not re.fullmatch(r"[0-9]{1,9}", version):
        detail = "X-Model-Version is invalid. Send a whole number: one of the versions in /models."
        raise invalid_value("", "version_header", detail)
    return Route(int(version))
