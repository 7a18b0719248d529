"""What a connection may bring and how long it may take, with clients that send bytes rather than requests."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import math
import re
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

import pytest
import uvicorn
import uvloop
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from swiftlet_serve.service.errors import Unavailable
from swiftlet_serve.service.http import connection, problem_details
from swiftlet_serve.service.http.app import create_app
from swiftlet_serve.service.http.connection import Connection, limited
from swiftlet_serve.service.http.limits import Limits, capacity
from swiftlet_serve.service.http.read_scheduler import ReadScheduler
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from tests.support.fakes import PATIENCE_S

LOCAL = ip_network("127.0.0.1")
SOON_S = 0.15  # a deadline that the test waits for
HOST = b"Host: a\r\n"
LINE = b"POST / HTTP/1.1\r\n"
POST = LINE + HOST
GET = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


Refuse = Callable[[Any], Response | None]


class App:
    """Answers with the method, the target, the headers' names and the body, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.hung_up = 0
        self.under_way = 0
        self.most_under_way = 0
        self.called = asyncio.Semaphore(0)  # released whenever a request begins
        self.go = asyncio.Event()  # what every answer waits for
        self.go.set()
        self.answer: Callable[[bytes], bytes] = lambda said: said

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.called.release()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._respond(scope, receive, send)
        finally:
            self.under_way -= 1

    async def _respond(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.hung_up += 1
                return
            body += message["body"]
            more = message["more_body"]
        names = b",".join(name for name, _ in scope["headers"])
        said = b"|".join([scope["method"].encode(), scope["raw_path"], scope["query_string"], names, body])
        self.asked.append(said)
        await self.go.wait()
        answer = self.answer(said)
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next response."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = dict(line.split(": ", 1) for line in head[1:-1])
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return int(head[0].split()[1]), headers, body

    async def closed(self) -> bytes:
        """Whatever comes until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def refused(self, status: int, code: str) -> dict[str, str]:
        """The next response is this error and the last one; its headers."""
        got, headers, body = await self.answer()
        problem = json.loads(body)
        assert (got, problem["status"], problem["code"]) == (status, status, code)
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert problem["instance"] == f"urn:request:{headers['x-request-id']}"
        assert len(body) <= 2048
        assert await self.closed() == b""
        self.writer.close()
        return headers


class Service:
    def __init__(self, app: Any, kind: type[Connection], port: int) -> None:
        self.app, self.port = app, port
        self.state = ServerState()
        self.kind = kind

    async def client(self, address: str = "127.0.0.1") -> Client:
        return Client(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0)))

    async def settled(self, connections: int = 0) -> None:
        """Waits until so many connections are left and no request is under way."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.state.connections) != connections or self.state.tasks:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(app: Any = None, refuse: Refuse = lambda _: None, **limits: Any) -> AsyncIterator[Service]:
    app = app or App()
    kind = limited(Limits(**{"proxies": (LOCAL,)} | limits), refuse=refuse)  # a test's clients share an address
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        service = Service(app, kind, listener.getsockname()[1])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: kind(config, service.state, {}, loop), sock=listener)
        try:
            yield service
        finally:
            server.close()
            for connection in list(service.state.connections):
                connection.transport.abort()
            if isinstance(app, App):
                app.go.set()
            await service.settled()


