"""Who asks, and whether they may, now: decided from a request's head, before any of its body is read.

What is refused here has cost next to nothing: no route was looked for, and no body waited for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from starlette.datastructures import Headers
from starlette.types import Scope

from swiftlet_serve.service.errors import FieldError, TooManyRequests, Unauthorized, Unprocessable, deadline_exceeded
from swiftlet_serve.service.http import playground
from swiftlet_serve.service.http.api_keys import Keys
from swiftlet_serve.service.http.proxies import client, is_trusted
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.scheduling.admission import Quota
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.types import Deadline, Priority

LIVE: Final = "/health/live"
READY: Final = "/health/ready"
OPEN: Final = frozenset({LIVE, READY, *playground.FILES})  # to whoever has no key, too
TIMEOUT_HEADER: Final = "x-request-timeout-ms"
PRIORITY_HEADER: Final = "x-request-priority"
PRIORITIES: Final[dict[str, Priority]] = {"interactive": "interactive", "bulk": "bulk"}
MAX_TIMEOUT_MS: Final = 600_000


class RequestContext(NamedTuple):
    """A request that was let in, for the route that answers it. Times are those of `time.monotonic()`."""

    received: float
    deadline: Deadline
    lag_s: float  # that the event loop took to look at it, and may take again for its answer
    priority: Priority

    @property
    def due(self) -> Deadline:
        """When the answer has to be there in order to leave by the deadline."""
        return self.deadline - self.lag_s

    def check(self, now: float) -> None:
        """Raises DeadlineExceeded where the client's time is up."""
        if now >= self.deadline:
            raise deadline_exceeded()


class RequestGuard:
    """Lets requests in, or raises why not."""

    def __init__(
        self,
        runtime: Runtime,
        keys: Keys | None = None,
        tasks: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tasks` are those whose routes stand behind it; with `keys`, all but `OPEN` is for who brings one."""
        self._runtime = runtime
        self._keys = keys
        self._routes = {f"/{task}" for task in tasks}
        self._quota = None if runtime.settings.client_rate is None else Quota(runtime.settings.client_rate)
        self._clock = clock

    def admit(self, record: RequestRecord, scope: Scope, headers: Mapping[str, str]) -> None:
        """Notes in the record who asks, and in the scope's state the `visit` of requests to a task.

        Of `headers` that came more than once, the first counts.
        A server notes there when the request came, as `received`; `lag_s`, as in `RequestContext`; and whether
        its body is here as well, as `whole`.

        Raises:
            Unauthorized: a key is needed, and there is none or a wrong one.
            Unprocessable: a header makes no sense.
            TooManyRequests: this client makes more than it may.
            DeadlineExceeded: it came too late to this.
            Unavailable: nothing is taken any more, or too much waits for what is left of the deadline.
        """
        address = self._believe_proxies(scope, headers)
        state = scope.setdefault("state", {})
        # Under this name the request is counted, where there are quotas.
        record.client = self._owner(scope, headers) or address
        if scope["method"] == "POST" and self.route(scope):
            state["visit"] = visit = self._visit(record, headers, state)
            left_s = visit.due - self._clock()
            self._runtime.expect(record, left_s, visit.priority, whole=state.get("whole", False))

    def route(self, scope: Scope) -> str | None:
        """The task's route that is asked for, if it is one."""
        path: str = scope["path"]
        return path if path in self._routes else None

    def _visit(self, record: RequestRecord, headers: Mapping[str, str], state: Mapping[str, Any]) -> RequestContext:
        now = self._clock()
        self._runtime.check_open()
        received = state.get("received", now)
        timeout_s = _timeout_ms(headers, self._runtime.settings.timeout_ms) / 1000
        visit = RequestContext(received, received + timeout_s, state.get("lag_s", 0.0), _priority(headers))
        record.bulk = visit.priority == "bulk"
        record.timeout_s = timeout_s if TIMEOUT_HEADER in headers else None
        if self._quota is not None:
            _check_quota(self._quota, record.client, now)
        visit.check(now)
        return visit

    def _owner(self, scope: Scope, headers: Mapping[str, str]) -> str | None:
        """Who the key belongs to; None where none is needed.

        Raises:
            Unauthorized: one is needed, and there is none or a wrong one.
        """
        if self._keys is None or scope["path"] in OPEN:
            return None
        key = _key(headers)
        if key is None:
            raise _unauthorized("missing_key", "Bearer")
        owner = self._keys.owner(key)
        if owner is None:
            raise _unauthorized("bad_key", 'Bearer error="invalid_token"')
        return owner

    def _believe_proxies(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """The client's address, which the scope has from then on."""
        trusted = self._runtime.settings.trusted_proxies
        peer = scope["client"][0] if scope.get("client") else "unknown"
        if not is_trusted(peer, trusted):
            return peer
        if (scheme := headers.get("x-forwarded-proto")) in ("http", "https"):
            scope["scheme"] = scheme
        address = client(peer, Headers(scope=scope).getlist("x-forwarded-for"), trusted)
        scope["client"] = (address, 0)
        return address


def _key(headers: Mapping[str, str]) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key")


def _unauthorized(code: str, challenge: str) -> Unauthorized:
    detail = "An API key that is known here has to come as Authorization: Bearer KEY or X-API-Key: KEY."
    return Unauthorized(code, detail, headers={"www-authenticate": challenge})


def _timeout_ms(headers: Mapping[str, str], default: int) -> int:
    """How long the caller wants to wait.

    Raises:
        Unprocessable: the header is no number, or not one that makes sense.
    """
    value = headers.get(TIMEOUT_HEADER)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= MAX_TIMEOUT_MS:
        detail = f"X-Request-Timeout-Ms has to be a whole number from 1 to {MAX_TIMEOUT_MS}."
        raise Unprocessable(
            "validation_failed", detail, field_errors=[FieldError("", "timeout_header", MAX_TIMEOUT_MS)]
        )
    return int(value)


def _priority(headers: Mapping[str, str]) -> Priority:
    """Who waits for the answer.

    Raises:
        Unprocessable: the header names no class there is.
    """
    priority = PRIORITIES.get(headers.get(PRIORITY_HEADER, "interactive"))
    if priority is None:
        detail = f"X-Request-Priority has to be one of: {', '.join(PRIORITIES)}."
        raise Unprocessable("validation_failed", detail, field_errors=[FieldError("", "priority_header")])
    return priority


def _check_quota(quota: Quota, client: str, now: float) -> None:
    wait_s = quota.take(client, now)
    if wait_s:
        detail = "This client makes more requests a second than it may."
        raise TooManyRequests("quota_exceeded", detail, retry_after=wait_s)
