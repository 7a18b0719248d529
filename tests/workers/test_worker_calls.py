"""A connection to a worker process accepts only the result of its own call, and fails on anything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from swiftlet_serve.types import BatchResult, WorkerLost
from swiftlet_serve.workers import messages
from swiftlet_serve.workers.worker_calls import WorkerConnection
from tests.support.fakes import row_of

CALL = 7


class Transport(asyncio.Transport):
    """Records the bytes that are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.aborted = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.aborted = True


class Worker:
    """A connection without a process. Tests send the bytes that the process would send."""

    def __init__(self) -> None:
        self.idle: list[WorkerConnection] = []
        self.failures = 0
        self.transport = Transport()
        self.connection = WorkerConnection(self.idle.append, self._fail)
        self.connection.connection_made(self.transport)

    def _fail(self) -> None:
        self.failures += 1

    def call(self, size: int = 2) -> asyncio.Future[BatchResult]:
        return self.connection.send(b"call", CALL, size)


def result(*tags: int, id_: int = CALL) -> bytes:
    return messages.pack_result(id_, BatchResult([row_of(tag) for tag in tags], 0.25))


def run(scenario: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(Worker())

    asyncio.run(main())


@pytest.mark.parametrize("piece", [1, 9, 1 << 20])
def test_connection_returns_a_result_that_arrives_in_pieces(piece):
    async def scenario(worker: Worker) -> None:
        for tags in ((1, 2), (3, 4)):
            call = worker.call()
            message = result(*tags)
            for at in range(0, len(message), piece):
                assert not call.done()
                worker.connection.data_received(message[at : at + piece])

            outcomes, engine_s, helped_s = await call
            assert np.array_equal(outcomes, [row_of(tag) for tag in tags])
            assert (engine_s, helped_s) == (0.25, 0)
        assert worker.transport.sent == b"call" * 2
        assert worker.idle == [worker.connection] * 2
        assert worker.failures == 0

    run(scenario)


@pytest.mark.parametrize(
    "message",
    [
        result(1, 2, id_=CALL + 1),
        result(1),
        result(1, 2, 3),
        result(1, 2) + b"\0",
        bytes(messages.HEADER_BYTES),
        (16).to_bytes(messages.HEADER_BYTES, "little") + b"\xff" * 16,
    ],
    ids=["another call", "too few sequences", "too many sequences", "too many bytes", "no body", "not a result"],
)
def test_connection_fails_on_an_invalid_result(message):
    async def scenario(worker: Worker) -> None:
        call = worker.call()
        worker.connection.data_received(message)

        assert (worker.failures, worker.idle) == (1, [])
        assert not call.done()  # until the connection is aborted

    run(scenario)


def test_connection_fails_on_data_without_a_call():
    async def scenario(worker: Worker) -> None:
        worker.connection.data_received(result(1, 2))

        assert (worker.failures, worker.idle) == (1, [])

    run(scenario)


def test_connection_fails_if_the_worker_closes_it():
    async def scenario(worker: Worker) -> None:
        worker.connection.connection_lost(None)

        assert worker.failures == 1

    run(scenario)


@pytest.mark.parametrize("suspect", [True, False])
def test_abort_fails_the_running_call(suspect):
    async def scenario(worker: Worker) -> None:
        call = worker.call()
        worker.connection.abort(suspect=suspect)

        with pytest.raises(WorkerLost) as lost:
            await call
        assert lost.value.suspect is suspect
        assert worker.transport.aborted

    run(scenario)


def test_connection_is_idle_again_after_the_result_of_a_cancelled_call():
    async def scenario(worker: Worker) -> None:
        worker.call().cancel()
        assert worker.idle == []
        worker.connection.data_received(result(1, 2))

        assert worker.idle == [worker.connection]
        assert worker.failures == 0

    run(scenario)
