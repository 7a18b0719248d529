"""Reads that the read scheduler defers, as a connection sees them."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.connections.read_scheduler import ReadScheduler
from tests.support.connections import (
    GET,
    HOST,
    LINE,
    POST,
    SHORT_S,
    FakeTransport,
    RecordingGate,
    Service,
    serving,
    until,
    until_stable,
)

pytestmark = pytest.mark.usefixtures("clean_log")


class StoppedClock:
    """A clock that leaves no time for reads until `resume` is called."""

    def __init__(self) -> None:
        self._is_stopped = True

    def __call__(self) -> float:
        return math.inf if self._is_stopped else time.monotonic()

    def resume(self) -> None:
        self._is_stopped = False


def stop_reads(service: Service) -> StoppedClock:
    """Defers all reads until the returned clock is resumed."""
    clock = StoppedClock()
    service.table.read_scheduler = ReadScheduler(clock)
    return clock


async def until_unread(service: Service, count: int = 1) -> None:
    await until(lambda: sum(bool(one.unread) for one in service.table.connections) == count)


async def test_connection_answers_deferred_requests():
    async with serving() as service:
        clock = stop_reads(service)
        clients = [await service.client() for _ in range(20)]
        for client in clients:
            client.send(2 * (GET + b"\r\n") + POST + b"Content-Length: 3\r\n\r\nab")
        await until_unread(service, 20)
        assert service.gate.requests == []
        for client in clients:
            client.send(b"c")
        clock.resume()
        for client in clients:
            bodies = [(await client.response())[2] for _ in range(3)]
            assert [body.rpartition(b"|")[2] for body in bodies] == [b"", b"", b"abc"]
            client.writer.close()
        await service.until_settled()


async def test_connection_leaves_bytes_behind_a_deferred_read_in_the_kernel():
    async with serving() as service:
        clock = stop_reads(service)
        client = await service.client()
        client.send(LINE)
        await until_unread(service)
        (connection,) = service.table.connections
        client.send(HOST + b"Content-Length: 8000000\r\n\r\n" + b"a" * 8_000_000)
        await until(lambda: connection.is_read_paused)
        await until_stable(connection)
        assert len(connection.unread) < 1_000_000
        clock.resume()
        assert len((await client.response())[2]) > 8_000_000


async def test_connection_with_a_deferred_read_is_not_evicted():
    async with serving(connections=2) as service:
        first, second = [await service.idle_client() for _ in range(2)]
        clock = stop_reads(service)
        first.send(GET + b"\r\n")
        await until_unread(service)
        await service.client()
        assert await second.until_closed() == b""
        clock.resume()
        assert (await first.response())[0] == 200


async def test_connection_with_a_deferred_read_does_not_time_out():
    async with serving(head_timeout_s=SHORT_S, request_timeout_s=SHORT_S, idle_timeout_s=SHORT_S) as service:
        clock = stop_reads(service)
        clients = [await service.client() for _ in range(2)]
        for client, sent in zip(clients, (GET + b"\r\n", GET), strict=True):
            client.send(sent)
        await until_unread(service, 2)
        await asyncio.sleep(3 * SHORT_S)
        clients[1].send(b"\r\n")
        clock.resume()
        for client in clients:
            assert (await client.response())[0] == 200


async def test_connection_cancels_its_deferred_read_on_disconnect():
    async with serving() as service:
        clock = stop_reads(service)
        client = await service.client()
        client.send(GET + b"\r\n")
        await until_unread(service)
        client.writer.close()
        await service.until_settled()
        assert not service.table.read_scheduler.has_backlog()
        clock.resume()
        await service.idle_client()
        assert len(service.gate.requests) == 1


async def test_connection_counts_a_page_that_its_client_leaves_before_it_starts():
    gate = RecordingGate()

    table = ConnectionTable(gate, ConnectionLimits())
    table.read_scheduler = ReadScheduler(clock=lambda: 0.0)  # an iteration takes no time, even on a busy machine
    first, second = Connection(table), Connection(table)
    for connection in (first, second):
        connection.connection_made(FakeTransport())
        connection.data_received(GET + b"\r\n")
    assert not table.read_scheduler.is_idle  # one page starts in an iteration
    second.connection_lost(None)
    while table.tasks or not table.read_scheduler.is_idle:
        await asyncio.sleep(0)
    first.connection_lost(None)
    assert len(gate.requests) == 1
    assert gate.disconnects == 1


async def test_connection_keeps_no_more_than_one_read_of_pipelined_requests():
    """However many of them are answered: each response must not let another read in."""

    async with serving() as service:
        client = await service.client()
        sizes: list[int] = []
        service.gate.body = lambda description: sizes.append(len(connection.unread)) or description
        client.send(GET + b"\r\n")
        connection = await service.connection()
        client.send((GET + b"\r\n") * 20_000)
        for _ in range(300):
            await client.response()
        assert max(sizes) <= 1 << 18
        client.writer.close()


async def test_connection_answers_a_deferred_request_on_shutdown():
    async with serving() as service:
        client = await service.idle_client()
        clock = stop_reads(service)
        client.send(GET + b"\r\n")
        await until_unread(service)
        (connection,) = service.table.connections
        connection.shutdown()
        clock.resume()
        status, headers, _ = await client.response()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.until_closed() == b""