class Wire(asyncio.Transport):
    """A transport that the test is the other end of."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.ended = self.paused = False

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.pieces.append(data)

    def close(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.ended

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def converse(app: App, pieces: list[bytes], wire: Wire | None = None, refuse: Refuse = lambda _: None) -> bytes:
    """What one connection is told that sends these pieces, each once the one before has been read.

    An empty one is a pause, in which the application has its turn.
    """
    wire = wire or Wire()
    kind = limited(Limits(), refuse=refuse)
    config = uvicorn.Config(app, http=kind, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    connection = kind(config, ServerState(), {})
    connection.connection_made(wire)
    for piece in pieces:
        while wire.paused and not wire.ended:
            await asyncio.sleep(0)
        if piece:
            connection.data_received(piece)
        else:
            await asyncio.sleep(0)
    while connection.tasks:
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return b"".join(wire.pieces)


def cut(data: bytes, *places: int) -> list[bytes]:
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def run(scenario: Coroutine[Any, Any, None]) -> None:
    uvloop.run(scenario)  # as it is served


@pytest.fixture(autouse=True)
def no_trouble(caplog) -> Iterator[None]:
    """Whatever a client does, the log has no traceback and one line at most."""
    caplog.set_level(logging.INFO)
    yield
    assert [
        record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING
    ] == []
    assert len(caplog.records) <= 1


# Framing

MALFORMED = {
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": GET + b"Host: b\r\n\r\n",
    "the same Host twice": GET + HOST + b"\r\n",
    "a Host with a blank": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a Host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a Host with a user": b"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
    "two Hosts in one": b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
    "another host's address": b"GET http://b/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "another scheme's address": b"GET ftp://a/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "an address with a user": b"GET http://u@a/ HTTP/1.1\r\n" + HOST + b"\r\n",
    "no address": b"GET  HTTP/1.1\r\n" + HOST + b"\r\n",
    "an address that is not ASCII": "GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "length, then coding": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding, then length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "two lengths in one": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "an endless length": POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabc",
    "an empty length": POST + b"Content-Length:\r\n\r\nabc",
    "another coding": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding that is none": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a coding with a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "two codings": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding in HTTP/1.0": b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": GET + b"X: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "one bare line feed": b"GET / HTTP/1.1\nHost: a\r\n\r\n",
    "a bare carriage return": GET + b"X: a\rb\r\n\r\n",
    "a NUL": GET + b"X: a\x00b\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "a blank in a name": GET + b"X Y: a\r\n\r\n",
    "a header without a name": GET + b": a\r\n\r\n",
    "a header without a colon": GET + b"X\r\n\r\n",
    "a blank first": b" GET / HTTP/1.1\r\n" + HOST + b"\r\n",
    "an endless method": b"G" * 5000 + b" / HTTP/1.1\r\n" + HOST + b"\r\n",
    "an unknown method": b"SPAM / HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/0.9 by name": b"GET / HTTP/0.9\r\n" + HOST + b"\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/9.9": b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100f5010000f10303"),
    "noise": bytes(range(256)),
    "a chunk's size that is none": CHUNKED + b"zz\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\n\r\n",
    "an endless chunk": CHUNKED + b"f" * 17 + b"\r\n\r\n",
    "a signed chunk": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a hexadecimal chunk": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk of bare line feeds": CHUNKED + b"3\nabc\n0\n\n",
    "a chunk that goes on": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk with no end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "a last chunk that goes on": CHUNKED + b"0\r\nab\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("size", [1 << 18, 1], ids=["at once", "byte by byte"])
def test_what_is_malformed_is_refused_once(case, size):
    """One answer, and nothing after it: not to the request that stands behind, either."""

    async def scenario() -> None:
        app = App()
        data = MALFORMED[case] + GET + b"\r\n"
        said = await converse(app, [data[start : start + size] for start in range(0, len(data), size)])
        assert app.asked == []
        assert len(re.findall(rb"HTTP/1.1 \d", said)) == 1
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b'"code":"bad_framing"' in said

    run(scenario())


WELL_FORMED = [
    (GET + b"\r\n", b"GET|/||host|"),
    (b"\r\nGET /a?b=c HTTP/1.1\r\n" + HOST + b"\r\n", b"GET|/a|b=c|host|"),
    (b"GET http://A/a HTTP/1.1\r\n" + HOST + b"\r\n", b"GET|/a||host|"),
    (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"OPTIONS|*||host|"),
    (b"HEAD / HTTP/1.1\r\nhOST:\r\n\r\n", b"HEAD|/||host|"),
    (POST + b"Content-Length: 8\r\n\r\nab\r\n\r\ncd", b"POST|/||host,content-length|ab\r\n\r\ncd"),
    (CHUNKED + b"3\r\nabc\r\n6;x=y\r\n\r\n\r\nde\r\n0\r\n\r\n", b"POST|/||host,transfer-encoding|abc\r\n\r\nde"),
    # Trailers are no headers.
    (CHUNKED + b"3\r\nabc\r\n0\r\nX-Key: 1\r\nHost: b\r\n\r\n", b"POST|/||host,transfer-encoding|abc"),
    # An upgrade is not taken, and what looks like a request in a body is the body.
    (
        POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 9\r\n\r\nGET / HTT",
        b"POST|/||host,connection,content-length|GET / HTT",
    ),
    (GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", b"GET|/||host,connection,upgrade|"),
]


@given(st.lists(st.sampled_from(WELL_FORMED), min_size=1, max_size=6), st.lists(st.integers(0, 1 << 16), max_size=12))
@example(WELL_FORMED, [])
@example(WELL_FORMED, list(range(1 << 12)))
def test_requests_mean_the_same_however_their_bytes_arrive(requests, places):
    async def scenario() -> None:
        app = App()
        data = b"".join(request for request, _ in requests)
        said = await converse(app, cut(data, *places))
        assert app.asked == [meaning for _, meaning in requests]
        assert said.count(b"HTTP/1.1 200 OK\r\n") == len(requests)
        assert app.most_under_way == 1

    run(scenario())


def test_http_1_0_needs_no_host():
    """Balancers that ask for health still speak it."""

    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(b"GET / HTTP/1.0\r\n\r\n")
            assert (await client.answer())[0] == 200
            assert await client.closed() == b""

    run(scenario())


# Sizes


@pytest.mark.parametrize(
    ("line", "headers", "status", "code"),
    [
        (LINE, 63, 200, None),
        (LINE, 64, 431, "headers_too_large"),
        (LINE, 100_000, 431, "headers_too_large"),
        (b"GET /" + b"x" * 8191 + b" HTTP/1.1\r\n", 0, 200, None),
        (b"GET /" + b"x" * 8192 + b" HTTP/1.1\r\n", 0, 414, "uri_too_long"),
        (b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n", 0, 414, "uri_too_long"),
        (LINE + b"X: " + b"x" * (16_384 - 33) + b"\r\n", 0, 200, None),
        (LINE + b"X: " + b"x" * (16_384 - 32) + b"\r\n", 0, 431, "headers_too_large"),
        (LINE + b"X: " + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
        (b"\r\n" * 100_000, 0, 431, "headers_too_large"),
        (CHUNKED + b"0\r\nX: " + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
        (CHUNKED + b"1;x=" + b"x" * 10_000_000 + b"\r\n", 0, 431, "headers_too_large"),
    ],
)
def test_a_head_has_its_limits(line, headers, status, code):
    """And the client gets to read so, although it sends more than is ever read."""

    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(line + HOST + b"X: y\r\n" * headers + b"\r\n")
            if code:
                await client.refused(status, code)
            else:
                assert (await client.answer())[0] == status

    run(scenario())


def test_one_byte_chunks_do_not_stall_the_loop():
    async def scenario() -> None:
        app = App()
        data = CHUNKED + b"1\r\na\r\n" * 65_536 + b"0\r\n\r\n"
        started = time.process_time()
        await converse(app, cut(data, 1 << 18))
        assert time.process_time() - started < 0.5  # 0.03 alone; h11 takes as much for a tenth of it
        assert len(app.asked[0]) == 65_536 + len(b"POST|/||host,transfer-encoding|")

    run(scenario())


def test_a_thousand_pipelined_requests_are_answered_in_order_one_at_a_time():
    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            service.app.go.clear()
            client.send(b"".join(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"\r\n" for number in range(1000)))
            await service.app.called.acquire()
            service.app.go.set()
            for number in range(1000):
                assert (await client.answer())[2] == b"GET|/%d||host|" % number
            assert service.app.most_under_way == 1

    run(scenario())


def test_what_waits_behind_a_request_is_left_to_the_kernel():
    async def scenario() -> None:
        async with serving() as service:
            service.app.go.clear()
            client = await service.client()
            client.send(GET + b"\r\n" + (GET + b"\r\n") * 1_000_000)  # 26 MB
            await service.app.called.acquire()
            (connection,) = service.state.connections
            await quiet(lambda: len(connection._ahead))
            assert len(connection._ahead) < 1 << 20
            assert service.app.asked == [b"GET|/||host|"]

    run(scenario())


async def quiet(measure: Callable[[], int]) -> None:
    """Waits until something has been the same for a while."""
    last, since = measure(), time.monotonic()
    while time.monotonic() - since < 0.1:
        await asyncio.sleep(0.01)
        if measure() != last:
            last, since = measure(), time.monotonic()


# Deadlines


async def trickle(client: Client) -> None:
    """Sends a byte now and then for as long as the server does not answer."""
    while not client.reader._buffer and not client.reader.at_eof():
        client.send(b"x")
        await asyncio.sleep(SOON_S / 10)


@pytest.mark.parametrize("more", [False, True], ids=["silent", "a byte now and then"])
@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (GET + b"X: ", {"head_s": SOON_S}),
        (b"G", {"head_s": SOON_S}),
        (POST + b"Content-Length: 900\r\n\r\n", {"receipt_s": SOON_S}),
        (CHUNKED + b"384\r\n", {"receipt_s": SOON_S}),
    ],
)
def test_a_request_has_to_arrive_in_time(sent, limits, more):
    async def scenario() -> None:
        async with serving(**limits) as service:
            client = await service.client()
            client.send(GET + b"\r\n")  # the clock is the request's, not the connection's
            await client.answer()
            client.send(sent if sent != b"G" or not more else GET + b"X: ")
            if more:
                await trickle(client)
            await client.refused(408, "receive_timeout")
            await service.settled()
            assert service.app.asked == [b"GET|/||host|"]
            assert service.app.hung_up == (b"\r\n\r\n" in sent)

    run(scenario())


def test_who_is_told_to_continue_has_no_more_time_than_others():
    async def scenario() -> None:
        async with serving(receipt_s=SOON_S) as service:
            client = await service.client()
            client.send(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
            assert (await client.answer())[0] == 100
            await client.refused(408, "receive_timeout")

    run(scenario())


def test_the_time_an_answer_takes_is_not_the_clients():
    async def scenario() -> None:
        async with serving(head_s=SOON_S, receipt_s=SOON_S, write_s=SOON_S) as service:
            service.app.go.clear()
            client = await service.client()
            client.send(POST + b"Content-Length: 3\r\n\r\nabc" + GET + b"\r\n")
            await asyncio.sleep(3 * SOON_S)  # nothing happens, which no event can tell
            service.app.go.set()
            assert [(await client.answer())[0] for _ in range(2)] == [200, 200]

    run(scenario())


@pytest.mark.parametrize("limits", [{"receipt_s": SOON_S}, {"idle_s": SOON_S}], ids=["new", "used"])
def test_a_connection_on_which_nothing_happens_is_closed_without_a_word(limits):
    async def scenario() -> None:
        async with serving(**limits) as service:
            client = await service.client()
            if "idle_s" in limits:
                client.send(GET + b"\r\n")
                await client.answer()
            assert await client.closed() == b""

    run(scenario())


def test_who_does_not_read_is_cut_off():
    async def scenario() -> None:
        async with serving(write_s=SOON_S) as service:
            service.app.answer = lambda said: b"x" * 1_000_000
            with socket.create_connection(("127.0.0.1", service.port)) as client:
                client.sendall((GET + b"\r\n") * 100)
                await service.app.called.acquire()
                await service.settled()

    run(scenario())


@pytest.mark.parametrize("how", ["half-closed", "reset"])
@pytest.mark.parametrize("sent", [b"", b"GET", GET, POST + b"Content-Length: 9\r\n\r\nabc", CHUNKED + b"3\r\na"])
def test_a_client_may_leave_at_any_time(sent, how):
    """No task is left, and no traceback."""

    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(sent)
            if b"\r\n\r\n" in sent:
                await service.app.called.acquire()
            if how == "half-closed":
                client.writer.write_eof()
                assert await client.closed() == b""
            else:
                linger = struct.pack("ii", 1, 0)
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                client.writer.transport.abort()
            await service.settled()
            assert service.app.hung_up == (b"\r\n\r\n" in sent)

    run(scenario())


def test_an_early_answer_can_be_read_while_the_body_is_still_sent():
    """Closing a socket that has not been read to its end would reset it, and take the answer away."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no"})

    async def scenario() -> None:
        async with serving(refuse) as service:
            client = await service.client()
            client.send(POST + b"Content-Length: 50000000\r\n\r\n")
            for _ in range(50):
                client.send(b"x" * 1_000_000)
                await client.writer.drain()
            status, _, body = await client.answer()
            assert (status, body, await client.closed()) == (413, b"no", b"")

    run(scenario())


