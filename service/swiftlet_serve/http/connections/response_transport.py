"""The transport that an application's response is written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class ResponseConnection(Protocol):
    """The part of a connection that a response needs."""

    @property
    def response_started(self) -> bool: ...
    def write(self, data: bytes) -> None: ...
    def close_after_response(self) -> None: ...


class ResponseTransport:
    """Writes one response, with its head and the first part of its body in one system call.

    It implements the methods of `asyncio.Transport` that uvicorn's `RequestResponseCycle` calls. A system call is one
    of the most expensive parts of a response.
    """

    def __init__(self, connection: ResponseConnection, is_closing: Callable[[], bool]) -> None:
        self._connection = connection
        self._head: bytes | None = None  # None before the head, and empty once it is written
        self.is_closing = is_closing

    def write(self, data: bytes) -> None:
        if self._head is None and self._connection.response_started:
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._connection.write(head + data)
        else:  # a later part of the body, or 100 Continue before the head
            self._connection.write(data)

    def flush(self) -> None:
        """Writes a head that no body follows, as in the response to HEAD."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._connection.close_after_response()
