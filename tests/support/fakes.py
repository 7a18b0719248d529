"""Engines and encodings that tests control. They implement the public interfaces and nothing else."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Sequence

import numpy as np

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import DeadlineExceeded
from swiftlet_serve.service.scheduling.batcher import Batcher
from swiftlet_serve.service.types import Batch, BatchResult, Cost, Outcome, Row, TimedCall

PATIENCE_S = 30.0  # how long a test waits for what must happen; only a failing test ever waits that long
RAGGED = Cost(padded=False, call_tokens=0, max_tokens=512, max_rows=64)
WIDTH = 2


def encoding(tag: int, length: int = 4) -> Encoding:
    """An encoding whose every id is `tag`, read at its first token."""
    ids = np.full(length, tag, np.int64)
    return Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64))


def tags(batch: Batch) -> list[int]:
    return [int(batch.input_ids[start]) for start in batch.offsets[:-1]]


def row_of(tag: int) -> Row:
    return np.array([[tag, -tag]], np.float32)


async def submit(batcher: Batcher, encoding: Encoding, deadline: float) -> Row:
    """One encoding's row, waited for no longer than to the deadline, as a pipeline does."""
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            (answer,) = batcher.submit([encoding], deadline)
            return await answer
    except TimeoutError:
        raise DeadlineExceeded("deadline_exceeded", "It was not.") from None


class Call:
    """One call of a `GatedEngine`: it has begun, and ends when the test says so."""

    def __init__(self, batch: Batch):
        self.tags = tags(batch)
        self.rows: Sequence[Row] = [row_of(tag) for tag in self.tags]
        self.error: Exception | None = None
        self._gate = threading.Event()

    def finish(self, rows: Sequence[Row] | None = None, error: Exception | None = None) -> None:
        self.rows = self.rows if rows is None else rows
        self.error = error
        self._gate.set()

    def wait(self) -> Sequence[Row]:
        assert self._gate.wait(PATIENCE_S), "the test never finished this call"
        if self.error is not None:
            raise self.error
        return self.rows


class GatedEngine:
    """Tells the test of each call, and answers when told to."""

    runs_network = False

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
        """The next call, once it has begun."""
        return await asyncio.to_thread(self.calls.get, timeout=PATIENCE_S)


class Engine:
    """Answers at once with `answer(tags)`, and remembers what it was asked."""

    runs_network = False
    cost = RAGGED

    def __init__(self, answer=lambda asked: [row_of(tag) for tag in asked]):
        self.answer = answer
        self.asked: list[list[int]] = []

    def run(self, batch: Batch) -> Sequence[Row]:
        self.asked.append(tags(batch))
        return self.answer(tags(batch))

    def close(self) -> None:
        pass


class ScriptedCrew:
    """Tells the test of each call, and gives or raises what the test says."""

    ready = True
    restarts = 0

    def __init__(self, size: int, cost: Cost = RAGGED):
        self.size = size
        self.asked: list[list[int]] = []
        self.calls: asyncio.Queue[asyncio.Future[list[Outcome]]] = asyncio.Queue()
        self._cost = cost

    def cost(self, model: str) -> Cost:
        return self._cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return ()

    async def open(self) -> None:
        pass

    async def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> BatchResult:
        self.asked.append(tags(Batch.of(encodings)))
        call: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.calls.put_nowait(call)
        return BatchResult(await call, 0.0)

    async def close(self, grace_s: float) -> bool:
        return True
