"""HTTP/1.1 as clients that are not our own get it: with deadlines and bounds on all that a connection may hold.

uvicorn's protocol over httptools is the base. httptools refuses every malformed framing tried on it, where h11 answers
some of them, and it takes a body in thousands of chunks without stalling the loop. What uvicorn 0.54 lacks is added
here. It waits for ever for the rest of a request, and for a client that does not read. It takes heads of any size,
several Hosts or none, and as many pipelined requests as arrive in one read. It takes trailers for headers, and the body
of a request that offers an upgrade for the next request. Its own errors are plain text. And its one bound on
connections counts the idle ones, so that a flood of those shuts everybody out.

A connection is in one phase at a time:

    IDLE ──first byte──▶ HEAD ──▶ BODY ──▶ ANSWER ──▶ IDLE ...        any ──▶ CLOSING

The parser is fed one request at a time. What comes while that one is answered is left unread, so that nobody has more
than one request parsed, and little more than one read's bytes waiting.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import re
import socket
import sys
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import httptools
from starlette.responses import Response
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from swiftlet_serve.service.errors import (
    HeadersTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    RequestTimeout,
    SwiftletError,
    Unavailable,
    UriTooLong,
)
from swiftlet_serve.service.http import problem_details
from swiftlet_serve.service.http.limits import Limits
from swiftlet_serve.service.http.proxies import is_trusted
from swiftlet_serve.service.http.read_scheduler import ReadScheduler

log = logging.getLogger(__name__)

CLOSE: Final = (b"connection", b"close")
END: Final = b"\r\n\r\n"
"""What every head ends with, and every chunked body: reads are cut there, and no piece has parts of two requests."""

LAST_DATA_RECEIVED: Final = 52
"""Where in Linux's `struct tcp_info` the milliseconds are since the last bytes came."""

HOST: Final = re.compile(rb"[A-Za-z0-9._~%\[\]:-]*")
LOG_EVERY_S: Final = 10.0


class Room:
    """What the connections of one server share: the places, who may have to give up theirs, and one line of log."""

    def __init__(self, refused: Callable[[str], None]) -> None:
        """`refused` is told the code of every error that is answered here."""
        self.refused = refused
        self.waiting: OrderedDict[Connection, None] = OrderedDict()  # for their client's next head; the longest first
        self.held: Counter[str] = Counter()  # connections, by their clients' addresses
        self.read_scheduler = ReadScheduler()
        self._refused: Counter[str] = Counter()
        self._tell_at = -math.inf

    def tell(self, error: SwiftletError, now: float) -> None:
        """Logs an error's code, at most one line in a while; the next one has what was left out."""
        self.refused(error.code)
        self._refused[error.code] += 1
        if now >= self._tell_at:
            level = logging.INFO if error.status < 500 else logging.WARNING
            counts = ", ".join(f"{code} ({count})" for code, count in sorted(self._refused.items()))
            log.log(level, "Requests refused before the application saw them: %s", counts)
            self._refused.clear()
            self._tell_at = now + LOG_EVERY_S


