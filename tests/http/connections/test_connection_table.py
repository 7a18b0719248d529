"""The connections of a port: limits on their number, eviction, and the log of refusals."""

from __future__ import annotations

import json
import sys
from ipaddress import ip_network

import pytest

from swiftlet_serve.errors import Unavailable
from swiftlet_serve.http.connections import connection_table
from swiftlet_serve.http.connections.connection import HEAD, Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits, default_max_connections
from tests.support.connections import (
    GET,
    POST,
    RawClient,
    RecordingGate,
    Service,
    exchange,
    run,
    serving,
    until,
)
from tests.support.fakes import PATIENCE_S

pytestmark = pytest.mark.usefixtures("clean_log")


async def test_table_evicts_the_connection_that_is_idle_longest():
    async with serving(connections=3) as service:
        first, second, third = [await service.idle_client() for _ in range(3)]
        first.send(GET + b"\r\n")  # now the second one is idle longest
        await first.response()
        await service.idle_client()

        assert await second.until_closed() == b""
        for client in (third, first):
            client.send(GET + b"\r\n")
            assert (await client.response())[0] == 200


async def test_table_evicts_a_connection_with_an_incomplete_request():
    async with serving(connections=1) as service:
        slow = await service.client()
        slow.send(b"GET / HTTP/1.1\r\n")
        connection = await service.connection()
        await until(lambda: connection._parser.head_bytes > 0)
        await service.idle_client()
        await slow.assert_refused(503, "overloaded")


async def test_table_counts_idle_time_from_the_latest_bytes():
    async with serving(connections=2) as service:
        first, second = [await service.idle_client() for _ in range(2)]
        first.send(GET)
        await until(lambda: any(one.phase is HEAD for one in service.table.connections))
        await service.idle_client()
        assert await second.until_closed() == b""
        first.send(b"\r\n")
        assert (await first.response())[0] == 200


async def test_table_never_evicts_a_request_in_progress():
    async with serving(connections=8, linger_timeout_s=PATIENCE_S) as service:
        service.gate.may_respond.clear()
        clients = [await service.busy_client() for _ in range(7)]
        sending = await service.client()
        sending.send(POST + b"Content-Length: 3\r\n\r\n")
        await service.gate.called.acquire()

        values = [await service.client() for _ in range(2)]
        for client in values:
            status, headers, body = await client.response()
            assert (status, json.loads(body)["code"], headers["retry-after"]) == (503, "overloaded", "1")
        assert await (await service.client()).until_closed() == b""  # too many for error responses

        service.gate.may_respond.set()
        sending.send(b"abc")
        assert [(await client.response())[0] for client in [*clients, sending]] == [200] * 8


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has to be given a second local address")
@pytest.mark.parametrize("sent", [b"", GET, POST + b"Content-Length: 9\r\n\r\n", GET + b"\r\n"])
def test_table_keeps_a_quarter_for_other_addresses(sent):
    """This holds for any number of connections in any phase."""

    async def scenario() -> None:
        async with serving(connections=16, linger_timeout_s=0.05) as service:
            service.gate.may_respond.clear()
            greedy = []
            for _ in range(64):
                greedy.append(await service.client("127.0.0.2"))
                greedy[-1].send(sent)
            await until(lambda: service.table.per_address["127.0.0.2"] <= 12)
            service.gate.may_respond.set()
            others = [await idle_client_at(service, "127.0.0.3") for _ in range(4)]
            for client in others:
                client.send(GET + b"\r\n")
                assert (await client.response())[0] == 200
            for client in [*greedy, *others]:
                client.writer.close()

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has to be given a second local address")
@pytest.mark.parametrize(("proxy", "answered"), [("127.0.0.2", 16), ("127.0.0.9", 12)])
def test_table_lets_a_trusted_proxy_use_all_connections(proxy, answered):
    async def scenario() -> None:
        async with serving(connections=16, proxies=(ip_network(proxy),)) as service:
            clients = [await service.client("127.0.0.2") for _ in range(16)]
            service.gate.may_respond.clear()
            for client in clients:
                client.send(GET + b"\r\n")
            await until(lambda: service.gate.in_progress == answered)
            service.gate.may_respond.set()

    run(scenario())


async def idle_client_at(service: Service, address: str) -> RawClient:
    client = await service.client(address)
    client.send(GET + b"\r\n")
    assert (await client.response())[0] == 200
    return client


def test_limits_leave_half_of_the_file_descriptors(monkeypatch):
    for files, connections in [(1024, 512), (1 << 20, 4096), (-1, 4096), (1, 1)]:
        monkeypatch.setattr(
            "swiftlet_serve.http.connections.limits.resource.getrlimit", lambda _, files=files: (files, files)
        )
        assert default_max_connections() == connections


async def test_table_tells_once_that_many_connections_have_closed():
    table = ConnectionTable(RecordingGate(), ConnectionLimits(connections=4096))
    opened = [Connection(table) for _ in range(connection_table.MANY)]
    for connection in opened:
        table.add(connection)
    assert not table.has_fallen()
    for connection in opened[1:]:
        table.remove(connection)
    assert not table.has_fallen()
    table.remove(opened[0])
    assert [table.has_fallen(), table.has_fallen()] == [True, False]


async def test_table_logs_a_crowd_of_pages_once_and_counts_them(caplog):
    gate = RecordingGate()

    table = ConnectionTable(gate, ConnectionLimits())
    for _ in range(1000):
        table.read_scheduler._on_crowded("192.0.2.1")
    assert gate.crowded == 1000
    (record,) = caplog.records
    assert "192.0.2.1" in record.getMessage()
    caplog.clear()


async def test_table_logs_many_refusals_in_one_line(caplog):
    app = RecordingGate()
    table = ConnectionTable(app, ConnectionLimits())
    for _ in range(1000):
        table.log_refusal(Unavailable("overloaded", "x"), 100.0)
    table.log_refusal(Unavailable("overloaded", "x"), 100.0 + connection_table.LOG_INTERVAL_S)
    await exchange(app, [])
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "overloaded (1)",
        "overloaded (1000)",
    ]
    caplog.clear()
