"""Clients that send a request in pieces."""

from __future__ import annotations

import pytest

from swiftlet_serve.http.connections.connection import Connection
from tests.support.connections import (
    CHUNKED,
    GET,
    POST,
    SHORT_S,
    RecordingGate,
    exchange,
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
async def test_request_in_two_pieces_is_answered_when_the_second_arrives(reads, request_bytes):
    """For every place at which the pieces may be cut, and without a timeout's help."""
    requests = request_bytes.count(b"HTTP/1.1")

    expected = await exchange(RecordingGate(), [request_bytes])
    async with serving(head_timeout_s=60.0, request_timeout_s=60.0) as service:
        for cut in range(1, len(request_bytes)):
            reads.clear()
            client = await service.client()
            client.send(request_bytes[:cut])
            await until(lambda cut=cut: b"".join(reads).startswith(request_bytes[:cut]))
            client.send(request_bytes[cut:])
            answers = [await client.response() for _ in range(requests)]
            assert all(body in expected for _, _, body in answers)
            client.send(GET + b"\r\n")
            assert (await client.response())[0] == 200
            client.writer.close()


async def test_request_whose_rest_does_not_arrive_times_out(reads):
    async with serving(request_timeout_s=SHORT_S) as service:
        client = await service.client()
        client.send(WITH_LENGTH[:-40])
        await until(lambda: len(reads) == 1)
        client.send(b"5")
        await client.assert_refused(408, "receive_timeout")


@pytest.mark.parametrize("sent", [GET[:20], WITH_LENGTH[:-40]])
async def test_disconnect_of_a_slow_client_is_noticed_at_once(reads, sent):
    async with serving() as service:
        client = await service.client()
        client.send(sent)
        await until(lambda: len(reads) == 1)
        client.send(b"5")
        client.writer.close()
        await service.until_settled()
