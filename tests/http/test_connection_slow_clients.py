"""Clients that send a request in small pieces: the kernel wakes the server only when the request can be complete."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from swiftlet_serve.service.http.connection import MAX_LOW_WATER_BYTES, Connection
from swiftlet_serve.service.http.connection_table import ConnectionTable
from swiftlet_serve.service.http.limits import Limits
from tests.support.connections import (
    CHUNKED,
    GET,
    POST,
    SHORT_S,
    FakeTransport,
    RawClient,
    RecordingApp,
    Service,
    exchange,
    run,
    serving,
    until,
)

pytestmark = pytest.mark.usefixtures("clean_log")

PAUSE_S = 0.003  # between the bytes of a slow client
BODY = b"0123456789" * 5
WITH_LENGTH = POST + b"Content-Length: 50\r\n\r\n" + BODY


@pytest.fixture
def reads(monkeypatch) -> list[bytes]:
    """The bytes of every read of a connection."""
    received: list[bytes] = []
    own = Connection.data_received

    def data_received(connection: Connection, data: bytes) -> None:
        received.append(data)
        own(connection, data)

    monkeypatch.setattr(Connection, "data_received", data_received)
    return received


async def send_slowly(client: RawClient, data: bytes) -> None:
    for at in range(len(data)):
        client.send(data[at : at + 1])
        await asyncio.sleep(PAUSE_S)


def low_water(service: Service) -> int:
    (connection,) = service.table.connections
    return connection.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


def test_slow_body_costs_two_reads(reads):
    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(WITH_LENGTH[:-40])
            await until(lambda: len(reads) == 1)
            await send_slowly(client, WITH_LENGTH[-40:])
            assert (await client.response())[2].endswith(BODY)

    run(scenario())

    assert reads == [WITH_LENGTH[:-40], WITH_LENGTH[-40:]]


@pytest.mark.parametrize("request_bytes", [GET + b"X-Name: aaaaaaaaaaaaaaaa\r\n\r\n", CHUNKED + b"14\r\n" + b"a" * 20])
def test_slow_bytes_without_a_known_end_are_read_by_four(reads, request_bytes):
    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(request_bytes[:-20])
            await until(lambda: len(reads) == 1)
            await send_slowly(client, request_bytes[-20:])

    run(scenario())

    assert len(reads) <= 1 + 20 // 4 + 3  # the last four bytes may be read one by one


@pytest.mark.parametrize(
    "request_bytes",
    [
        WITH_LENGTH,
        b"\r\n" + GET + b"\r\n",
        CHUNKED + b"3\r\nabc\r\n9;x=y\r\n\r\n\r\n0\r\n\r\n\r\n0\r\nT: t\r\n\r\n",
        CHUNKED + b"1\r\na\r\n0\r\n\r\n",
        GET + b"\r\n" + GET + b"\r\n",
    ],
    ids=["length", "head", "chunks", "chunk", "pipelined"],
)
def test_request_in_two_pieces_is_answered_when_the_second_arrives(reads, request_bytes):
    """For every place at which the pieces may be cut, and without a timeout's help."""
    requests = request_bytes.count(b"HTTP/1.1")

    async def scenario() -> None:
        expected = await exchange(RecordingApp(), [request_bytes])
        async with serving(head_timeout_s=60.0, request_timeout_s=60.0) as service:
            for cut in range(1, len(request_bytes)):
                reads.clear()
                client = await service.client()
                client.send(request_bytes[:cut])
                await until(lambda cut=cut: b"".join(reads).startswith(request_bytes[:cut]))
                client.send(request_bytes[cut:])
                answers = [await client.response() for _ in range(requests)]
                assert all(body in expected for _, _, body in answers)
                client.send(GET + b"\r\n")  # the connection has no low-water mark any more
                assert (await client.response())[0] == 200
                client.writer.close()

    run(scenario())


def test_large_body_arrives_whole_and_leaves_no_low_water_mark(reads):
    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(POST + b"Content-Length: 3000000\r\n\r\n")
            await until(lambda: len(reads) == 1)
            assert low_water(service) == MAX_LOW_WATER_BYTES
            client.send(b"a" * 3_000_000)
            assert (await client.response())[2].endswith(b"a" * 3_000_000)
            assert low_water(service) == 1

    run(scenario())


def test_slow_request_times_out_although_its_bytes_are_unread(reads):
    async def scenario() -> None:
        async with serving(request_timeout_s=SHORT_S) as service:
            client = await service.client()
            client.send(WITH_LENGTH[:-40])
            await until(lambda: len(reads) == 1)
            client.send(b"5")
            await client.assert_refused(408, "receive_timeout")

    run(scenario())


@pytest.mark.parametrize("sent", [GET[:20], WITH_LENGTH[:-40]])
def test_disconnect_of_a_slow_client_is_noticed_at_once(reads, sent):
    async def scenario() -> None:
        async with serving() as service:
            client = await service.client()
            client.send(sent)
            await until(lambda: len(reads) == 1)
            client.send(b"5")
            client.writer.close()
            await service.until_settled()

    run(scenario())


class SocketTransport(FakeTransport):
    """A transport that records the low-water marks of its socket."""

    def __init__(self, *, tls: bool = False, error: OSError | None = None) -> None:
        super().__init__()
        self.marks: list[int] = []
        self._tls, self._error = tls, error

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return bytes(size)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if self._error:
            raise self._error
        self.marks.append(value)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self, "sslcontext": self._tls or None}.get(name, default)


def test_low_water_mark_is_the_missing_part_of_the_body():
    transport = SocketTransport()
    run(exchange(RecordingApp(), [WITH_LENGTH[:-40], WITH_LENGTH[-40:-7], WITH_LENGTH[-7:]], transport))

    assert transport.marks == [40, 7, 1]


def test_low_water_mark_is_not_set_with_tls():
    transport = SocketTransport(tls=True)
    run(exchange(RecordingApp(), [WITH_LENGTH[:-40], WITH_LENGTH[-40:]], transport))

    assert transport.marks == []


def test_connection_works_without_low_water_marks():
    transport = SocketTransport(error=OSError())
    run(exchange(RecordingApp(), [WITH_LENGTH[:-40], WITH_LENGTH[-40:]], transport))

    assert transport.writes[-1].endswith(BODY)


def test_closing_connection_gets_no_low_water_mark():
    async def scenario() -> None:
        transport = SocketTransport()
        connection = Connection(ConnectionTable(RecordingApp(), Limits()))
        connection.connection_made(transport)
        transport.is_closed = True
        connection.data_received(WITH_LENGTH[:-40])
        connection.connection_lost(None)
        assert transport.marks == []

    run(scenario())