def test_a_large_body_that_nobody_read_does_not_hold_up_the_next_request():
    """What is read ahead is bounded by pausing; once the answer is given there is nothing to bound."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:  # an application's shape
        (connection,) = served[0].state.connections
        await until(lambda: connection.flow.read_paused)
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    served: list[Service] = []

    async def scenario() -> None:
        async with serving(refuse) as service:
            served.append(service)
            client = await service.client()
            for _ in range(3):
                client.send(POST + b"Content-Length: 600000\r\n\r\n" + b"x" * 600_000)
            assert [(await client.answer())[0] for _ in range(3)] == [404] * 3
            client.writer.close()

    run(scenario())


def test_an_answer_leaves_in_one_piece_and_a_head_alone_where_it_has_no_body():
    wire = Wire()

    async def scenario() -> None:
        posted = [POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"", b"ab"]
        await converse(App(), [*posted, b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n"], wire)

    run(scenario())

    continued, answered, headed = wire.pieces
    assert continued == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answered.endswith(b"\r\n\r\nPOST|/||host,expect,content-length|ab")
    assert headed.startswith(b"HTTP/1.1 200 OK\r\n")
    assert headed.endswith(b"\r\n\r\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long bytes have waited")
def test_a_request_came_when_its_bytes_did_however_late_the_event_loop_looks():
    lag_s, slow_s = 0.2, 0.1
    found: list[dict[str, float]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope["state"] | {"now": time.monotonic()})
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario():
        async with serving(app) as service:
            client = await service.client()
            for pieces in ([GET + b"\r\n"], [GET, b"\r\n"], [GET + b"\r\n"]):
                for piece in pieces[:-1]:
                    client.send(piece)
                    await asyncio.sleep(slow_s)
                client.send(pieces[-1])
                time.sleep(lag_s)
                assert (await client.answer())[0] == 200

    run(scenario())

    for state, took_s in zip(found, (0.0, slow_s, 0.0), strict=True):
        assert lag_s - 0.02 <= state["lag_s"] < lag_s + PATIENCE_S / 2  # the system counts in ticks of up to 10 ms
        assert state["now"] - state["received"] >= lag_s + took_s - 0.02
        assert state["now"] - state["received"] < lag_s + took_s + PATIENCE_S / 2


def test_a_second_answer_is_never_sent():
    """The first came before the body, and that one turns out to be malformed."""

    async def hasty(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"no"})

    async def scenario() -> None:
        async with serving(hasty) as service:
            client = await service.client()
            client.send(CHUNKED)
            assert (await client.answer())[0] == 404
            client.send(b"zz\r\n" + GET + b"\r\n")
            assert await client.closed() == b""

    run(scenario())


# Room


async def busy(service: Service) -> Client:
    """A client whose request is under way."""
    client = await service.client()
    client.send(GET + b"\r\n")
    await service.app.called.acquire()
    return client


async def idle(service: Service) -> Client:
    """A client that has been answered once."""
    client = await service.client()
    client.send(GET + b"\r\n")
    await client.answer()
    await service.app.called.acquire()
    return client


def test_the_connection_idle_for_longest_makes_room():
    async def scenario() -> None:
        async with serving(connections=3) as service:
            first, second, third = [await idle(service) for _ in range(3)]
            first.send(GET + b"\r\n")  # now the second is idle for longest
            await first.answer()
            await idle(service)

            assert await second.closed() == b""
            for client in (third, first):
                client.send(GET + b"\r\n")
                assert (await client.answer())[0] == 200

    run(scenario())


def test_a_request_that_does_not_arrive_makes_room_too():
    async def scenario() -> None:
        async with serving(connections=1) as service:
            slow = await service.client()
            slow.send(b"GET / HTTP/1.1\r\n")
            (connection,) = service.state.connections or [await first_of(service)]
            await until(lambda: connection._head_bytes > 0)
            await idle(service)
            await slow.refused(503, "overloaded")

    run(scenario())


def test_who_has_begun_a_request_is_not_the_one_idle_for_longest():
    async def scenario() -> None:
        async with serving(connections=2) as service:
            first, second = [await idle(service) for _ in range(2)]
            first.send(GET)
            await until(lambda: any(one._phase is connection.HEAD for one in service.state.connections))
            await idle(service)
            assert await second.closed() == b""
            first.send(b"\r\n")
            assert (await first.answer())[0] == 200

    run(scenario())


async def first_of(service: Service) -> Connection:
    await until(lambda: service.state.connections)
    return next(iter(service.state.connections))


async def until(happened: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not happened():
            await asyncio.sleep(0.001)


def test_a_request_under_way_never_makes_room():
    async def scenario() -> None:
        async with serving(connections=8, linger_s=PATIENCE_S) as service:
            service.app.go.clear()
            clients = [await busy(service) for _ in range(7)]
            sending = await service.client()
            sending.send(POST + b"Content-Length: 3\r\n\r\n")
            await service.app.called.acquire()

            told = [await service.client() for _ in range(2)]
            for client in told:
                status, headers, body = await client.answer()
                assert (status, json.loads(body)["code"], headers["retry-after"]) == (503, "overloaded", "1")
            assert await (await service.client()).closed() == b""  # a sentence for all would take files without end

            service.app.go.set()
            sending.send(b"abc")
            assert [(await client.answer())[0] for client in [*clients, sending]] == [200] * 8

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has to be given a second local address")
@pytest.mark.parametrize("sent", [b"", GET, POST + b"Content-Length: 9\r\n\r\n", GET + b"\r\n"])
def test_an_address_with_many_connections_leaves_room_for_others(sent):
    """However many it opens and whatever they are at: the last quarter is not for it."""

    async def scenario() -> None:
        async with serving(connections=16, linger_s=0.05) as service:
            service.app.go.clear()
            greedy = []
            for _ in range(64):
                greedy.append(await service.client("127.0.0.2"))
                greedy[-1].send(sent)
            await until(lambda: service.kind.room.held["127.0.0.2"] <= 12)
            service.app.go.set()
            others = [await idle_at(service, "127.0.0.3") for _ in range(4)]
            for client in others:
                client.send(GET + b"\r\n")
                assert (await client.answer())[0] == 200
            for client in [*greedy, *others]:
                client.writer.close()

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has to be given a second local address")
@pytest.mark.parametrize(("proxy", "answered"), [("127.0.0.2", 16), ("127.0.0.9", 12)])
def test_a_trusted_proxy_may_have_all_connections(proxy, answered):
    async def scenario() -> None:
        async with serving(connections=16, proxies=(ip_network(proxy),)) as service:
            clients = [await service.client("127.0.0.2") for _ in range(16)]
            service.app.go.clear()
            for client in clients:
                client.send(GET + b"\r\n")
            await until(lambda: service.app.under_way == answered)
            service.app.go.set()

    run(scenario())


async def idle_at(service: Service, address: str) -> Client:
    client = await service.client(address)
    client.send(GET + b"\r\n")
    assert (await client.answer())[0] == 200
    return client


def test_there_is_room_for_as_many_as_leave_files_for_all_else(monkeypatch):
    for files, connections in [(1024, 512), (1 << 20, 4096), (-1, 4096), (1, 1)]:
        monkeypatch.setattr(
            "swiftlet_serve.service.http.limits.resource.getrlimit", lambda _, files=files: (files, files)
        )
        assert capacity() == connections


def test_whoever_has_sent_something_is_answered_before_the_server_ends():
    async def scenario() -> None:
        async with serving() as service:
            resting, answered, sending, starting = [await idle(service) for _ in range(4)]
            service.app.go.clear()
            answered.send(GET + b"\r\n")
            sending.send(POST + b"Content-Length: 3\r\n\r\n")
            for _ in range(2):
                await service.app.called.acquire()
            starting.send(GET)
            await until(lambda: any(one._phase is connection.HEAD for one in service.state.connections))
            for one in list(service.state.connections):
                one.shutdown()
            assert await resting.closed() == b""

            service.app.go.set()
            sending.send(b"abc")
            starting.send(b"\r\n")
            for client in (answered, sending, starting):
                status, headers, _ = await client.answer()
                assert (status, headers["connection"]) == (200, "close")
                assert await client.closed() == b""
            await service.settled()

    run(scenario())


# Who is read when more has come than there is time for


class Held:
    """A clock on which no time is left for reading, until `let` is called."""

    def __init__(self) -> None:
        self._held = True

    def __call__(self) -> float:
        return math.inf if self._held else time.monotonic()

    def let(self) -> None:
        self._held = False


def hold(service: Service) -> Held:
    clock = Held()
    service.kind.room.read_scheduler = ReadScheduler(clock)
    return clock


async def unread(service: Service, count: int = 1) -> None:
    await until(lambda: sum(bool(one.unread) for one in service.state.connections) == count)


def test_what_waits_to_be_read_is_answered_as_anything_else():
    async def scenario() -> None:
        async with serving() as service:
            held = hold(service)
            clients = [await service.client() for _ in range(20)]
            for client in clients:
                client.send(2 * (GET + b"\r\n") + POST + b"Content-Length: 3\r\n\r\nab")
            await unread(service, 20)
            assert service.app.asked == []
            for client in clients:
                client.send(b"c")
            held.let()
            for client in clients:
                bodies = [(await client.answer())[2] for _ in range(3)]
                assert [body.rpartition(b"|")[2] for body in bodies] == [b"", b"", b"abc"]
                client.writer.close()
            await service.settled()

    run(scenario())


def test_more_that_comes_while_the_first_waits_is_left_to_the_kernel():
    async def scenario() -> None:
        async with serving() as service:
            held = hold(service)
            client = await service.client()
            client.send(LINE)
            await unread(service)
            (connection,) = service.state.connections
            client.send(HOST + b"Content-Length: 8000000\r\n\r\n" + b"a" * 8_000_000)
            await until(lambda: connection.flow.read_paused)
            await quiet(lambda: len(connection.unread))
            assert len(connection.unread) < 1_000_000
            held.let()
            assert len((await client.answer())[2]) > 8_000_000

    run(scenario())


def test_nobody_makes_room_whom_we_keep_waiting():
    async def scenario() -> None:
        async with serving(connections=2) as service:
            first, second = [await idle(service) for _ in range(2)]
            held = hold(service)
            first.send(GET + b"\r\n")
            await unread(service)
            await service.client()
            assert await second.closed() == b""
            held.let()
            assert (await first.answer())[0] == 200

    run(scenario())


def test_no_client_is_late_whom_we_keep_waiting():
    async def scenario() -> None:
        async with serving(head_s=SOON_S, receipt_s=SOON_S, idle_s=SOON_S) as service:
            held = hold(service)
            clients = [await service.client() for _ in range(2)]
            for client, sent in zip(clients, (GET + b"\r\n", GET), strict=True):
                client.send(sent)
            await unread(service, 2)
            await asyncio.sleep(3 * SOON_S)
            clients[1].send(b"\r\n")
            held.let()
            for client in clients:
                assert (await client.answer())[0] == 200

    run(scenario())


def test_who_leaves_while_it_waits_is_forgotten():
    async def scenario() -> None:
        async with serving() as service:
            held = hold(service)
            client = await service.client()
            client.send(GET + b"\r\n")
            await unread(service)
            client.writer.close()
            await service.settled()
            assert not service.kind.room.read_scheduler.behind
            held.let()
            await idle(service)
            assert len(service.app.asked) == 1

    run(scenario())


def test_what_waits_to_be_read_is_answered_before_the_server_ends():
    async def scenario() -> None:
        async with serving() as service:
            client = await idle(service)
            held = hold(service)
            client.send(GET + b"\r\n")
            await unread(service)
            (connection,) = service.state.connections
            connection.shutdown()
            held.let()
            status, headers, _ = await client.answer()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.closed() == b""

    run(scenario())


# What the head alone decides


def no(scope: Any) -> Response | None:
    """Refuses an address."""
    return Response(b"no", 503, {"retry-after": "1"}) if scope["path"] == "/no" else None


@pytest.mark.parametrize("body", [b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_request_refused_by_its_head_is_answered_before_its_body_comes_and_the_next_is_served(body):
    async def scenario() -> None:
        async with serving(refuse=no) as service:
            client = await service.client()
            client.send(b"POST /no HTTP/1.1\r\n" + HOST + body)
            status, headers, said = await client.answer()
            assert (status, headers["retry-after"], said) == (503, "1", b"no")
            assert "connection" not in headers
            client.send((b"5\r\nGET /\r\n0\r\n\r\n" if b"chunked" in body else b"GET /") + GET + b"\r\n")
            status, _, said = await client.answer()
            assert (status, said.split(b"|")[0]) == (200, b"GET")
            assert len(service.app.asked) == 1

    run(scenario())


def test_an_answer_from_the_head_is_one_as_any_other():
    refused = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 2\r\n"

    async def scenario() -> None:
        for method, said in ((b"GET", b"no"), (b"HEAD", b"")):
            line = method + b" /no HTTP/1.1\r\n" + HOST
            app = App()
            answer = await converse(app, [line + b"\r\n", line + b"Connection: close\r\n\r\n"], refuse=no)
            assert answer == refused + b"\r\n" + said + refused + b"connection: close\r\n\r\n" + said
            assert app.asked == []

    run(scenario())


def test_the_gate_is_told_whether_the_body_came_with_the_head():
    told: list[bool] = []

    def refuse(scope: Any) -> None:
        told.append(scope["state"]["whole"])

    async def scenario() -> None:
        sized = POST + b"Content-Length: 5\r\n\r\n"
        for pieces in ([sized + b"abcde"], [sized + b"abcde" + GET + b"\r\n"], [GET + b"\r\n"]):
            await converse(App(), pieces, refuse=refuse)
        for pieces in ([sized, b"abcde"], [sized + b"abcd", b"e"], [CHUNKED + b"0\r\n\r\n"]):
            await converse(App(), pieces, refuse=refuse)

    run(scenario())
    assert told == [True, True, True, True, False, False, False]


def test_requests_and_connections_leave_nothing_to_the_garbage_collector(artifact_dir):
    """A collection of all that thousands of connections hold takes long, and everybody waits for it."""
    requests = [
        ("/classify", b'{"inputs": "a"}', b""),
        ("/classify", b'{"inputs": "a"}', b"X-Request-Timeout-Ms: soon\r\n"),
        ("/classify", b'{"inputs": ["a", "b", "c", "d"]}', b""),  # more than may wait
        ("/classify", b'{"inputs": 1}', b""),
        ("/classify", b"{", b""),
        ("/nowhere", b"", b""),
    ]

    async def scenario() -> None:
        models = (str(artifact_dir / "tiny-classify"),)
        runtime = Runtime.load(Settings(models=models, engine="echo", cores=1, max_waiting_tokens=64))
        runtime._pool.max_waiting_tokens = 8
        app, statuses = create_app(runtime), set()
        async with serving(app, app.state.refuse) as service:
            for path, body, header in requests * 2:
                client = await service.client()
                for close in (b"", b"Connection: close\r\n"):
                    head = b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n" % (path.encode(), len(body))
                    client.send(head + HOST + header + close + b"\r\n" + body)
                    statuses.add((await client.answer())[0])
                client.writer.close()
            await service.settled()
        await runtime.close()
        assert statuses == {200, 400, 404, 422, 503}

    gc.collect()
    gc.disable()
    try:
        run(scenario())
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(one) for one in gc.garbage if isinstance(one, Connection | RequestRecord | RequestResponseCycle)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []


# Errors


def test_a_thousand_refusals_are_one_line_in_the_log(caplog):
    async def scenario() -> None:
        app = App()
        kind = limited(Limits())
        for _ in range(1000):
            kind.room.tell(Unavailable("overloaded", "x"), 100.0)
        kind.room.tell(Unavailable("overloaded", "x"), 100.0 + connection.LOG_EVERY_S)
        await converse(app, [])

    run(scenario())
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "overloaded (1)",
        "overloaded (1000)",
    ]
    caplog.clear()


def test_an_error_that_cannot_be_rendered_is_an_error_still(monkeypatch, caplog):
    def fail(*_: Any, **__: Any) -> str:
        raise ValueError

    monkeypatch.setattr(problem_details.Problem, "model_dump_json", fail)
    response = problem_details.render(Unavailable("overloaded", "x"), "1")

    assert response.status_code == 500
    assert response.media_type == problem_details.MEDIA_TYPE
    assert json.loads(response.body)["code"] == "internal"
    caplog.clear()


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "DELETE", "HEAD", "OPTIONS", "GET"])
def test_a_method_that_is_not_taken_is_refused_with_those_that_are(method, artifact_dir):
    async def scenario() -> None:
        runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo", cores=1))
        app = create_app(runtime)
        async with serving(app, app.state.refuse) as service:
            client = await service.client()
            target = "a:443" if method == "CONNECT" else "/classify"
            client.send(f"{method} {target} HTTP/1.1\r\nConnection: close\r\n".encode() + HOST + b"\r\n")
            answer = await client.closed()
            assert answer.startswith(b"HTTP/1.1 405 ")
            assert b"\r\nallow: " in answer
        await runtime.close()

    run(scenario())
