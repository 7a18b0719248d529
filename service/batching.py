"""Batches form by themselves out of what waits.

    submit ─▶ Batcher   what waits for one engine, oldest first; one for each model
                 │ plan
              Pool      the cores, each running one call of any engine at a time; one for the process
                 │ run
              Engine ─▶ each row to the caller who waits for it

An idle core starts at once with its share of what waits: no core idles while there is work, and no batch waits to be
filled. While all cores are busy work gathers, and the next batch is the larger for it. Nothing here polls or paces
itself; the one clock is the caller's deadline. A caller who has gone, or whose deadline has passed, is dropped before
a batch is formed.

Everything but `run` happens on the event loop, between two awaits, and so needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from models.tokenizer import Encoding
from service import timings
from service.errors import DeadlineExceeded, Internal, Unavailable, report
from service.types import Batch, Cost, Deadline, Engine, Row

log = logging.getLogger(__name__)

LOOKAHEAD: Final = 256
"""Encodings that are looked at to form a batch, if it cannot hold more: so a decision is cheap however many wait."""


def plan(lengths: Sequence[int], cost: Cost, share: int) -> list[int]:
    """Decides which of the waiting encodings make the next batch.

    The oldest always goes, so nothing starves. The others follow by nearness to its length, each while the batch stays
    within the engine's limits, this core takes no more than its share, and padding costs less than another call would.

    Args:
        lengths: tokens of each encoding, oldest first; at least one.
        cost: what a batch costs the engine.
        share: tokens that this core should take, so that idle cores share what waits.

    Returns:
        Indices into `lengths`.
    """
    oldest = lengths[0]
    batch, tokens, longest, charge = [0], oldest, oldest, oldest
    for i in sorted(range(1, len(lengths)), key=lambda i: abs(lengths[i] - oldest)):
        if len(batch) == cost.max_rows:
            break
        more_tokens, new_longest = tokens + lengths[i], max(longest, lengths[i])
        new_charge = (len(batch) + 1) * new_longest if cost.padded else more_tokens
        padding = new_charge - charge - lengths[i]
        if more_tokens <= share and new_charge <= cost.max_tokens and padding <= cost.call_tokens:
            batch.append(i)
            tokens, longest, charge = more_tokens, new_longest, new_charge
    return batch


@dataclass(eq=False, slots=True)
class Waiting:
    """One encoding and the caller who waits for its row. Times are of `time.monotonic()`."""

    encoding: Encoding
    deadline: Deadline
    answer: asyncio.Future[Row]
    submitted: float = field(default_factory=time.monotonic)
    started: float = math.nan
    finished: float = math.nan

    def __len__(self) -> int:
        return len(self.encoding.input_ids)


class Batcher:
    """What waits for one engine. Its `submit` is a `Submit`."""

    def __init__(self, engine: Engine, width: int, pool: Pool) -> None:
        """Joins the pool; `width` is the length O of the rows (F, O) that the engine must give."""
        self.engine = engine
        self.width = width
        self.tokens = 0  # of all that waits
        self._waiting: dict[Waiting, None] = {}  # a queue that can be left from anywhere
        self._pool = pool
        pool.join(self)

    async def submit(self, encoding: Encoding, deadline: Deadline) -> Row:
        """Answers by the deadline, whatever the engine does.

        Raises:
            Unavailable: too much waits already, or the pool is closing.
            DeadlineExceeded: the row was not there in time.
            Internal: the engine failed on this encoding.
        """
        item = Waiting(encoding, deadline, asyncio.get_running_loop().create_future())
        self._pool.admit(len(item))
        self._waiting[item] = None
        self.tokens += len(item)
        try:
            async with asyncio.timeout(deadline - item.submitted):
                row = await item.answer
        except TimeoutError:
            raise _too_late() from None
        finally:
            self._remove(item)
        timings.record("queue", item.started - item.submitted)
        timings.record("infer", item.finished - item.started)
        return row

    @property
    def oldest(self) -> float:
        """When the encoding that has waited longest was submitted; there must be one."""
        return next(iter(self._waiting)).submitted

    def take(self, share: int) -> list[Waiting]:
        """Removes the next batch from the queue; empty where nobody is left who waits."""
        now, cost = time.monotonic(), self.engine.cost
        wanted = []
        for item in list(islice(self._waiting, max(LOOKAHEAD, cost.max_rows))):
            if not item.answer.done() and item.deadline > now:
                wanted.append(item)
                continue
            self._remove(item)
            if not item.answer.done():
                item.answer.set_exception(_too_late())
        if not wanted:
            return []
        batch = [wanted[i] for i in plan([len(item) for item in wanted], cost, share)]
        for item in batch:
            self._remove(item)
        return batch

    def _remove(self, item: Waiting) -> None:
        if item in self._waiting:
            del self._waiting[item]
            self.tokens -= len(item)


class Pool:
    """The cores of the process, shared by all its batchers."""

    def __init__(self, cores: int, max_waiting_tokens: int) -> None:
        self.max_waiting_tokens = max_waiting_tokens
        self._cores = cores
        self._idle = cores
        self._threads = ThreadPoolExecutor(cores, "core")
        self._batchers: list[Batcher] = []
        self._calls: set[asyncio.Future[list[Row | Internal]]] = set()
        self._seconds_per_token = 0.0  # of one core, averaged over recent calls
        self._awake = False
        self._closing = False

    def join(self, batcher: Batcher) -> None:
        self._batchers.append(batcher)

    def admit(self, tokens: int) -> None:
        """Lets an encoding wait, and sees to it that an idle core looks at it.

        Raises:
            Unavailable: the queue is full, or the pool is closing.
        """
        if self._closing:
            raise Unavailable("draining", "The server is shutting down.", retry_after=1.0)
        waiting = self.waiting_tokens
        if waiting + tokens > self.max_waiting_tokens:
            backlog = waiting * self._seconds_per_token / self._cores
            raise Unavailable("overloaded", "Too much work waits already.", retry_after=max(1.0, backlog))
        self._wake()

    @property
    def waiting_tokens(self) -> int:
        return sum(batcher.tokens for batcher in self._batchers)

    async def close(self, grace_s: float) -> bool:
        """Admits nothing more, and finishes what waits; says whether all of it was done in time."""
        self._closing = True
        ends = time.monotonic() + grace_s
        self._dispatch()
        while self._calls and (left := ends - time.monotonic()) > 0:
            await asyncio.wait(self._calls, timeout=left)
            self._dispatch()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not self._calls

    def _wake(self) -> None:
        """Looks for work once this turn of the event loop is over, so that what arrives together is seen together."""
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Starts idle cores on what waits, the longest-waiting batcher first."""
        self._awake = False
        while self._idle and (busy := [batcher for batcher in self._batchers if batcher.tokens]):
            batcher = min(busy, key=lambda batcher: batcher.oldest)
            if batch := batcher.take(share=math.ceil(self.waiting_tokens / self._idle)):
                self._start(batcher, batch)

    def _start(self, batcher: Batcher, batch: list[Waiting]) -> None:
        self._idle -= 1
        now = time.monotonic()
        for item in batch:
            item.started = now
        call = asyncio.get_running_loop().run_in_executor(
            self._threads, run, batcher.engine, batcher.width, [item.encoding for item in batch]
        )
        self._calls.add(call)
        call.add_done_callback(partial(self._finish, batch))

    def _finish(self, batch: list[Waiting], call: asyncio.Future[list[Row | Internal]]) -> None:
        """Frees the core first, then hands every caller who still waits what is theirs."""
        self._idle += 1
        self._calls.discard(call)
        self._wake()
        now = time.monotonic()
        pace = (now - batch[0].started) / sum(len(item) for item in batch)
        self._seconds_per_token += (pace - self._seconds_per_token) / 8
        for item, outcome in zip(batch, _outcomes(call, len(batch)), strict=True):
            item.finished = now
            if item.answer.done():
                continue
            if isinstance(outcome, Internal):
                item.answer.set_exception(outcome)
            else:
                item.answer.set_result(outcome)


