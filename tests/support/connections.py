"""Connections without a server process: a gate that records requests, and clients that send raw bytes."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any, Final

import uvloop
from starlette.responses import Response

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import problem_details
from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.gate.request import Head, Request, Route
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.fakes import PATIENCE_S

LOCAL: Final = ip_network("127.0.0.1")
SHORT_S: Final = 0.15  # a timeout that a test waits for
HOST: Final = b"Host: a\r\n"
LINE: Final = b"POST / HTTP/1.1\r\n"
POST: Final = LINE + HOST
GET: Final = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"


async def _unused(_: Request) -> Response:
    raise AssertionError("a recording gate answers by itself")


ROUTE: Final = Route("GET", "/", _unused, reads_body=True)


class RecordingGate:
    """A gate that answers with a description of the request, and records it.

    The description holds the method, the path, the names of the headers and the body.
    """

    def __init__(self, refuse: Callable[[Head], Response | None] = lambda _: None) -> None:
        """`refuse` returns the response of a refused request, and None for any other."""
        self.heads: list[Head] = []
        self.requests: list[bytes] = []
        self.refused: list[str] = []  # codes of requests without a head
        self.crowded = 0
        self.disconnects = 0
        self.in_progress = 0
        self.max_in_progress = 0
        self.called = asyncio.Semaphore(0)  # released by each head
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.max_body_bytes = 1 << 30
        self.body: Callable[[bytes], bytes] = lambda description: description
        self._refuse = refuse

    def begin(self, head: Head) -> Request | Response:
        self.heads.append(head)
        self.called.release()
        refusal = self._refuse(head)
        if refusal is not None:
            return refusal
        return Request(head, {}, RequestRecord(), ROUTE, {}, problem_details.render, self.max_body_bytes, bytearray())

    async def answer(self, request: Request) -> Response | None:
        self.in_progress += 1
        self.max_in_progress = max(self.max_in_progress, self.in_progress)
        head = request.head
        names = b",".join(name for name, _ in head.headers)
        description = b"|".join([head.method.encode(), head.path.encode(), names, request.body])
        self.requests.append(description)
        try:
            await self.may_respond.wait()
        except asyncio.CancelledError:
            self.abandon(request)
            return None
        finally:
            self.in_progress -= 1
        return Response(self.body(description))

    def fail(self, request: Request, error: SwiftletError) -> Response:
        return problem_details.render(error, request.record.id)

    def abandon(self, request: Request) -> None:
        self.disconnects += 1

    def refuse_unread(self, error: SwiftletError, request_id: str) -> Response:
        self.refused.append(error.code)
        response = problem_details.render(error, request_id)
        response.raw_headers.append((b"x-request-id", request_id.encode()))
        return response

    def count_crowded(self) -> None:
        self.crowded += 1


class RawClient:
    """A client that sends bytes and reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body of the next response."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = dict(line.split(": ", 1) for line in head[1:-1])
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
            return int(head[0].split()[1]), headers, body

    async def until_closed(self) -> bytes:
        """Returns everything that arrives until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    async def assert_refused(self, status: int, code: str) -> None:
        """Asserts that the next response is this error and that the server closes after it."""
        got, headers, body = await self.response()
        problem = json.loads(body)
        assert (got, problem["status"], problem["code"]) == (status, status, code)
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert problem["instance"] == f"urn:request:{headers['x-request-id']}"
        assert len(body) <= 2048
        assert await self.until_closed() == b""
        self.writer.close()


class Service:
    """A gate that is served on a local port."""

    def __init__(self, gate: Any, table: ConnectionTable, port: int) -> None:
        self.gate, self.table, self.port = gate, table, port

    async def client(self, address: str = "127.0.0.1") -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0)))

    async def busy_client(self) -> RawClient:
        """Returns a client with a request in progress."""
        client = await self.client()
        client.send(GET + b"\r\n")
        await self.gate.called.acquire()
        return client

    async def idle_client(self) -> RawClient:
        """Returns a client with one answered request."""
        client = await self.client()
        client.send(GET + b"\r\n")
        await client.response()
        await self.gate.called.acquire()
        return client

    async def connection(self) -> Connection:
        """Returns the only connection, once it is open."""
        await until(lambda: self.table.connections)
        (connection,) = self.table.connections
        assert isinstance(connection, Connection)
        return connection

    async def until_settled(self) -> None:
        """Waits until no connection is left and no request is in progress."""
        await until(lambda: not self.table.connections and not self.table.tasks)


@asynccontextmanager
async def serving(gate: Any = None, **limits: Any) -> AsyncIterator[Service]:
    """Serves a gate, by default a `RecordingGate`, on a local port."""
    gate = gate or RecordingGate()
    # All clients of a test share an address, which therefore counts as a proxy.
    table = ConnectionTable(gate, ConnectionLimits(**{"proxies": (LOCAL,)} | limits))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        service = Service(gate, table, listener.getsockname()[1])
        server = await asyncio.get_running_loop().create_server(lambda: Connection(table), sock=listener)
        try:
            yield service
        finally:
            server.close()
            for connection in list(table.connections):
                connection.end(at_once=True)
            if isinstance(gate, RecordingGate):
                gate.may_respond.set()
            await service.until_settled()


class FakeTransport(asyncio.Transport):
    """A transport that records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = self.is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def exchange(gate: Any, pieces: list[bytes], transport: FakeTransport | None = None) -> bytes:
    """Sends pieces over one connection, each after the previous one is read. Returns the bytes of the responses.

    An empty piece runs the event loop once, so that the gate can proceed.
    """
    transport = transport or FakeTransport()
    table = ConnectionTable(gate, ConnectionLimits())
    connection = Connection(table)
    connection.connection_made(transport)
    for piece in pieces:
        while transport.is_paused and not transport.is_closed:
            await asyncio.sleep(0)
        if piece:
            connection.data_received(piece)
        else:
            await asyncio.sleep(0)
    while not table.read_scheduler.is_idle or table.tasks:
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return b"".join(transport.writes)


def cut(data: bytes, *places: int) -> list[bytes]:
    """Cuts data into pieces at places, which are taken modulo its length."""
    edges = [0, *sorted({place % len(data) for place in places} - {0}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


async def until(condition: Callable[[], Any]) -> None:
    """Waits until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def until_stable(connection: Connection) -> None:
    """Waits until the unread bytes of a connection have not changed for a tenth of a second."""
    last, since = len(connection.unread), time.monotonic()
    while time.monotonic() - since < 0.1:
        await asyncio.sleep(0.01)
        if len(connection.unread) != last:
            last, since = len(connection.unread), time.monotonic()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on uvloop, which the server uses."""
    uvloop.run(scenario)
