"""The listener: binding, accepting and closing."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

import pytest

from swiftlet_serve.errors import SetupError
from swiftlet_serve.http.connections.listener import RETRY_S, Listener, bind


async def test_closing_listener_refuses_new_connections():
    listener = Listener(bind("127.0.0.1", 0))
    listener.listen()
    made = []
    listener.open(lambda: made.append(asyncio.Protocol()) or made[-1])
    before = await asyncio.open_connection(*listener.address)
    address = listener.address
    closing = asyncio.ensure_future(listener.close())
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
    await closing
    assert len(made) == 1
    before[1].close()


def test_bind_reports_an_address_in_use():
    taken = bind("127.0.0.1", 0)
    taken.listen()

    with taken, pytest.raises(SetupError, match=r"Cannot listen on 127.0.0.1, port .*: Address already in use\. Stop"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_listen_reports_an_address_in_use():
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        Listener(first).listen()
        with pytest.raises(SetupError, match="Address already in use"):
            Listener(second).listen()


async def test_listener_keeps_clients_waiting_without_file_descriptors(caplog):
    made: asyncio.Queue[asyncio.Protocol] = asyncio.Queue()

    class RecordingProtocol(asyncio.Protocol):
        def connection_made(self, transport):
            made.put_nowait(self)

    listener = Listener(bind("127.0.0.1", 0))
    listener.listen()
    clients = [socket.create_connection(listener.address) for _ in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 5, hard))
    try:
        listener.open(RecordingProtocol)
        for _ in range(5):
            await made.get()
        while not caplog.records:
            await asyncio.sleep(0)
        await asyncio.sleep(3 * RETRY_S)
        assert made.empty()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for _ in range(15):
        await made.get()
    await listener.close()
    for client in clients:
        client.close()

    assert [record.getMessage() for record in caplog.records] == [
        "Cannot accept connections: Too many open files. They wait in the kernel."
    ]


async def test_listener_accepts_one_client_at_a_time_while_busy():
    made: list[asyncio.Protocol] = []
    before: list[int] = []  # accepted clients at each call of `is_busy`

    class RecordingProtocol(asyncio.Protocol):
        def connection_made(self, transport):
            made.append(self)

    def is_busy() -> bool:
        before.append(len(made))
        return len(before) <= 5

    listener = Listener(bind("127.0.0.1", 0))
    listener.listen()
    clients = [socket.create_connection(listener.address) for _ in range(20)]
    listener.open(RecordingProtocol, is_busy)
    while len(made) < len(clients):
        await asyncio.sleep(0)
    assert before[:6] == [0, 1, 2, 3, 4, 5]
    await listener.close()
    for client in clients:
        client.close()
