"""One connection to a worker process. It carries one call at a time."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from swiftlet_serve.types import BatchResult, WorkerLost
from swiftlet_serve.workers import messages


class WorkerConnection(asyncio.Protocol):
    """Sends a call to the worker and receives its result."""

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
