"""Engines, executors and sequences that tests control. They implement the public protocols and nothing else."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import DeadlineExceeded
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Batch, BatchResult, Cost, Deadline, Outcome, Priority, Row, TimedCall
from swiftlet_serve.types import Engine as AnyEngine
from swiftlet_serve.workers.hosted_model import EngineModel
from swiftlet_serve.workers.thread_executor import ThreadExecutor

PATIENCE_S = 30.0  # time limit for events that must happen; only a failing test waits that long
RAGGED = Cost(padded=False, call_tokens=0, max_tokens=512, max_rows=64)
WIDTH = 2


def encoding(tag: int, length: int = 4) -> Encoding:
    """Returns a sequence whose token ids all equal `tag`, with its first token in focus."""
    ids = np.full(length, tag, np.int64)
    return Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64))


def tags(batch: Batch) -> list[int]:
    """Returns the tag of each sequence of a batch."""
    return [int(batch.input_ids[start]) for start in batch.offsets[:-1]]


def row_of(tag: int) -> Row:
    """Returns the row with which these engines answer a sequence."""
    return np.array([[tag, -tag]], np.float32)


def rows_of(tags: Sequence[int]) -> list[Row]:
    """Returns the rows of several sequences."""
    return [row_of(tag) for tag in tags]


class Scheduler:
    """Admits and submits the requests of one model, as a pipeline does."""

    def __init__(self, dispatcher: Dispatcher, model: str = "model", max_queued_tokens: int = 1 << 16) -> None:
        self.dispatcher = dispatcher
        self.admission = AdmissionController(dispatcher.load, max_queued_tokens)
        self.queue = dispatcher.add_model(model)

    def submit(
        self,
        encodings: Sequence[Encoding],
        deadline: Deadline,
        priority: Priority = "interactive",
        record: RequestRecord | None = None,
    ) -> list[asyncio.Future[Row]]:
        """Queues all sequences of a request, or raises Unavailable."""
        remaining_s = deadline - self.dispatcher.clock()
        lengths, client = [len(one.input_ids) for one in encodings], "" if record is None else record.account
        self.admission.commit(None, self.queue.name, lengths, remaining_s, priority, client)
        return self.dispatcher.submit(self.queue.name, encodings, deadline, priority, record)

    async def close(self, grace_s: float) -> bool:
        self.admission.close()
        return await self.dispatcher.close(grace_s)


async def submit(scheduler: Scheduler, encoding: Encoding, deadline: Deadline) -> Row:
    """Returns the row of one sequence, or raises DeadlineExceeded at its deadline, as a pipeline does."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            (row,) = scheduler.submit([encoding], deadline)
            return await row
    except TimeoutError:
        raise DeadlineExceeded("deadline_exceeded", "The deadline has passed.") from None


class Call:
    """A running call of a `ManualEngine`, which ends when the test finishes it."""

    def __init__(self, batch: Batch):
        self.tags = tags(batch)
        self.rows: Sequence[Row] = [row_of(tag) for tag in self.tags]
        self.error: Exception | None = None
        self._finished = threading.Event()

    def finish(self, rows: Sequence[Row] | None = None, error: Exception | None = None) -> None:
        """Ends the call with these rows or this error, or else with the expected rows."""
        self.rows = self.rows if rows is None else rows
        self.error = error
        self._finished.set()

    def wait(self) -> Sequence[Row]:
        assert self._finished.wait(PATIENCE_S), "the test never finished this call"
        if self.error is not None:
            raise self.error
        return self.rows


class ManualEngine:
    """Reports each call to the test and blocks until the test finishes it."""

    title = "manual"
    runs_network: ClassVar[bool] = False
    extra_tolerance = 0.0

    def __init__(self, cost: Cost = RAGGED):
        self.cost = cost
        self.calls: queue.SimpleQueue[Call] = queue.SimpleQueue()

    def run(self, batch: Batch) -> Sequence[Row]:
        call = Call(batch)
        self.calls.put(call)
        return call.wait()

    def close(self) -> None:
        pass

    async def called(self) -> Call:
        """Waits for the next call."""
        return await asyncio.to_thread(self.calls.get, timeout=PATIENCE_S)


class Engine:
    """Answers immediately with `answer(tags)` and records the tags of each call."""

    title = "fake"
    runs_network: ClassVar[bool] = False
    extra_tolerance = 0.0
    cost = RAGGED

    def __init__(self, answer: Callable[[list[int]], Sequence[Row]] = rows_of):
        self.answer = answer
        self.asked: list[list[int]] = []

    def run(self, batch: Batch) -> Sequence[Row]:
        self.asked.append(tags(batch))
        return self.answer(tags(batch))

    def close(self) -> None:
        pass


class ManualExecutor:
    """Reports each call to the test, which sets its result or its exception."""

    ready = True
    restarts = 0
    kernel_faults = 0
    workers: dict[str, int] = {}  # noqa: RUF012  # no test changes it

    def __init__(self, size: int, cost: Cost = RAGGED):
        self.size = size
        self.asked: list[list[int]] = []
        self.calls: asyncio.Queue[asyncio.Future[list[Outcome]]] = asyncio.Queue()
        self._cost = cost

    def cost(self, model: str) -> Cost:
        return self._cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return ()

    def runtime(self, model: str) -> str:
        return "manual"

    async def open(self) -> None:
        pass

    async def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        self.asked.append(tags(Batch.of(encodings)))
        call: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.calls.put_nowait(call)
        return BatchResult(await call, 0.0)

    async def close(self, grace_s: float) -> bool:
        return True


def soon() -> float:
    """Returns a deadline that a passing test never reaches."""
    return time.monotonic() + PATIENCE_S


async def settle() -> None:
    """Lets the event loop run until submitted work is dispatched."""
    for _ in range(5):
        await asyncio.sleep(0)


def dispatcher_of(cores: int, **engines: AnyEngine) -> Dispatcher:
    """Returns a dispatcher over engines in this process, whose models have rows of `WIDTH` values."""
    hosted = {name: EngineModel(engine, [WIDTH]) for name, engine in engines.items()}
    return Dispatcher(ThreadExecutor(hosted, cores))


def one_core(engine: AnyEngine, max_queued_tokens: int = 1 << 16) -> Scheduler:
    """Returns the scheduler of one model on one core."""
    return Scheduler(dispatcher_of(1, model=engine), max_queued_tokens=max_queued_tokens)
