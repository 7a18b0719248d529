"""The calls that run in one worker process: one at a time on each of its connections, each with a time limit.

    ProcessExecutor ─▶ WorkerCalls ─▶ WorkerConnection × (cores + 1) ═══ socket pair ═══ a thread of the worker process

`messages` describes the bytes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Final, cast

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import BatchResult, WorkerLost
from swiftlet_serve.workers import messages

TICK_S: Final = 0.05  # resolution of the time limits of calls


class WorkerCalls:
    """Sends calls to a worker process over idle connections, and finds those that exceed their time limits."""

    def __init__(
        self, on_failure: Callable[[], None], on_overdue: Callable[[Collection[WorkerConnection]], None]
    ) -> None:
        """Creates the calls of a process. Both functions must call `abort`.

        Args:
            on_failure: called when the process closes a connection or sends an invalid result.
            on_overdue: called with the connections whose calls exceeded their time limits.
        """
        self._on_failure = on_failure
        self._on_overdue = on_overdue
        self._ids = itertools.count()
        self._connections: list[WorkerConnection] = []
        self._idle: list[WorkerConnection] = []
        self._ticks_left: dict[WorkerConnection, int] = {}  # until the connection's call is overdue
        self._ticking = False

    @property
    def running(self) -> Collection[WorkerConnection]:
        """The connections whose calls run."""
        return set(self._ticks_left)

    async def connect(self, end: socket.socket) -> None:
        """Attaches a connection to the running event loop."""
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: WorkerConnection(self._on_result, self._on_failure), sock=end
        )
        self._connections.append(connection)
        self._idle.append(connection)

    def run(self, model: int, encodings: Sequence[Encoding], timeout_s: float) -> asyncio.Future[BatchResult]:
        """Sends a batch over an idle connection. Requires at least one idle connection.

        The future fails with `WorkerLost` if the process dies, is killed, exceeds the time limit or sends an invalid
        result.
        """
        id_ = next(self._ids)
        message = messages.pack_call(id_, model, encodings)
        connection = self._idle.pop()
        self._ticks_left[connection] = math.ceil(timeout_s / TICK_S) + 1  # the current tick may be almost over
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return connection.send(message, id_, len(encodings))

    def abort(self, suspects: Collection[WorkerConnection]) -> None:
        """Closes all connections. Running calls fail with `WorkerLost`, as suspects on the connections named."""
        self._ticks_left.clear()
        for connection in self._connections:
            connection.abort(suspect=connection in suspects)

    def _on_result(self, connection: WorkerConnection) -> None:
        del self._ticks_left[connection]
        self._idle.append(connection)

    def _tick(self) -> None:
        """Advances the time limits of all running calls by one tick.

        Counted ticks, unlike a clock, do not advance while this process or the machine is suspended.
        """
        self._ticking = False
        for connection in self._ticks_left:
            self._ticks_left[connection] -= 1
        if overdue := {connection for connection, ticks in self._ticks_left.items() if ticks < 0}:
            self._on_overdue(overdue)
        elif self._ticks_left:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class WorkerConnection(asyncio.Protocol):
    """Sends one call at a time to the worker, and receives its result."""

    def __init__(self, on_result: Callable[[WorkerConnection], None], on_failure: Callable[[], None]) -> None:
        """Creates a connection.

        Args:
            on_result: called when a call has ended and the connection is idle again.
            on_failure: called when the worker closes the connection or sends an invalid result. Must call `abort`.
        """
        self._on_result = on_result
        self._on_failure = on_failure
        self._received = bytearray()
        self._call = 0, 0  # id and number of sequences
        self._result: asyncio.Future[BatchResult] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports declare no base class

    def send(self, message: bytes, id_: int, size: int) -> asyncio.Future[BatchResult]:
        """Sends a call of `size` sequences. The future fails with `WorkerLost` if the connection is aborted."""
        self._call, self._result = (id_, size), asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._result

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < messages.HEADER_BYTES:
            return
        missing = messages.HEADER_BYTES + messages.body_bytes(self._received) - len(self._received)
        if missing > 0 and self._result is not None:
            return
        received = self._decode() if missing == 0 else None
        if received is None or self._result is None:
            self._on_failure()
            return
        result, self._result, self._received = self._result, None, bytearray()
        self._on_result(self)
        if not result.done():
            result.set_result(received)

    def _decode(self) -> BatchResult | None:
        """Returns the received result, or None if it does not match the call."""
        with suppress(ValueError, IndexError, struct.error):
            id_, result = messages.unpack_result(memoryview(self._received)[messages.HEADER_BYTES :])
            if (id_, len(result.outcomes)) == self._call:
                return result
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the worker never closes a connection
        self._on_failure()

    def abort(self, *, suspect: bool) -> None:
        """Closes the connection. A running call fails with `WorkerLost(suspect)`."""
        if self._result is not None and not self._result.done():
            self._result.set_exception(WorkerLost(suspect=suspect))
        self._result = None
        self._transport.abort()