class Phase(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    ANSWER = enum.auto()
    CLOSING = enum.auto()


IDLE, HEAD, BODY, ANSWER, CLOSING = Phase  # a class's attribute takes a while to look up where it is an enum's
RECEIVING: Final = (IDLE, HEAD, BODY)


def limited(
    limits: Limits,
    refused: Callable[[str], None] = lambda _: None,
    refuse: Callable[[Scope], Response | None] = lambda _: None,
) -> type[Connection]:
    """The protocol of one server, for `uvicorn.Config(http=...)`.

    `refused` as in `Room`; `refuse` is asked for an answer to each request whose head is good, before the application.
    """
    return type("Limited", (Connection,), {"limits": limits, "room": Room(refused), "refuse": staticmethod(refuse)})


class Connection(HttpToolsProtocol):
    """One client's connection."""

    limits: ClassVar[Limits]
    room: ClassVar[Room]
    refuse: ClassVar[staticmethod[[Scope], Response | None]]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.url = b""
        self._phase = IDLE
        self._last = False  # whether the request under way is the last
        self._address = ""  # of the client
        self._socket: Any = None  # where the system tells of it how long bytes have waited
        self._began = 0.0  # when its first byte was read
        self.unread = b""  # what has come, and waits for its turn to be read
        self._came = 0.0  # when the last bytes of a head came, which is earlier than they were read
        self._lag_s = 0.0  # that the event loop took to take them
        self._received = 0.0  # when the first of the request did
        self._head_bytes = 0
        self._tail = b""  # the last bytes of a head or a chunked body, since its end may come in two reads
        self._body_bytes: int | None = None  # still to come; None: it is chunked
        self._behind_bytes = 0  # that came with the last of its head
        self._framing_bytes = 0  # since the last byte of a chunked body that is content
        self._ahead = b""  # what came while a request was answered
        # One timer per connection: it looks at the deadlines now and then, so that setting one costs nothing.
        self._due = math.inf
        self._write_due = math.inf
        self._timer: asyncio.TimerHandle | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket") if sys.platform == "linux" else None
        self._address = self.client[0] if self.client else ""
        self.room.held[self._address] += 1
        taken, most = len(self.connections), self.limits.connections
        if self._has_its_share():
            fits, answered = self._take_place(own=True), most * 7 // 8
        else:
            fits, answered = taken <= most or self._take_place(), most * 5 // 4
        if fits:
            self.room.waiting[self] = None
            self._set_due(self.loop.time() + self.limits.receipt_s)
        elif taken <= answered:
            detail = "The server has as many connections as it can hold, and each has a request under way."
            self._refuse(Unavailable("overloaded", detail, retry_after=1.0))
        else:
            transport.abort()  # so many are being refused that a sentence for each would cost what is left of files

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_due = self.loop.time() + self.limits.write_s

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_due = math.inf

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._phase = CLOSING
        self.room.waiting.pop(self, None)
        self.room.read_scheduler.drop(self)
        self.room.held[self._address] -= 1
        if not self.room.held[self._address]:
            del self.room.held[self._address]
        if self._timer is not None:
            self._timer.cancel()
        # They know this object, and would keep it.
        self._timer = self.cycle = None  # type: ignore[assignment]  # uvicorn's has none at first, and does not say so

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Takes what has come. A head waits for its turn; the rest of a request that was let in does not."""
        if self._phase not in (IDLE, HEAD):
            self._parse(data)
        elif self.unread:
            self.unread += data
            self.flow.pause_reading()
        else:
            self.unread = data
            self._lag_s = self._waited_s()
            self._came = time.monotonic() - self._lag_s  # the loop's own clock stands still during a turn
            self.room.read_scheduler.put(self)
            if self.unread:
                self.room.waiting.pop(self, None)  # it is not the client who keeps us waiting

    def read(self) -> None:
        """Its turn has come."""
        data, self.unread = self.unread, b""
        self.flow.resume_reading()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parses what belongs to the request being received. What follows it waits until that one is answered."""
        start = 0
        try:
            while start < len(data) and self._phase in RECEIVING:
                start = self._read_body(data, start) if self._phase is BODY else self._read_head(data, start)
        except SwiftletError as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a callback raised
            unreadable = InvalidRequest("bad_framing", "The request is not well-formed HTTP/1.1.")
            self._refuse(cause if isinstance(cause, SwiftletError) else unreadable)
        else:
            if self._phase is ANSWER and start < len(data):
                self._ahead += data[start:]
                self.flow.pause_reading()

    def _read_head(self, data: bytes, start: int) -> int:
        """Feeds the parser a head, or what has come of it, and says how far that was.

        Raises:
            UriTooLong, HeadersTooLarge: there is more of it than there may be.
        """
        if self._phase is IDLE:
            self._phase = HEAD
            self._head_bytes, self._tail = 0, b""
            self._began, self._received = self.loop.time(), self._came
            self._due = self._began + self.limits.head_s
            self.room.waiting.pop(self, None)
        self.room.waiting[self] = None
        end = self._end(data, start)
        end = min(end, start + self.limits.head_bytes - self._head_bytes)
        part = data[start:end]
        self._behind_bytes = len(data) - end
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            pass  # an offer that is not taken: the request is one as any other
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _UpgradeOffered):
                raise
            self._decline()
        if self._phase is HEAD:
            self._head_bytes += len(part)
            self._tail = (self._tail + part[-3:])[-3:]
            if self._head_bytes >= self.limits.head_bytes:
                if len(self.url) > self.limits.target_bytes:
                    raise self._target_too_long()
                raise HeadersTooLarge("headers_too_large", f"A head has at most {self.limits.head_bytes} bytes.")
        return end

    def _waited_s(self) -> float:
        """How long ago the last bytes came to this machine: the event loop may have had no time for them."""
        if self._socket is None:
            return 0.0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED + 4)
        return int.from_bytes(info[LAST_DATA_RECEIVED:], sys.byteorder) / 1000

    def _read_body(self, data: bytes, start: int) -> int:
        """Feeds the parser a body, or what has come of it, and says how far that was.

        Raises:
            HeadersTooLarge: a chunked body's framing or trailers have as many bytes as a head may have.
        """
        if self._body_bytes is None:
            end = self._end(data, start)
            self._tail = (self._tail + data[max(start, end - 3) : end])[-3:]
        else:
            end = min(len(data), start + self._body_bytes)
            self._body_bytes -= end - start
        self._framing_bytes += end - start
        self.parser.feed_data(data[start:end])
        if self._phase is BODY:
            if self._framing_bytes > self.limits.head_bytes:
                raise HeadersTooLarge("headers_too_large", f"Trailers have at most {self.limits.head_bytes} bytes.")
            if len(self.cycle.body) > HIGH_WATER_LIMIT and not self.cycle.response_complete:
                self.flow.pause_reading()
            self.cycle.message_event.set()
        return end

    def _end(self, data: bytes, start: int) -> int:
        """Where a head, or a chunked body, may end; or how much there is."""
        if self._tail:
            straddling = (self._tail + data[start : start + 3]).find(END)
            if straddling >= 0:
                return start + straddling + len(END) - len(self._tail)
        end = data.find(END, start)
        return end + len(END) if end >= 0 else len(data)

    def _decline(self) -> None:
        """Has the head of a request with a body read again, without its offer of an upgrade.

        The parser takes what follows the offer for another protocol, and would read the body as the next request.
        Java's own client makes one (h2c) with whatever it posts.
        """
        first = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"\r\n".join([first, *lines]) + END)

    # What the parser tells

    def on_headers_complete(self) -> None:
        self._check_head()
        if self._body_bytes != 0 and self.parser.should_upgrade():
            raise _UpgradeOffered
        super().on_headers_complete()
        whole = self._body_bytes is not None and self._body_bytes <= self._behind_bytes
        self.scope["state"].update(received=self._received, lag_s=self._lag_s, whole=whole)  # for the gate
        self.cycle.transport = _Outlet(self)  # type: ignore[assignment]  # it has what a cycle uses
        self.headers = []  # the request has its list; trailers go into this one, which nobody reads
        self._phase = BODY
        self._due = self._began + self.limits.receipt_s
        self._tail = b""
        self._framing_bytes = 0
        self.room.waiting.pop(self)
        if self._last:
            self.cycle.keep_alive = False
        refusal = self.refuse(cast(Scope, self.scope))
        if refusal is None:
            super()._start_asgi_task(self.cycle, self.app)
        else:
            self._answer(refusal)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Does not, when uvicorn says so: `on_headers_complete` does, unless the head alone decides the answer."""

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        if not self.cycle.response_complete:
            self.cycle.body += body

    def on_message_complete(self) -> None:
        if self.cycle.response_complete:
            self._rest()
        else:
            self.cycle.more_body = False
            self.cycle.message_event.set()
            self._phase = ANSWER
            self._due = math.inf  # the application has its own

    def _check_head(self) -> None:
        """Raises what is wrong in a head that the parser lets pass, and finds out how long the body is."""
        limits, fields = self.limits, dict(self.headers)
        repeated = len(fields) < len(self.headers)
        if len(self.url) > limits.target_bytes:
            raise self._target_too_long()
        if len(self.headers) > limits.headers:
            raise HeadersTooLarge("headers_too_large", f"A request has at most {limits.headers} headers.")
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise InvalidRequest("bad_framing", "HTTP/1.1 and 1.0 are spoken here.")
        host = fields.get(b"host", None if version == "1.1" else b"")
        if host is None or not HOST.fullmatch(host) or (repeated and self._count(b"host") > 1):
            raise InvalidRequest("bad_framing", "A request has exactly one Host.")
        if not self.url.startswith(b"/"):
            self._check_form(host)
        coding = fields.get(b"transfer-encoding")
        if coding is None:
            # The parser has seen to it that this is a number, and the only one.
            self._body_bytes = int(fields.get(b"content-length", 0))
        elif coding.lower() == b"chunked" and version == "1.1" and self._count(b"transfer-encoding") == 1:
            self._body_bytes = None
        else:
            raise InvalidRequest("bad_framing", "The only transfer coding read here is chunked, in HTTP/1.1.")

    def _count(self, name: bytes) -> int:
        return sum(header[0] == name for header in self.headers)

    def _target_too_long(self) -> UriTooLong:
        return UriTooLong("uri_too_long", f"An address has at most {self.limits.target_bytes} bytes.")

    def _check_form(self, host: bytes) -> None:
        """Raises what is wrong in a target that is no path. Absolute ones are what clients send to proxies."""
        if self.parser.get_method() == b"CONNECT":
            detail = "This address does not take that method."
            raise MethodNotAllowed("method_not_allowed", detail, headers={"allow": "GET, POST"})
        scheme, _, rest = self.url.partition(b"://")
        absolute = scheme.lower() in (b"http", b"https") and rest.partition(b"/")[0].lower() == host.lower()
        if self.url != b"*" and not absolute:
            raise InvalidRequest("bad_framing", "The address is neither a path nor one at the request's Host.")

    # Between requests

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.cycle.transport.flush()  # type: ignore[attr-defined]  # it is an `_Outlet`
        if self._phase is CLOSING or self.transport.is_closing():
            return
        if self._phase is ANSWER:
            self._rest()
        self.flow.resume_reading()
        if self._ahead and self._phase is IDLE:
            data, self._ahead = self._ahead, b""
            self.data_received(data)

    def _rest(self) -> None:
        self._phase = IDLE
        self._due = self.loop.time() + self.limits.idle_s
        self.room.waiting[self] = None
        if self._last:
            self._leave()

    # Ending

    def shutdown(self) -> None:
        """What has not begun will not; what has is the connection's last."""
        self._last = True
        if self._phase is IDLE and not self.unread:
            self._leave()
        elif self._phase in (BODY, ANSWER):
            self.cycle.keep_alive = False

    def _has_its_share(self) -> bool:
        """Whether places run out, and this client's address has half of them or more: the last are for others."""
        scarce = len(self.connections) > self.limits.near and self.room.held[self._address] > self.limits.many
        return scarce and not is_trusted(self._address, self.limits.proxies)

    def _take_place(self, *, own: bool = False) -> bool:
        """Ends the connection that has waited longest for its client, if there is one; an `own` of this address."""
        candidates = (one for one in self.room.waiting if not own or one._address == self._address)
        longest = next(candidates, None)
        if longest is None:
            return False
        if longest._phase is IDLE:
            longest._leave()
        else:
            longest._refuse(Unavailable("overloaded", "The connection is needed for another client.", retry_after=1.0))
        return True

    def _set_due(self, due: float) -> None:
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
        look = min(due, self._write_due, self.loop.time() + self.limits.shortest_s)
        self._timer = self.loop.call_at(look, self._check)

    def _check(self) -> None:
        """Acts on a deadline that has passed, or looks again in a while.

        No deadline set from now on is nearer than the shortest limit, so looking again by then misses none.
        """
        now = self.loop.time()
        if self.transport.is_closing() and self._phase is not CLOSING:
            self._phase = CLOSING  # the application's last answer has not left yet
            self._due = now + self.limits.write_s
        if now < min(self._due, self._write_due):
            self._set_due(self._due)
        elif self.unread and self._phase is not CLOSING and now < self._write_due:
            self._set_due(now + self.limits.shortest_s)  # there is nothing that its client has to hurry with
        elif self._phase is CLOSING or now >= self._write_due:
            self.transport.abort()
        elif self._phase is IDLE:
            self._leave()
        else:
            limit = self.limits.head_s if self._phase is HEAD else self.limits.receipt_s
            self._refuse(RequestTimeout("receive_timeout", f"The request did not arrive within {limit:g} seconds."))

    def _refuse(self, error: SwiftletError) -> None:
        """Answers the request being received with an error, and ends the connection."""
        self.room.tell(error, self.loop.time())
        if self._phase is BODY:
            if self.cycle.response_started:
                self.transport.abort()  # it has an answer, or a part of one
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        request_id = uuid.uuid4().hex
        response = problem_details.render(error, request_id)
        response.raw_headers += [(b"x-request-id", request_id.encode()), CLOSE]
        self._write(response)
        self._leave(lingering=True)

    def _answer(self, response: Response) -> None:
        """Answers a request that the application never sees. Its body is thrown away as it comes."""
        cycle = self.cycle
        cycle.response_started = cycle.response_complete = True
        if CLOSE in response.raw_headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            response.raw_headers.append(CLOSE)
        self._write(response, bare=self.scope["method"] == "HEAD")
        self.on_response_complete()
        if not cycle.keep_alive:
            self._leave(lingering=True)

    def _write(self, response: Response, *, bare: bool = False) -> None:
        headers = [*self.server_state.default_headers, *response.raw_headers]
        lines = [b"%b: %b\r\n" % header for header in headers]
        body = b"" if bare else bytes(response.body)
        self.transport.write(b"".join([STATUS_LINE[response.status_code], *lines, b"\r\n", body]))

    def _leave(self, lingering: bool = False) -> None:
        """Closes the connection.

        Lingering: a socket that is closed while the client sends is reset, and the client may never see the answer. So
        only our side is closed, and what still comes is thrown away until the client closes its own.
        """
        self._phase = CLOSING
        self.room.waiting.pop(self, None)
        if lingering and self.transport.can_write_eof() and not self.transport.is_closing():
            self._set_due(self.loop.time() + self.limits.linger_s)
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self._set_due(self.loop.time() + self.limits.write_s)
            self.transport.close()


class _UpgradeOffered(Exception):
    """Not an error; it is how a callback ends the parser's work."""


class _Outlet:
    """The transport of one request's answer, as far as uvicorn's cycle uses one.

    The answer's head leaves with the first of its body: a system call is among the dearest things that an answer takes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._head: bytes | None = None  # until it has left
        self.is_closing: Callable[[], bool] = connection.transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None and self._connection.cycle.response_started:
            self._head = data
        elif self._head:
            head, self._head = self._head, b""
            self._connection.transport.write(head + data)
        else:  # more of the body; or 100 Continue, before there is a head
            self._connection.transport.write(data)

    def flush(self) -> None:
        """Lets a head go that has no body: that of an answer to HEAD."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._connection._leave(lingering=self._connection._phase is BODY)
