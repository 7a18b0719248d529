"""One call: its path and metadata as a request's head, and a response as its message, status and trailing metadata."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

import grpc
from starlette.responses import Response

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.gate.gate import TIMEOUT_HEADER, Gate
from swiftlet_serve.http.gate.request import Head, Request
from swiftlet_serve.http.wording import sentence
from swiftlet_serve.settings import MAX_TIMEOUT_MS

Context = grpc.aio.ServicerContext[Any, Any]

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
        b"x-receipt",
        b"x-request-id",
        b"x-truncated",
    }
)
"""Headers of a response that become trailing metadata. Each costs 4 µs. No header repeats the times."""


def render_error(error: SwiftletError, _: str) -> Response:
    """Returns an error as text. Its code and the time of a retry become trailing metadata."""
    headers = problem_details.headers(error) | {"error-code": error.code}
    if error.retry_after is not None:
        headers["grpc-retry-pushback-ms"] = f"{1000 * error.retry_after:.0f}"  # clients with a retry policy obey it
    return Response(sentence(error), error.status, headers)


class Caller:
    """Runs calls as requests of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def run(self, path: str, message: bytes, context: Context) -> bytes:
        """Returns the message that answers a call.

        Raises:
            grpc.aio.AbortError: the call failed. The context has its status.
            asyncio.CancelledError: the client has gone, or its deadline has passed.
        """
        request = self._gate.begin(_head(path, context))
        response = request if isinstance(request, Response) else await self._answer(request, message)
        metadata = tuple(_metadata(response))
        if response.status_code != 200:
            await context.abort(STATUSES[response.status_code], bytes(response.body).decode(), metadata)
        context.set_trailing_metadata(metadata)
        return bytes(response.body)

    async def _answer(self, request: Request, message: bytes) -> Response:
        request.body, request.client_cancels = message, True
        response = await self._gate.answer(request)
        if response is None:
            raise asyncio.CancelledError
        return response


def _head(path: str, context: Context) -> Head:
    """Returns the head of a call. gRPC is HTTP/2: a call has all parts of a head."""
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
        if not name.startswith("content-")  # HTTP's words for a body, and not the message's: gRPC has its own coding
    ]
    remaining_s = context.time_remaining()
    if remaining_s is not None:
        timeout_ms = min(max(1, int(1000 * remaining_s)), MAX_TIMEOUT_MS)
        asked = dict(reversed(headers)).get(TIMEOUT_HEADER.encode())
        is_later = asked is not None and WHOLE_NUMBER.fullmatch(asked) and timeout_ms < int(asked) <= MAX_TIMEOUT_MS
        if asked is None or is_later:  # the gate refuses one that is invalid
            headers.insert(0, (TIMEOUT_HEADER.encode(), b"%d" % timeout_ms))  # the first of equal names counts
    return Head("POST", path, headers, _address(context.peer()), time.monotonic(), has_whole_body=True)


def _address(peer: str) -> str:
    """Returns the address of a peer such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000; empty for other peers."""
    family, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if family in ("ipv4", "ipv6") else ""


def _metadata(response: Response) -> Iterator[tuple[str, str]]:
    for name, value in response.raw_headers:
        if name in METADATA:
            yield name.decode(), value.decode("latin-1")
