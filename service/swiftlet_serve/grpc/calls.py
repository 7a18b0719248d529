"""One call: its path and metadata as a request's head, and a response as its message, status and trailing metadata."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import grpc
from starlette.responses import Response
from starlette.types import Scope

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.gate.request_guard import MAX_TIMEOUT_MS, TIMEOUT_HEADER
from swiftlet_serve.http.gate.request_tracker import RequestTracker
from swiftlet_serve.http.wording import sentence

Context = grpc.aio.ServicerContext[Any, Any]
Respond = Callable[[Scope, bytes], Awaitable[Response]]
"""Returns the response to a call with this scope and message. Raises SwiftletError."""

STATUSES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""The gRPC status of each HTTP status."""
WHOLE_NUMBER: Final = re.compile(rb"[0-9]{1,6}")
METADATA: Final = frozenset(
    {
        b"error-code",
        b"grpc-retry-pushback-ms",
        b"retry-after",
        b"server-timing",
        b"www-authenticate",
        b"x-compute-tokens",
        b"x-input-tokens",
        b"x-request-id",
        b"x-truncated",
    }
)
"""Headers of a response that become trailing metadata. Each costs 4 µs, so the times are not given twice."""


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error as text. Its code and the time of a retry become trailing metadata."""
    headers = problem_details.headers(error) | {"error-code": error.code}
    if error.retry_after is not None:
        headers["grpc-retry-pushback-ms"] = f"{1000 * error.retry_after:.0f}"  # clients with a retry policy obey it
    return Response(sentence(error), error.status, headers)


class Caller:
    """Runs calls as requests of the tracker."""

    def __init__(self, tracker: RequestTracker) -> None:
        self._tracker = tracker

    async def run(self, path: str, respond: Respond, message: bytes, context: Context) -> bytes:
        """Returns the message that answers a call.

        Raises:
            grpc.aio.AbortError: the call failed. The context has its status.
        """
        scope = _scope(path, context)
        response = self._tracker.begin(scope) or await self._run(scope, respond, message)
        metadata = tuple(_metadata(response))
        if response.status_code != 200:
            await context.abort(STATUSES[response.status_code], bytes(response.body).decode(), metadata)
        context.set_trailing_metadata(metadata)
        return bytes(response.body)

    async def check(self, path: str, context: Context) -> None:
        """Checks a call that is not recorded further.

        Raises:
            grpc.aio.AbortError: the API key is missing or unknown.
        """

        async def respond(_: Scope, __: bytes) -> Response:
            return Response()

        await self.run(path, respond, b"", context)

    async def _run(self, scope: Scope, respond: Respond, message: bytes) -> Response:
        record = scope["state"]["record"]
        try:
            response = await respond(scope, message)
        except asyncio.CancelledError:  # the client has gone, or its deadline has passed
            self._tracker.finish(record, scope, None)
            raise
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of a library in Rust, which is no Exception
            response = self._tracker.error_response(scope, error)
        self._tracker.add_headers(record, response.raw_headers)
        self._tracker.finish(record, scope, response.status_code)
        return response


def _scope(path: str, context: Context) -> Scope:
    """Returns the ASGI scope of a call. gRPC is HTTP/2, so a call has all of its parts."""
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]
    left_s = context.time_remaining()
    if left_s is not None:
        timeout_ms = min(max(1, int(1000 * left_s)), MAX_TIMEOUT_MS)
        asked = dict(reversed(headers)).get(TIMEOUT_HEADER.encode())
        is_later = asked is not None and WHOLE_NUMBER.fullmatch(asked) and timeout_ms < int(asked) <= MAX_TIMEOUT_MS
        if asked is None or is_later:  # the guard refuses one that is invalid
            headers.insert(0, (TIMEOUT_HEADER.encode(), b"%d" % timeout_ms))  # the first of equal names counts
    return {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "client": _address(context.peer()),
        "state": {"has_whole_body": True},
    }


def _address(peer: str) -> tuple[str, int] | None:
    """Returns the host and port of a peer such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    family, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if family in ("ipv4", "ipv6") else None


def _metadata(response: Response) -> Iterator[tuple[str, str]]:
    for name, value in response.raw_headers:
        if name in METADATA:
            yield name.decode(), value.decode("latin-1")
