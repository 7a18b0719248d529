"""A client's HTTP/1.1 connection, with limits on everything that it holds and on the time it takes.

Limits apply to every wait, to the sizes of heads and bodies and to the requests of a client in progress. Idle
connections lock nobody out. The gate answers each request in an asyncio task.

A connection is in one phase at a time:

    (HANDSHAKE ──▶) IDLE ──first byte──▶ HEAD ──▶ BODY ──▶ RESPONSE ──▶ IDLE …        any phase ──▶ CLOSING

The parser receives one request at a time. Later bytes wait unparsed until the response is complete and the connection
has its next turn. Thus memory holds at most one parsed request and one read of a connection.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import socket
import sys
import time
import urllib.parse
import uuid
from collections.abc import Callable, Hashable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import httptools
from starlette.responses import Response

from swiftlet_serve.errors import (
    Internal,
    InvalidRequest,
    RequestTimeout,
    SwiftletError,
    Unavailable,
    log_exception,
)
from swiftlet_serve.http.connections.connection_table import ConnectionTable, Verdict
from swiftlet_serve.http.connections.request_parser import RequestParser
from swiftlet_serve.http.gate.proxies import client_of, is_trusted
from swiftlet_serve.http.gate.request import Head, Request

log = logging.getLogger(__name__)

CLOSE: Final = (b"connection", b"close")
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
WRITE_BYTES: Final = 1 << 17
"""Most bytes of a response that one iteration of the event loop writes: the kernel takes 0.1 ms to copy them."""
COPIED_BYTES: Final = 1 << 12
"""Most bytes of a part that is copied behind the head, which takes less time than a second write."""
STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


class Phase(enum.Enum):
    HANDSHAKE = enum.auto()  # of TLS
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    RESPONSE = enum.auto()
    CLOSING = enum.auto()


HANDSHAKE, IDLE, HEAD, BODY, RESPONSE, CLOSING = Phase  # faster to look up than an enum's attributes


class Connection(asyncio.Protocol):
    """One client's connection. Uses a `RequestParser` and its turns of the `ReadScheduler`."""

    transport: asyncio.Transport

    def __init__(self, table: ConnectionTable) -> None:
        self.address = ""  # of the client, as limits count it
        self.is_proxy = False  # whether many clients share it
        self.client: Hashable = ""  # that takes turns with others: the address, or this connection of a proxy
        self.phase = IDLE
        self.unread = b""  # received during the response to an earlier request, or before this connection's turn
        self._offset = 0  # of the first unread byte
        self._request: Request | None = None  # the current one that the gate has let in, until its response is sent
        self._task: asyncio.Task[None] | None = None  # that answers it
        self._is_answering = False  # whether the task has begun, and thus finishes the request's record
        self._waits_for_turn = False  # whether the current request starts with this connection's next turn
        self.is_read_paused = False  # whether the kernel keeps what the client sends
        self._may_write = asyncio.Event()  # cleared while the client must read before more is written
        self._may_write.set()
        self._unsent = memoryview(b"")  # the rest of the current response
        self._keep_alive = True  # whether the connection stays open after the current response
        self._is_used = False  # whether a head has arrived
        self._verdict: Verdict | None = None  # None until the connection is in the table
        self._abort_handshake: Callable[[], object] = lambda: None
        self._table = table
        self._limits = table.limits
        self._loop = asyncio.get_running_loop()
        self._parser: RequestParser = None  # type: ignore[assignment]  # None before and after the connection
        self._socket: socket.socket | None = None
        self._is_last_request = False
        self._is_head_request = False
        # Times of the current request.
        self._first_read = 0.0  # when its first byte was read, on the loop's clock
        self._received = 0.0  # when its first byte arrived
        self._last_received = 0.0  # when the latest bytes of its head arrived
        self._lag_s = 0.0  # between the arrival of these bytes and their read
        # One timer per connection checks both deadlines from time to time. Setting a deadline thus costs nothing.
        self._deadline = math.inf
        self._write_deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    # Callbacks of the listener

    def begin_handshake(self, accepted: socket.socket, abort: Callable[[], object]) -> bool:
        """Counts a connection from its accept on. A refused connection gets its error after the handshake."""
        self._abort_handshake = abort
        with suppress(OSError):  # the client has gone
            self._set_client(str(accepted.getpeername()[0]))
        self._verdict = self._table.add(self)
        if self._verdict is Verdict.ABORT:
            self._table.remove(self)
            return False
        self.phase = HANDSHAKE
        if self._verdict is Verdict.ACCEPT:
            self._table.waiting[self] = None
        return True

    def end_handshake(self) -> None:
        """Forgets a connection whose handshake failed."""
        self._abort_handshake = lambda: None
        if self.phase is HANDSHAKE:
            self.phase = CLOSING
            self._table.remove(self)

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio's own is wider
        self.transport = transport
        self._parser = RequestParser(self._limits)  # not before, as a failed handshake breaks no cycles
        self._peer = client_address(transport)
        self._socket = transport.get_extra_info("socket")
        if self._verdict is None:
            self._set_client(self._peer)
            self._verdict = self._table.add(self)
        self.phase = IDLE
        if self._verdict is Verdict.ACCEPT:
            self._table.waiting[self] = None
            self._set_deadline(self._loop.time() + self._limits.request_timeout_s)
        elif self._verdict is Verdict.REFUSE:
            detail = "All connections of the server have a request in progress. Retry in one second."
            self._refuse(Unavailable("overloaded", detail, retry_after=1.0))
        else:
            transport.abort()

    def _set_client(self, host: str) -> None:
        self.address, self.is_proxy = client_of(host), is_trusted(host, self._limits.proxies)
        self.client = object() if self.is_proxy else self.address

    def pause_writing(self) -> None:
        self._may_write.clear()
        if self._write_deadline == math.inf:  # of the whole response, whose rest may follow
            self._write_deadline = self._loop.time() + self._limits.write_timeout_s

    def resume_writing(self) -> None:
        self._may_write.set()
        if self._unsent:
            self._loop.call_soon(self._write_more)
        else:
            self._write_deadline = math.inf

    def connection_lost(self, exc: Exception | None) -> None:
        self.phase, self._unsent = CLOSING, memoryview(b"")
        self._table.remove(self)
        self._drop_request()
        self._may_write.set()
        if exc is None:
            self.transport.close()
        if self._timer is not None:
            self._timer.cancel()
        # Breaks the reference cycles, which spares the garbage collector the work.
        self._parser.close()
        self._timer = self._task = self._parser = None  # type: ignore[assignment]  # None after the connection

    def data_received(self, data: bytes) -> None:
        """Schedules the read of a head. The rest of an admitted request is read at once."""
        if self.unread or self.phase is RESPONSE:
            self._keep(self.unread[self._offset :] + data, 0)
        elif self.phase is BODY:
            self._parse(data, 0)
        elif self.phase is not CLOSING:
            self.unread, self._offset = data, 0
            self._note_arrival()
            if self._table.read_scheduler.request_turn(self):
                self.read()
            else:
                self._table.waiting.pop(self, None)  # it waits for the server, and cannot be evicted

    def read(self) -> None:
        """Uses this connection's turn: starts the request that waits for it, or parses the unread bytes."""
        if self._waits_for_turn and self._request is not None:
            self._waits_for_turn = False
            self._create_task(self._request)
            return
        data, self.unread = self.unread, b""
        self._resume_reading()
        self._parse(data, self._offset)

    # Receiving

    def _note_arrival(self) -> None:
        self._lag_s = kernel_wait_s(self._socket)
        self._last_received = time.monotonic() - self._lag_s  # the loop's clock is fixed during an iteration

    def _keep(self, data: bytes, start: int) -> None:
        """Keeps the bytes behind the current request. The kernel keeps those that follow."""
        self.unread, self._offset = data, start
        if not self.is_read_paused:
            self.is_read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.is_read_paused:
            self.is_read_paused = False
            self.transport.resume_reading()

    def _parse(self, data: bytes, start: int) -> None:
        """Parses the current request. Bytes behind it wait until its response is complete and for the next turn."""
        try:
            start = self._parse_part(data, start)
            while start < len(data) and self.phase in (HEAD, BODY):
                start = self._parse_part(data, start)
        except SwiftletError as error:
            self._refuse(error)
        except httptools.HttpParserError:
            detail = "The request is not valid HTTP/1.1. Send a well-formed request."
            self._refuse(InvalidRequest("bad_framing", detail))
        except Exception as error:
            log_exception(log, "a request could not be read", error)
            self._refuse(Internal("internal", "The server failed unexpectedly. Its log has the cause."))
        if start < len(data) and self.phase in (IDLE, RESPONSE):
            self._keep(data, start)
            self._proceed()

    def _parse_part(self, data: bytes, start: int) -> int:
        """Parses the rest of the current head, or of its body, that `data[start:]` holds. Returns its end."""
        parser = self._parser
        if self.phase is BODY:
            try:
                end = parser.feed_body(data, start)
            finally:  # what comes before malformed framing may be too large
                self._receive_body(parser.take_body())
        else:
            end = self._parse_head(data, start)
            if parser.has_head:
                self._begin_request()
        if parser.is_complete and self.phase is BODY:  # and no response was the last one
            self._start_request()
        return end

    def _proceed(self) -> None:
        """Schedules the next request if it was pipelined, and otherwise lets the kernel deliver it."""
        if not self.unread:
            self._resume_reading()
        elif self.phase is IDLE:
            self._note_arrival()
            self._table.read_scheduler.schedule_pipelined(self)
            self._table.waiting.pop(self, None)  # as above

    def _parse_head(self, data: bytes, start: int) -> int:
        if self.phase is IDLE:
            self.phase = HEAD
            self._parser.start()
            self._first_read, self._received = self._loop.time(), self._last_received
            self._deadline = self._first_read + self._limits.head_timeout_s
            self._table.waiting.pop(self, None)
        self._table.waiting[self] = None
        return self._parser.feed_head(data, start)

    def _begin_request(self) -> None:
        """Passes the request to the gate, and sends its refusal if there is one."""
        parser, gate = self._parser, self._table.gate
        self._is_used, self._is_head_request = True, parser.method == b"HEAD"
        self._keep_alive = parser.keep_alive and not self._is_last_request
        begun = gate.begin(self._head())  # in the phase HEAD, in which an unexpected error still gets a response
        self.phase = BODY
        self._deadline = self._first_read + self._limits.request_timeout_s
        self._table.waiting.pop(self)
        waits = parser.expects_continue and parser.version == "1.1" and not parser.has_whole_body
        if isinstance(begun, Response):
            if waits:
                self._keep_alive = False  # the client may send the body or leave it out
            self._send_response(begun)
            return
        self._request, self._task, self._is_answering = begun, None, False
        if waits:
            self.transport.write(CONTINUE)

    def _receive_body(self, data: bytes) -> None:
        if self._request is not None:
            try:
                self._request.receive(data)
            except SwiftletError as error:
                self._send_response(self._table.gate.fail(self._request, error))

    def _start_request(self) -> None:
        """Answers the complete request. A page waits for its turn."""
        if self._request is None:  # it was refused
            self._become_idle()
            return
        self.phase = RESPONSE
        self._deadline = math.inf  # the request has its own deadline
        if self._request.route.runs_model:
            self._create_task(self._request)
        else:
            self._waits_for_turn = True
            self._table.read_scheduler.schedule_page(self)

    def _head(self) -> Head:
        parser = self._parser
        path = (httptools.parse_url(parser.target).path or b"/").decode("ascii")  # None in http://host
        return Head(
            parser.method.decode("ascii"),
            urllib.parse.unquote(path) if "%" in path else path,
            parser.headers,
            self._peer,
            self._received,
            self._lag_s,
            parser.has_whole_body,
        )

    # Responding

    def _create_task(self, request: Request) -> None:
        self._task = self._loop.create_task(self._answer(request))
        self._table.tasks.add(self._task)
        self._task.add_done_callback(self._table.tasks.discard)

    async def _answer(self, request: Request) -> None:
        self._is_answering = True
        response = await self._table.gate.answer(request)
        if not self._may_write.is_set():
            await self._may_write.wait()
        if response is not None and not request.is_disconnected:
            self._send_response(response)

    def _drop_request(self) -> None:
        """Notes that the current request, if there is one, can have no response any more."""
        request, self._request = self._request, None
        if request is None:
            return
        request.is_disconnected = True
        if self._task is not None:
            self._task.cancel()
        if not self._is_answering:  # a task that is cancelled before its first step never runs
            self._table.gate.abandon(request)

    def _send_response(self, response: Response) -> None:
        """Sends the response to the current request. If its body is incomplete, the rest is discarded."""
        self._request = None
        if CLOSE in response.raw_headers:
            self._keep_alive = False
        elif not self._keep_alive:
            response.raw_headers.append(CLOSE)
        self._write_response(response, without_body=self._is_head_request)
        self._go_on_writing()

    def _write_more(self) -> None:
        """Writes the next part of the current response, unless the client must read first."""
        if self._unsent and self._may_write.is_set():
            self._write_part()
            self._go_on_writing()

    def _write_part(self, head: bytes = b"") -> None:
        part, self._unsent = self._unsent[:WRITE_BYTES], self._unsent[WRITE_BYTES:]
        if len(part) > COPIED_BYTES and head:
            self.transport.write(head)
            head = b""
        self.transport.write(head + part if head else part)

    def _go_on_writing(self) -> None:
        """Schedules the next part of the response. After the last one, the response is complete."""
        if self._unsent:
            if self._may_write.is_set():  # otherwise `resume_writing` schedules it
                self._loop.call_soon(self._write_more)
            return
        if self._may_write.is_set():
            self._write_deadline = math.inf
        if not self._keep_alive:
            self._close(lingering=self.phase is BODY)
        if self.phase is CLOSING or self.transport.is_closing():
            return
        if self.phase is RESPONSE:
            self._become_idle()
        self._proceed()

    def _become_idle(self) -> None:
        self.phase = IDLE
        self._deadline = self._loop.time() + self._limits.idle_timeout_s
        self._table.waiting[self] = None
        if self._is_last_request:
            self._close()

    def _refuse(self, error: SwiftletError) -> None:
        """Responds to the current request with an error and closes the connection."""
        if self.phase is CLOSING:  # its last response is sent, and the rest of the body is malformed
            return
        if self.phase is BODY:
            if self._request is None:
                self._table.log_refusal(error, self._loop.time())
                self.transport.abort()  # a second response must not follow
                return
            self._drop_request()
        self._table.log_refusal(error, self._loop.time())
        response = self._table.gate.refuse_unread(error, uuid.uuid4().hex)
        response.raw_headers.append(CLOSE)
        self._write_response(response)
        self._close(lingering=True)

    def _write_response(self, response: Response, *, without_body: bool = False) -> None:
        headers = [*self._table.default_headers, *response.raw_headers]
        lines = [b"%b: %b\r\n" % header for header in headers]
        self._unsent = memoryview(b"" if without_body else response.body)
        self._write_part(b"".join([STATUS_LINES[response.status_code], *lines, b"\r\n"]))

    # Closing

    def is_idle(self, *, unused_too: bool) -> bool:
        """Returns whether no request is in progress.

        Args:
            unused_too: whether a connection that has not sent a byte counts as idle.
        """
        if self.phase in (HANDSHAKE, IDLE):
            return unused_too or self._is_used
        return self.phase is BODY and self._request is None

    def shutdown(self) -> None:
        """Closes the connection once its current request is answered. Closes an idle one at once."""
        self._is_last_request = True
        if self.phase is HANDSHAKE:
            self._abort_handshake()
        elif self.phase is IDLE and not self.unread:
            self._close()
        elif self.phase in (BODY, RESPONSE):
            self._keep_alive = False

    def evict(self) -> None:
        """Closes the connection to free its place. It must be waiting for its client."""
        if self.phase is HANDSHAKE:
            self._table.waiting.pop(self, None)
            self._abort_handshake()
        elif self.phase is IDLE:
            self._close()
        else:
            detail = "The server closed this connection to serve another client. Retry."
            self._refuse(Unavailable("overloaded", detail, retry_after=1.0))

    def end(self, *, at_once: bool) -> None:
        """Closes the connection in any phase: at once, or after the bytes of its response are sent."""
        if self.phase is HANDSHAKE:
            self._abort_handshake()
        elif at_once:
            self.transport.abort()
        else:
            if self._unsent:
                self.transport.write(self._unsent)
                self._unsent = memoryview(b"")
            self.transport.close()

    def _close(self, lingering: bool = False) -> None:
        """Closes the connection.

        The kernel resets a socket that is closed while the client sends, and the client may then miss the response.
        A lingering close therefore ends only the server's direction, and discards input until the client closes.
        """
        self.phase = CLOSING
        self.unread, self._waits_for_turn = b"", False
        self._table.waiting.pop(self, None)
        self._table.read_scheduler.cancel(self)
        if lingering and self.transport.can_write_eof() and not self.transport.is_closing():
            self._set_deadline(self._loop.time() + self._limits.linger_timeout_s)
            self._resume_reading()
            self.transport.write_eof()
        else:
            self._set_deadline(self._loop.time() + self._limits.write_timeout_s)
            self.transport.close()

    # Timeouts

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if self._timer is not None:
            self._timer.cancel()
        next_check = min(deadline, self._write_deadline, self._loop.time() + self._limits.shortest_timeout_s)
        self._timer = self._loop.call_at(next_check, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Acts on a passed deadline, and schedules the next check.

        The next check comes no later than the shortest timeout, so it misses no deadline that is set in the meantime.
        """
        now = self._loop.time()
        if self.transport.is_closing() and self.phase is not CLOSING:
            self.phase = CLOSING  # the last response is still being sent
            self._deadline = now + self._limits.write_timeout_s
        if now < min(self._deadline, self._write_deadline):
            self._set_deadline(self._deadline)
        elif self.unread and self.phase is not CLOSING and now < self._write_deadline:
            self._set_deadline(now + self._limits.shortest_timeout_s)  # it waits for the server, not for its client
        elif self.phase is CLOSING or now >= self._write_deadline:
            self.transport.abort()
        elif self.phase is IDLE:
            self._close()
        else:
            limit = self._limits.head_timeout_s if self.phase is HEAD else self._limits.request_timeout_s
            detail = f"The request did not arrive within {limit:g} seconds. Retry, and send it without pauses."
            self._refuse(RequestTimeout("receive_timeout", detail))


LAST_DATA_RECEIVED: Final = 52
"""The offset in Linux's `struct tcp_info` of the milliseconds since the last data arrived."""


def client_address(transport: asyncio.BaseTransport) -> str:
    """Returns the client's address; empty for a transport without an internet socket, or if the client has gone."""
    connected = transport.get_extra_info("socket")
    try:
        peer = None if connected is None else connected.getpeername()
    except OSError:
        return ""
    return str(peer[0]) if isinstance(peer, tuple) else ""


def kernel_wait_s(connected: socket.socket | None) -> float:
    """Returns how long the latest bytes waited in the kernel for the event loop, in seconds. Only Linux knows it."""
    if connected is None or sys.platform != "linux":
        return 0.0
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED + 4)
    return int.from_bytes(info[LAST_DATA_RECEIVED:], sys.byteorder) / 1000
