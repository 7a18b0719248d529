"""An HTTP/1.1 client for measurements: kept connections, one request at a time on each, no retries."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools


class ConnectionLost(Exception):
    """Raised when a connection ends before its response is complete."""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    reason: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def retry_after(self) -> float:
        """The seconds of the Retry-After header, or 0 without it."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() else 0.0


def request_bytes(
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    host: str = "swiftlet",
    close: bool = False,
) -> bytes:
    """Serialises a request. With `close`, it asks the server to close the connection."""
    fields = {"content-type": "application/json"} | {name.lower(): value for name, value in (headers or {}).items()}
    if close:
        fields["connection"] = "close"
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection(asyncio.Protocol):
    """One connection. The methods whose names begin with `on_` are called by the parser."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` is the largest body of a response. A larger one ends the connection."""
        self.open = True
        self._max_bytes = max_bytes
        self._transport: Any = None  # uvloop's transports are not subclasses of asyncio.Transport
        self._response: asyncio.Future[Response] | None = None

    async def send(self, request: bytes) -> Response:
        """Sends one request and returns its response.

        Raises:
            ConnectionLost: the connection ended first.
        """
        if not self.open or self._transport is None:
            raise ConnectionLost
        self._parser = httptools.HttpResponseParser(self)
        self._to_head = request.startswith(b"HEAD ")
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._response

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.close()  # these bytes belong to no request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._response is None or self._response.done():
            return
        if error is None and self._ends_with_connection:
            self._complete()
        else:
            self._response.set_exception(ConnectionLost())

    def on_message_begin(self) -> None:
        self._reason = ""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._ends_with_connection = False

    def on_status(self, reason: bytes) -> None:
        self._reason = reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._ends_with_connection = not self._headers.keys() & {"content-length", "transfer-encoding"}
        if self._to_head:
            self._complete()

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self._max_bytes:
            self._body.append(data)
        elif self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionLost())  # at once, since a part of a body is no response
            self.close()

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._complete()

    _ends_with_connection = False

    def _complete(self) -> None:
        if self._response is None or self._response.done():
            return
        status, body = self._parser.get_status_code(), b"".join(self._body)
        self._response.set_result(Response(status, self._reason, self._headers, body))
        if not self._parser.should_keep_alive():
            self.close()


class Client:
    """A pool of connections to one server: as many as requests are in flight."""

    def __init__(self, url: str, max_bytes: int = sys.maxsize) -> None:
        """Opens no connection yet. `max_bytes` is the largest body of a response, at which its connection ends."""
        self._max_bytes = max_bytes
        parts = urlsplit(url)
        self.host = parts.netloc
        self.prefix = parts.path.rstrip("/")  # a server may have its routes below a path
        self._address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[Connection] = []

    async def send(self, request: bytes) -> Response:
        """Sends one request over an idle connection or a new one. A cancelled call closes its connection.

        Raises:
            ConnectionLost: the connection ended first.
            OSError: no connection could be opened.
        """
        connection = next(self._kept(), None) or await self.connect()
        try:
            response = await connection.send(request)
        except BaseException:
            connection.close()
            raise
        if connection.open:
            self._idle.append(connection)
        return response

    def _kept(self) -> Iterator[Connection]:
        while self._idle:
            if (connection := self._idle.pop()).open:
                yield connection

    async def connect(self) -> Connection:
        """Opens a connection that does not belong to the pool."""
        host, port = self._address
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(self._max_bytes), host, port, ssl=self._tls)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
