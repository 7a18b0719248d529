"""One side of the connection between a front and the coordinator."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from swiftlet_serve.errors import log_exception
from swiftlet_serve.fronts.messages import HEADER, MAX_BYTES, Kind

log = logging.getLogger(__name__)

Handler = Callable[[Kind, int, memoryview], None]
"""Handles a message: its kind, the number of its request, and its body. Raises any error if it is invalid."""


class Channel(asyncio.Protocol):
    """Sends and receives messages. All messages of one iteration of the event loop go out in one write.

    At most one PART is received in an iteration, which may take a millisecond.
    """

    def __init__(self, handle: Handler, on_lost: Callable[[], None]) -> None:
        """Creates a channel.

        Args:
            handle: called with each message.
            on_lost: called once, when the other side has closed the connection or has sent what is no valid message.
        """
        self._handle = handle
        self._on_lost = on_lost
        self._received = bytearray()  # the beginning of a message, or what waits for the next iteration
        self._is_waiting = False  # for the next iteration, to read on
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._is_lost = False

    @classmethod
    async def open(cls, end: socket.socket, handle: Handler, on_lost: Callable[[], None]) -> Channel:
        """Opens a channel over one end of a socket pair, on the running event loop."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(lambda: cls(handle, on_lost), sock=end)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports declare no base class

    def send(self, message: bytes) -> None:
        """Sends a message at the end of the iteration. Has no effect on a closed channel."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(message)

    def data_received(self, data: bytes) -> None:
        if self._received or self._is_waiting:
            self._received += data
            if self._is_waiting:
                return
            (size, _, _) = HEADER.unpack_from(self._received) if len(self._received) >= HEADER.size else (0, 0, 0)
            if HEADER.size <= size <= MAX_BYTES and len(self._received) < size:
                return  # of a long message, whose parts are joined once
            data, self._received = bytes(self._received), bytearray()
        view, at = memoryview(data), 0
        try:
            while len(data) - at >= HEADER.size and not self._is_lost:
                size, kind, number = HEADER.unpack_from(data, at)
                _check_size(size)
                if len(data) - at < size:
                    break
                self._handle(Kind(kind), number, view[at + HEADER.size : at + size])
                at += size
                if kind == Kind.PART:
                    self._wait()
                    break
        except Exception as error:  # the other side may send anything
            log_exception(log, "An invalid message ends the connection between processes", error)
            self._lose()
            return
        self._received = bytearray(view[at:])

    def _wait(self) -> None:
        """Reads on in the next iteration."""
        self._is_waiting = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_waiting = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the other side has ended, in any case
        self._lose()

    def close(self) -> None:
        """Closes the channel once all messages are sent. `on_lost` is not called any more."""
        self._is_lost = True
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _lose(self) -> None:
        if not self._is_lost:
            self.close()
            self._on_lost()

    def _flush(self) -> None:
        messages, self._outgoing = self._outgoing, []
        if messages and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(messages))


def _check_size(size: int) -> None:
    """Raises ValueError if no message has this length."""
    if not HEADER.size <= size <= MAX_BYTES:
        raise ValueError("The length of the message is wrong.")
