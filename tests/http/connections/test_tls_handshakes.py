"""TLS handshakes count as connections from the accept on."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.connections.listener import Listener, bind
from swiftlet_serve.http.gate.tls import load_context
from tests.support.certificates import make_certificate
from tests.support.connections import GET, LOCAL, RawClient, RecordingGate, run, until
from tests.support.fakes import PATIENCE_S

ANSWERED = b"GET|/|host|"


@pytest.fixture(scope="module")
def tls(tmp_path_factory) -> ssl.SSLContext:
    directory = make_certificate(tmp_path_factory.mktemp("certificate"))
    context = load_context(directory / "cert.pem", directory / "key.pem")
    assert context is not None
    return context


class Served:
    """A listener for TLS with its table, and clients of it."""

    def __init__(self, listener: Listener, table: ConnectionTable) -> None:
        self.listener, self.table = listener, table
        self.silent: list[socket.socket] = []

    async def connect(self, count: int, address: str = "127.0.0.1") -> list[socket.socket]:
        """Opens connections whose handshakes never begin, one after the other."""
        for _ in range(count):
            before = self.table.per_address.total(), self.evicted()
            connection = socket.create_connection(self.listener.address, source_address=(address, 0))
            connection.setblocking(False)
            self.silent.append(connection)
            await until(lambda before=before: (self.table.per_address.total(), self.evicted()) != before)
        return self.silent[-count:]

    def evicted(self) -> int:
        return sum(is_closed(one) for one in self.silent)

    async def client(self, address: str = "127.0.0.1") -> RawClient:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with asyncio.timeout(PATIENCE_S):
            opened = asyncio.open_connection(*self.listener.address, ssl=context, local_addr=(address, 0))
            return RawClient(*await opened)

    async def assert_answers(self, address: str = "127.0.0.1") -> None:
        client = await self.client(address)
        client.send(GET + b"\r\n")
        status, _, body = await client.response()
        assert (status, body) == (200, ANSWERED)
        client.writer.close()


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@asynccontextmanager
async def serving(tls: ssl.SSLContext, **limits: object) -> AsyncIterator[Served]:
    table = ConnectionTable(RecordingGate(), ConnectionLimits(**{"proxies": (LOCAL,)} | limits))
    listener = Listener(bind("127.0.0.1", 0), tls)
    listener.listen()
    listener.open(lambda: Connection(table))
    served = Served(listener, table)
    try:
        yield served
    finally:
        for connection in served.silent:
            connection.close()
        await listener.close()
        for connection in list(table.connections):
            connection.end(at_once=True)
        await until(lambda: not table.connections)


async def test_silent_connections_do_not_lock_out_a_client(tls):
    """The one that has waited longest makes place for the next."""

    async with serving(tls, connections=4) as served:
        silent = await served.connect(20)
        await until(lambda: [is_closed(one) for one in silent] == [True] * 16 + [False] * 4)
        await served.assert_answers()
        assert is_closed(silent[16])


async def test_handshakes_use_up_the_share_of_their_address(tls):
    async with serving(tls, connections=16, proxies=()) as served:
        await served.connect(40, "127.0.0.2")
        await until(lambda: served.table.per_address["127.0.0.2"] <= 12)
        other = [await served.client("127.0.0.3") for _ in range(4)]
        for client in other:
            client.send(GET + b"\r\n")
            assert (await client.response())[0] == 200
            client.writer.close()


async def test_requests_in_progress_are_not_evicted_for_a_handshake(tls):
    async with serving(tls, connections=4) as served:
        served.table.gate.may_respond.clear()
        clients = [await served.client() for _ in range(4)]
        for client in clients:
            client.send(GET + b"\r\n")
            await served.table.gate.called.acquire()
        refused = await served.client()  # it gets its error through TLS
        assert (await refused.response())[0] == 503
        served.table.gate.may_respond.set()
        for client in clients:
            assert (await client.response())[0] == 200
            client.writer.close()


async def test_failed_handshakes_are_forgotten(tls):
    async with serving(tls) as served:
        (nonsense,) = await served.connect(1)
        nonsense.send(b"GET / HTTP/1.1\r\n\r\n")
        await until(lambda: not served.table.connections)
        (leaving,) = await served.connect(1)
        leaving.close()
        await until(lambda: not served.table.connections)
        assert not served.table.waiting
        assert not served.table.per_address
        await served.assert_answers()


@pytest.mark.parametrize("at_once", [False, True])
async def test_handshakes_end_with_the_server(tls, at_once):
    async with serving(tls) as served:
        silent = await served.connect(3)
        for connection in list(served.table.connections):
            if at_once:
                connection.end(at_once=True)
            else:
                assert connection.is_idle(unused_too=True)
                connection.shutdown()
        await until(lambda: not served.table.connections)
        await until(lambda: all(is_closed(one) for one in silent))


def test_failed_handshake_leaves_no_reference_cycle(tls):
    """The garbage collector runs rarely, and each connection has buffers of some 50 kB."""

    async def scenario() -> None:
        async with serving(tls) as served:
            await served.connect(3)
            gone = [weakref.ref(connection) for connection in served.table.connections]
            for connection in served.silent:
                connection.close()
            await until(lambda: not served.table.connections)
            await until(lambda: not any(one() for one in gone))

    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()
