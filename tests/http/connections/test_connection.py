"""A connection: pipelining, timeouts, responses and disconnects."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import sys
import time

import pytest
from starlette.responses import Response

from swiftlet_serve.http.connections.connection import HEAD, WRITE_BYTES, Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.gate.request import Head
from tests.support.connections import (
    CHUNKED,
    GET,
    HOST,
    POST,
    SHORT_S,
    FakeTransport,
    RawClient,
    RecordingGate,
    exchange,
    serving,
    until,
    until_stable,
)
from tests.support.fakes import PATIENCE_S

pytestmark = pytest.mark.usefixtures("clean_log")


async def test_connection_answers_pipelined_requests_in_order_one_at_a_time():
    async with serving() as service:
        client = await service.client()
        service.gate.may_respond.clear()
        client.send(b"".join(b"GET /%d HTTP/1.1\r\n" % number + HOST + b"\r\n" for number in range(1000)))
        await service.gate.called.acquire()
        service.gate.may_respond.set()
        for number in range(1000):
            assert (await client.response())[2] == b"GET|/%d|host|" % number
        assert service.gate.max_in_progress == 1


async def test_connection_leaves_pipelined_bytes_in_the_kernel():
    async with serving() as service:
        service.gate.may_respond.clear()
        client = await service.client()
        client.send(GET + b"\r\n" + (GET + b"\r\n") * 1_000_000)  # 26 MB
        await service.gate.called.acquire()
        (connection,) = service.table.connections
        await until_stable(connection)
        assert len(connection.unread) < 1 << 20
        assert service.gate.requests == [b"GET|/|host|"]


async def trickle(client: RawClient) -> None:
    """Sends a byte from time to time until the server responds."""
    while not client.reader._buffer and not client.reader.at_eof():
        client.send(b"x")
        await asyncio.sleep(SHORT_S / 10)


@pytest.mark.parametrize("more", [False, True], ids=["silent", "trickling"])
@pytest.mark.parametrize(
    ("sent", "limits"),
    [
        (GET + b"X: ", {"head_timeout_s": SHORT_S}),
        (b"G", {"head_timeout_s": SHORT_S}),
        (POST + b"Content-Length: 900\r\n\r\n", {"request_timeout_s": SHORT_S}),
        (CHUNKED + b"384\r\n", {"request_timeout_s": SHORT_S}),
    ],
)
async def test_connection_times_out_incomplete_requests(sent, limits, more):
    async with serving(**limits) as service:
        client = await service.client()
        client.send(GET + b"\r\n")  # the timeout starts with the next request
        await client.response()
        client.send(sent if sent != b"G" or not more else GET + b"X: ")
        if more:
            await trickle(client)
        await client.assert_refused(408, "receive_timeout")
        await service.until_settled()
        assert service.gate.requests == [b"GET|/|host|"]
        assert service.gate.disconnects == (b"\r\n\r\n" in sent)


async def test_connection_times_out_after_100_continue():
    async with serving(request_timeout_s=SHORT_S) as service:
        client = await service.client()
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert (await client.response())[0] == 100
        await client.assert_refused(408, "receive_timeout")


async def test_connection_timeouts_exclude_the_time_of_the_response():
    async with serving(head_timeout_s=SHORT_S, request_timeout_s=SHORT_S, write_timeout_s=SHORT_S) as service:
        service.gate.may_respond.clear()
        client = await service.client()
        client.send(POST + b"Content-Length: 3\r\n\r\nabc" + GET + b"\r\n")
        await asyncio.sleep(3 * SHORT_S)  # the absence of a timeout causes no event
        service.gate.may_respond.set()
        assert [(await client.response())[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("limits", [{"request_timeout_s": SHORT_S}, {"idle_timeout_s": SHORT_S}], ids=["new", "used"])
async def test_connection_closes_silently_when_idle(limits):
    async with serving(**limits) as service:
        client = await service.client()
        if "idle_timeout_s" in limits:
            client.send(GET + b"\r\n")
            await client.response()
        assert await client.until_closed() == b""


async def test_connection_writes_a_part_of_a_long_response_in_an_iteration():
    """Other requests need not wait until all of it is copied. The client must read a part before more is written."""
    gate, transport = RecordingGate(), FakeTransport()
    gate.body = lambda description: b"x" * (5 * WRITE_BYTES) if b"GET" in description else description
    table = ConnectionTable(gate, ConnectionLimits())
    connection = Connection(table)
    connection.connection_made(transport)
    connection.data_received(GET + b"\r\n" + POST + b"Content-Length: 0\r\n\r\n")
    written = [0]
    while len(transport.writes) < 3:
        await asyncio.sleep(0)
        written.append(sum(map(len, transport.writes)))
    connection.pause_writing()
    await asyncio.sleep(0)
    assert len(transport.writes) == 3
    connection.resume_writing()
    while len(gate.requests) < 2 or table.tasks:
        await asyncio.sleep(0)
        written.append(sum(map(len, transport.writes)))
    head = transport.writes[0].index(b"\r\n\r\n") + 4
    assert max(after - before for before, after in itertools.pairwise(written)) == WRITE_BYTES + head
    assert b"".join(transport.writes)[head:].startswith(b"x" * (5 * WRITE_BYTES) + b"HTTP/1.1 200 OK")
    connection.connection_lost(None)


@pytest.mark.parametrize("ends", ["closed", "lost"])
async def test_connection_that_ends_within_a_long_response(ends):
    gate, transport = RecordingGate(), FakeTransport()
    gate.body = lambda _: b"x" * (5 * WRITE_BYTES)
    connection = Connection(ConnectionTable(gate, ConnectionLimits()))
    connection.connection_made(transport)
    connection.data_received(GET + b"\r\n")
    while not transport.writes:
        await asyncio.sleep(0)
    if ends == "closed":
        connection.end(at_once=False)
        assert b"".join(transport.writes).endswith(b"\r\n\r\n" + b"x" * (5 * WRITE_BYTES))
    connection.connection_lost(None)
    parts = len(transport.writes)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(transport.writes) == parts


async def test_connection_aborts_when_the_client_does_not_read():
    async with serving(write_timeout_s=SHORT_S) as service:
        service.gate.body = lambda description: b"x" * 1_000_000
        with socket.create_connection(("127.0.0.1", service.port)) as client:
            client.sendall((GET + b"\r\n") * 100)
            await service.gate.called.acquire()
            await service.until_settled()


@pytest.mark.parametrize("how", ["half-closed", "reset"])
@pytest.mark.parametrize("sent", [b"", b"GET", GET, POST + b"Content-Length: 9\r\n\r\nabc", CHUNKED + b"3\r\na"])
async def test_connection_survives_a_disconnect_at_any_time(sent, how):
    """No task is left, and the log has no traceback."""

    async with serving() as service:
        client = await service.client()
        client.send(sent)
        if b"\r\n\r\n" in sent:
            await service.gate.called.acquire()
        if how == "half-closed":
            client.writer.write_eof()
            assert await client.until_closed() == b""
        else:
            linger = struct.pack("ii", 1, 0)
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.writer.transport.abort()
        await service.until_settled()
        assert service.gate.disconnects == (b"\r\n\r\n" in sent)


async def test_connection_delivers_an_early_response_while_the_body_is_sent():
    """Closing a socket with until_unread bytes would reset it, and discard the response."""

    def refuse(_: Head) -> Response:
        return Response(b"no", 413, {"connection": "close"})

    async with serving(RecordingGate(refuse)) as service:
        client = await service.client()
        client.send(POST + b"Content-Length: 50000000\r\n\r\n")
        for _ in range(50):
            client.send(b"x" * 1_000_000)
            await client.writer.drain()
        status, _, body = await client.response()
        assert (status, body, await client.until_closed()) == (413, b"no", b"")


async def test_connection_reads_the_next_request_after_an_unread_body():
    def refuse(_: Head) -> Response:
        return Response(status_code=404)

    async with serving(RecordingGate(refuse)) as service:
        client = await service.client()
        for _ in range(3):
            client.send(POST + b"Content-Length: 600000\r\n\r\n" + b"x" * 600_000)
        assert [(await client.response())[0] for _ in range(3)] == [404] * 3
        client.writer.close()


async def test_connection_writes_head_and_body_at_once():
    transport = FakeTransport()

    posted = [POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"", b"ab"]
    await exchange(RecordingGate(), [*posted, b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n"], transport)

    continued, answered, headed = transport.writes
    assert continued == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answered.endswith(b"\r\n\r\nPOST|/|host,expect,content-length|ab")
    assert headed.startswith(b"HTTP/1.1 200 OK\r\n")
    assert headed.endswith(b"\r\n\r\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how long bytes have waited")
async def test_connection_measures_the_arrival_of_a_request_in_the_kernel():
    lag_s, slow_s = 0.2, 0.1
    heads: list[tuple[Head, float]] = []

    def refuse(head: Head) -> Response:
        heads.append((head, time.monotonic()))
        return Response()

    async with serving(RecordingGate(refuse)) as service:
        client = await service.client()
        for pieces in ([GET + b"\r\n"], [GET, b"\r\n"], [GET + b"\r\n"]):
            for piece in pieces[:-1]:
                client.send(piece)
                await asyncio.sleep(slow_s)
            client.send(pieces[-1])
            time.sleep(lag_s)
            assert (await client.response())[0] == 200

    for (head, now), took_s in zip(heads, (0.0, slow_s, 0.0), strict=True):
        assert lag_s - 0.02 <= head.lag_s < lag_s + PATIENCE_S / 2  # the kernel's clock has a resolution of 10 ms
        assert lag_s + took_s - 0.02 <= now - head.received < lag_s + took_s + PATIENCE_S / 2


async def test_connection_never_sends_a_second_response():
    """The first response is sent before the body, which turns out to be malformed."""

    def refuse(_: Head) -> Response:
        return Response(b"no", 404)

    async with serving(RecordingGate(refuse)) as service:
        client = await service.client()
        client.send(CHUNKED)
        assert (await client.response())[0] == 404
        client.send(b"zz\r\n" + GET + b"\r\n")
        assert await client.until_closed() == b""


async def test_connection_answers_the_current_request_on_shutdown():
    async with serving() as service:
        resting, answered, sending, starting = [await service.idle_client() for _ in range(4)]
        service.gate.may_respond.clear()
        answered.send(GET + b"\r\n")
        sending.send(POST + b"Content-Length: 3\r\n\r\n")
        for _ in range(2):
            await service.gate.called.acquire()
        starting.send(GET)
        await until(lambda: any(one.phase is HEAD for one in service.table.connections))
        for one in list(service.table.connections):
            one.shutdown()
        assert await resting.until_closed() == b""

        service.gate.may_respond.set()
        sending.send(b"abc")
        starting.send(b"\r\n")
        for client in (answered, sending, starting):
            status, headers, _ = await client.response()
            assert (status, headers["connection"]) == (200, "close")
            assert await client.until_closed() == b""
        await service.until_settled()


@pytest.mark.parametrize(
    "body", [b"\r\n", b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
async def test_connection_ends_after_its_last_refusal(body):
    """Even if the client does not close, and sends more."""

    def refuse(_: Head) -> Response:
        return Response(b"no", 404)

    async with serving(RecordingGate(refuse), linger_timeout_s=SHORT_S) as service:
        client = await service.client()
        client.send(POST + b"Connection: close\r\n" + body)
        assert (await client.response())[0] == 404
        client.send(GET + b"\r\n")
        await service.until_settled()
        assert len(service.gate.heads) == 1
        client.writer.close()


async def test_connection_ends_after_a_body_that_is_too_large_and_malformed():
    gate = RecordingGate()
    gate.max_body_bytes = 4
    async with serving(gate, linger_timeout_s=SHORT_S) as service:
        for end in (b"0\r\n\r\n", b"zz\r\n"):
            client = await service.client()
            client.send(CHUNKED + b"5\r\nabcde\r\n" + end)
            assert (await client.response())[0] == 413
            assert await client.until_closed() == b""
            await service.until_settled()
            client.writer.close()
    assert gate.refused == []


@pytest.mark.parametrize("phase", ["before the first step", "later"])
async def test_connection_finishes_a_request_once_when_the_client_disconnects(phase):
    gate = RecordingGate()
    gate.may_respond.clear()

    table = ConnectionTable(gate, ConnectionLimits())
    connection = Connection(table)
    connection.connection_made(FakeTransport())
    connection.data_received(GET + b"\r\n")
    await until(lambda: table.tasks)
    if phase == "later":
        await until(lambda: gate.in_progress)
    connection.connection_lost(None)
    await until(lambda: not table.tasks)
    assert gate.disconnects == 1