def run(engine: Engine, width: int, encodings: Sequence[Encoding]) -> list[Row | Internal]:
    """Runs a batch on the calling thread: for each encoding its row, or why it has none.

    A batch that fails is halved until the guilty stand alone, and their neighbours have their rows.
    """
    try:
        rows = engine.run(Batch.of(encodings))
    except Exception as error:
        if len(encodings) == 1:
            report(log, "the engine failed on one encoding", error)
            return [Internal("internal", "The model failed on this input.")]
        half = len(encodings) // 2
        return run(engine, width, encodings[:half]) + run(engine, width, encodings[half:])
    return _inspect(rows, width, encodings)


def _inspect(rows: Sequence[Row], width: int, encodings: Sequence[Encoding]) -> list[Row | Internal]:
    """Rows whose number or shapes are wrong are all refused, since there is no telling whose they are."""
    found, expected = [np.shape(row) for row in rows], [(len(e.focus), width) for e in encodings]
    if found != expected:
        log.error("engine gave rows of shapes %s for %s", found, expected)
        return [_invalid() for _ in encodings]
    return [row if np.isfinite(row).all() else _invalid() for row in rows]


def _outcomes(call: asyncio.Future[list[Row | Internal]], n: int) -> list[Row | Internal]:
    """What `run` returned; where it raised, which only a fault of ours makes it do, n errors."""
    try:
        return call.result()
    except (Exception, asyncio.CancelledError) as error:
        report(log, "an engine call was lost", error)
        return [Internal("internal", "The model failed.") for _ in range(n)]


def _invalid() -> Internal:
    return Internal("invalid_engine_output", "The model gave an answer that cannot be right.")


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("deadline_exceeded", "The answer was not ready within the deadline.")
