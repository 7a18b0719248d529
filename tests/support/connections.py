"""Connections without a server process: an application that records requests, and clients that send raw bytes."""

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

from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import Limits
from swiftlet_serve.http.gate.task_routes import TaskRoutes
from tests.support.fakes import PATIENCE_S

LOCAL: Final = ip_network("127.0.0.1")
SHORT_S: Final = 0.15  # a timeout that a test waits for
HOST: Final = b"Host: a\r\n"
LINE: Final = b"POST / HTTP/1.1\r\n"
POST: Final = LINE + HOST
GET: Final = b"GET / HTTP/1.1\r\n" + HOST
CHUNKED: Final = POST + b"Transfer-Encoding: chunked\r\n\r\n"

Refuse = Callable[[Any], Response | None]


class RecordingApp:
    """An application that answers with a description of the request, and records it.

    The description holds the method, the target, the names of the headers and the body.
    """

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.disconnects = 0
        self.in_progress = 0
        self.max_in_progress = 0
        self.called = asyncio.Semaphore(0)  # released at the start of each request
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.body: Callable[[bytes], bytes] = lambda description: description

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.called.release()
        self.in_progress += 1
        self.max_in_progress = max(self.max_in_progress, self.in_progress)
        try:
            await self._respond(scope, receive, send)
        finally:
            self.in_progress -= 1

    async def _respond(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            body += message["body"]
            more = message["more_body"]
        names = b",".join(name for name, _ in scope["headers"])
        description = b"|".join([scope["method"].encode(), scope["raw_path"], scope["query_string"], names, body])
        self.requests.append(description)
        await self.may_respond.wait()
        response = self.body(description)
        headers = [(b"content-length", str(len(response)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": response})


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
    """An application that is served on a local port."""

    def __init__(self, app: Any, table: ConnectionTable, port: int) -> None:
        self.app, self.table, self.port = app, table, port

    async def client(self, address: str = "127.0.0.1") -> RawClient:
        return RawClient(*await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0)))

    async def busy_client(self) -> RawClient:
        """Returns a client with a request in progress."""
        client = await self.client()
        client.send(GET + b"\r\n")
        await self.app.called.acquire()
        return client

    async def idle_client(self) -> RawClient:
        """Returns a client with one answered request."""
        client = await self.client()
        client.send(GET + b"\r\n")
        await client.response()
        await self.app.called.acquire()
        return client

    async def connection(self) -> Connection:
        """Returns the only connection, once it is open."""
        await until(lambda: self.table.connections)
        (connection,) = self.table.connections
        assert isinstance(connection, Connection)
        return connection

    async def until_settled(self, connections: int = 0) -> None:
        """Waits until this number of connections is left and no request is in progress."""
        await until(lambda: len(self.table.connections) == connections and not self.table.tasks)


@asynccontextmanager
async def serving(
    app: Any = None, refuse: Refuse = lambda _: None, task_routes: TaskRoutes | None = None, **limits: Any
) -> AsyncIterator[Service]:
    """Serves an application, by default a `RecordingApp`, on a local port."""
    app = app or RecordingApp()
    # All clients of a test share an address, which therefore counts as a proxy.
    table = ConnectionTable(app, Limits(**{"proxies": (LOCAL,)} | limits), refuse, task_routes=task_routes)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        service = Service(app, table, listener.getsockname()[1])
        server = await asyncio.get_running_loop().create_server(lambda: Connection(table), sock=listener)
        try:
            yield service
        finally:
            server.close()
            for connection in list(table.connections):
                connection.end(at_once=True)
            if isinstance(app, RecordingApp):
                app.may_respond.set()
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


async def exchange(
    app: Any,
    pieces: list[bytes],
    transport: FakeTransport | None = None,
    refuse: Refuse = lambda _: None,
    task_routes: TaskRoutes | None = None,
) -> bytes:
    """Sends pieces over one connection, each after the previous one is read. Returns the bytes of the responses.

    An empty piece runs the event loop once, so that the application can proceed.
    """
    transport = transport or FakeTransport()
    table = ConnectionTable(app, Limits(), refuse, task_routes=task_routes)
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


async def until_stable(measure: Callable[[], int]) -> None:
    """Waits until a measure has not changed for a tenth of a second."""
    last, since = measure(), time.monotonic()
    while time.monotonic() - since < 0.1:
        await asyncio.sleep(0.01)
        if measure() != last:
            last, since = measure(), time.monotonic()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on uvloop, which the server uses."""
    uvloop.run(scenario)
