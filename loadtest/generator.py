"""A load generator in one event loop: raw HTTP/1.1 on kept connections, open loop or closed.

Open loop means that requests are sent when their time has come, whether or not earlier ones were answered: a closed
loop slows down with the server and so hides what an overload does. Times count from when a request was due.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
RETRY = re.compile(rb"retry-after: *(\d+)", re.IGNORECASE)


class Lost(Exception):
    """The connection ended before the answer had come."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    head: bytes
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds; 0 where the answer names none."""
        found = RETRY.search(self.head)
        return float(found[1]) if found else 0.0


def payload(
    path: str, body: bytes, headers: Mapping[str, str] | None = None, method: str = "POST", close: bool = False
) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: swiftlet", f"Content-Length: {len(body)}"]
    named = {"content-type": "application/json"} | dict(headers or {}) | ({"connection": "close"} if close else {})
    lines += [f"{name}: {value}" for name, value in named.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection(asyncio.Protocol):
    """One kept connection; one request at a time."""

    def __init__(self) -> None:
        self.open = True
        self._buffer = b""
        self._bare = False  # whether the answer will have no body, whatever it says
        self._answer: asyncio.Future[Answer] | None = None
        self._transport: Any = None  # uvloop's transports are no asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end or self._answer is None or self._answer.done():
            return
        found = LENGTH.search(head)
        length = int(found[1]) if found and not self._bare else 0
        if len(rest) >= length:
            self._buffer = rest[length:]
            if b"connection: close" in head.lower():
                self.close()
            self._answer.set_result(Answer(int(head[9:12]), head, rest[:length]))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # asyncio calls it so
        self.open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost())

    async def ask(self, request: bytes) -> Answer:
        """Raises Lost where there is no answer."""
        if not self.open or self._transport is None:
            raise Lost
        self._answer = asyncio.get_running_loop().create_future()
        self._bare = request.startswith(b"HEAD ")
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hangs up."""
        self.open = False
        if self._transport is not None:
            self._transport.close()


class Client:
    """As many kept connections as requests are under way."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[Connection] = []

    async def ask(self, request: bytes) -> Answer:
        """Raises Lost or OSError; a caller who is cancelled hangs up."""
        connection = next(self._kept(), None) or await self.connect()
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.open:
            self._idle.append(connection)
        return answer

    def _kept(self) -> Iterator[Connection]:
        while self._idle:
            if (connection := self._idle.pop()).open:
                yield connection

    async def connect(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.port)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


async def open_loop(times: Iterable[float], send: Callable[[float], Awaitable[None]]) -> float:
    """Calls `send(due)`, due in seconds of `time.monotonic()`, at each of the times; all are done when it returns.

    Returns:
        How late the latest request was sent, in seconds: where that is much, the generator was the bottleneck.
    """
    started, worst, under_way = time.monotonic(), 0.0, set()
    for offset in times:
        due = started + offset
        if (wait := due - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        worst = max(worst, time.monotonic() - due)
        task = asyncio.ensure_future(send(due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return worst


async def closed_loop(callers: int, seconds: float, send: Callable[[float], Awaitable[None]]) -> None:
    """`callers` call `send(now)` again and again until the time is up."""
    ends = time.monotonic() + seconds

    async def call() -> None:
        while (now := time.monotonic()) < ends:
            await send(now)

    await asyncio.gather(*(call() for _ in range(callers)))
