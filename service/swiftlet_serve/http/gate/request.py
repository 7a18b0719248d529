"""A request on its way through the gate, over any transport, and the route that answers it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from swiftlet_serve.errors import (
    InvalidRequest,
    PayloadTooLarge,
    SwiftletError,
    UnsupportedMediaType,
    deadline_exceeded,
)
from swiftlet_serve.http import problem_details
from swiftlet_serve.inference.catalog import ANY, VersionChoice
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Priority

WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""The codings of compressed bodies, as zlib numbers them."""

JSON: Final = "application/json"

RenderError = Callable[[SwiftletError, str], Response]
"""Makes the response to a failed request from its error and the ID of the request."""

Respond = Callable[["Request"], Awaitable[Response]]
"""Returns the response to a request, or raises SwiftletError."""

Describe = Callable[[], Mapping[str, Any]]
"""Returns the description of a route, as arguments of FastAPI's routes. It is called for the first /openapi.json."""


class Head(NamedTuple):
    """The parts of a request that a transport knows before it reads the body."""

    method: str
    path: str
    """Decoded, and without the path that an application is mounted at."""
    headers: Sequence[tuple[bytes, bytes]]
    """In their order. The names are in lower case."""
    peer: str
    """The address of the connection's other end."""
    received: float
    """When the first byte arrived, in seconds of `time.monotonic()`."""
    lag_s: float = 0.0
    """The time between the arrival of the request and its read. The response may be delayed as long."""
    has_whole_body: bool = False
    """Whether the body has arrived, too."""
    mounted_at: str = ""
    """The path that the application is mounted at."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route of an application."""

    method: str
    """GET also means HEAD, with the same headers. The transport leaves out the body."""
    path: str
    """The path, with the names of its parameters in braces."""
    respond: Respond
    runs_model: bool = False
    """Whether its requests have deadlines and priorities, count as work and need admission."""
    reads_body: bool = False
    """Whether it reads the body. The body of other requests is discarded."""
    json_only: bool = False
    """Whether bodies must be declared as JSON."""
    max_body_bytes: int | None = None
    """The maximum size of a body; None for the maximum of the settings."""
    public: bool = False
    """Whether it needs no API key."""
    advice: str = ""
    """An alternative to POST, for a route of another method that clients post to by mistake."""
    render_error: RenderError = problem_details.render
    describe: Describe | None = None
    """Returns the description in /openapi.json; None leaves the route out."""


@dataclass(slots=True, eq=False)
class Request:
    """A request that the gate has let in."""

    head: Head
    headers: Mapping[str, str]
    """The first of equal names, which are in lower case."""
    record: RequestRecord
    route: Route
    parameters: Mapping[str, str]
    """The parameters of the path."""
    render_error: RenderError
    """Makes the response if the request fails."""
    max_body_bytes: int
    body: bytearray | bytes
    deadline: Deadline = math.inf
    """The deadline of the response, in seconds of `time.monotonic()`. Only requests that run a model have one."""
    priority: Priority = "interactive"
    version: VersionChoice = ANY
    is_disconnected: bool = False
    """Whether the client has gone. A transport sets it before it cancels the answer."""
    client_cancels: bool = False
    """Whether a cancelled answer means that the client has gone, as with gRPC, and not that the server shuts down."""

    @property
    def response_deadline(self) -> Deadline:
        """The time at which the response must be ready in order to be sent by the deadline."""
        return self.deadline - self.head.lag_s

    def check_deadline(self, now: float) -> None:
        """Raises DeadlineExceeded if the deadline has passed."""
        if now >= self.deadline:
            raise deadline_exceeded()

    def receive(self, data: bytes) -> None:
        """Takes the next part of the body. A route that reads no body discards it.

        Raises:
            PayloadTooLarge: the body is larger than `max_body_bytes`.
        """
        if self.route.reads_body:
            self.body += data
            if len(self.body) > self.max_body_bytes:
                raise _too_large(self.max_body_bytes)

    def check_body_headers(self) -> None:
        """Checks what the headers declare about the body. The transport closes the connection after an error.

        Raises:
            UnsupportedMediaType: the body is compressed in another way than with gzip or deflate. On a route for JSON
                only: it is compressed, or not declared as JSON in UTF-8.
            PayloadTooLarge: the declared size exceeds `max_body_bytes`.
        """
        coding, json_only = _coding(self.headers), self.route.json_only
        if coding != "identity" and (json_only or coding not in WINDOW_BITS):
            detail = "This route does not accept bodies with this Content-Encoding. Send the body without one."
            accepted = "identity" if json_only else "gzip, deflate, identity"
            raise UnsupportedMediaType(
                "unsupported_encoding", detail, headers={"accept-encoding": accepted, "connection": "close"}
            )
        if json_only and (media_type := self.headers.get("content-type", JSON)) != JSON:  # the usual one
            _check_media_type(media_type)
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and float(declared) > self.max_body_bytes:  # int refuses numbers of very many digits
            raise _too_large(self.max_body_bytes)

    def decompress(self) -> None:
        """Removes the compression of a complete body. Never makes more than `max_body_bytes` of it.

        Raises:
            InvalidRequest: the body is not compressed as its headers declare.
            PayloadTooLarge: the decompressed size exceeds `max_body_bytes`.
        """
        coding = _coding(self.headers)
        if coding == "identity" or not self.route.reads_body:
            return
        decompressor = zlib.decompressobj(WINDOW_BITS[coding])
        try:
            whole = decompressor.decompress(self.body, self.max_body_bytes + 1)
        except zlib.error:
            whole = b""
        if len(whole) > self.max_body_bytes:
            raise _too_large(self.max_body_bytes)
        if not decompressor.eof or decompressor.unused_data:
            detail = "The body is not compressed as its Content-Encoding declares, or is incomplete."
            raise InvalidRequest("bad_framing", detail)
        self.body = whole


def _too_large(max_bytes: int) -> PayloadTooLarge:
    detail = f"The body is larger than {max_bytes} bytes. Send a smaller one, or split the request."
    return PayloadTooLarge("body_too_large", detail, headers={"connection": "close"})


def _coding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _check_media_type(value: str) -> None:
    media_type, *parameters = value.lower().split(";")
    charsets = {name.strip().removeprefix("charset=").strip('"') for name in parameters if name.strip()}
    if media_type.strip() != JSON or not charsets <= {"utf-8", "utf8"}:
        detail = "The Content-Type is not supported. Send application/json in UTF-8."
        raise UnsupportedMediaType(
            "unsupported_media_type", detail, headers={"accept": "application/json", "connection": "close"}
        )
