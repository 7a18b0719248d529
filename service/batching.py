"""Batches form by themselves out of what waits.

    submit ─▶ Batcher   what waits for one engine, oldest first; one for each model
                 │ plan
              Pool      the cores, each running one call of any engine at a time; one for the process
                 │ run
              Crew ─▶ each row to the caller who waits for it

An idle core starts at once with its share of what waits: no core idles while there is work, and no batch waits to be
filled. While all cores are busy work gathers, and the next batch is the larger for it. Nothing here polls or paces
itself; the one clock is the caller's deadline. A caller who has gone, or whose deadline has passed, is dropped before
a batch is formed.

An engine may be lost in the middle of a call (`Lost`). Rows of a call that had no part in it go back to the front of
their queue. Those of a call that may have been the cause are suspects: each runs alone, one suspect at a time, so that
a second loss tells whose fault it was. That one fails; all others are answered.

Everything but `Crew.run` happens on the event loop, between two awaits, and so needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from models.tokenizer import Encoding
from service import timings
from service.errors import DeadlineExceeded, Internal, SwiftletError, Unavailable, report
from service.types import Cost, Crew, Deadline, Lost, Outcome, Row

log = logging.getLogger(__name__)

LOOKAHEAD: Final = 256
"""Encodings that are looked at to form a batch, if it cannot hold more: so a decision is cheap however many wait."""

PATIENCE_S: Final = 10.0
"""How long a call may take. A batch is at most a few hundred tokens, and so takes well under a second."""


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
    suspect: bool = False  # whether the engine was lost while this ran, and this may have been why

    def __len__(self) -> int:
        return len(self.encoding.input_ids)


class Batcher:
    """What waits for one model. Its `submit` is a `Submit`."""

    def __init__(self, model: str, pool: Pool) -> None:
        """Joins the pool; `model` is the name that its crew knows."""
        self.model = model
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

    def take(self, share: int, suspects: bool) -> list[Waiting]:
        """Removes the next batch from the queue: a suspect alone, if `suspects` may run, else some of the others.

        Empty where there are none of which somebody waits for the row.
        """
        now, cost = time.monotonic(), self._pool.crew.cost(self.model)
        wanted = []
        for item in list(islice(self._waiting, max(LOOKAHEAD, cost.max_rows))):
            if not item.answer.done() and item.deadline > now:
                wanted.append(item)
                continue
            self._remove(item)
            if not item.answer.done():
                item.answer.set_exception(_too_late())
        suspected = [item for item in wanted if item.suspect]
        others = [item for item in wanted if not item.suspect]
        if suspected and suspects:
            batch = suspected[:1]
        elif others:
            batch = [others[i] for i in plan([len(item) for item in others], cost, share)]
        else:
            batch = []
        for item in batch:
            self._remove(item)
        return batch

    def put_back(self, batch: Sequence[Waiting]) -> None:
        """Puts what was taken back to the front, in the order of submission, unless its caller has gone."""
        items = [item for item in batch if not item.answer.done()]
        self.tokens += sum(len(item) for item in items)
        self._waiting = dict.fromkeys(sorted([*items, *self._waiting], key=lambda item: item.submitted))

    def _remove(self, item: Waiting) -> None:
        if item in self._waiting:
            del self._waiting[item]
            self.tokens -= len(item)


class Pool:
    """The cores of a crew, shared by all batchers."""

    def __init__(self, crew: Crew, max_waiting_tokens: int, patience_s: float = PATIENCE_S) -> None:
        """`patience_s` is after how long a call is given up, and the engine with it."""
        self.crew = crew
        self.max_waiting_tokens = max_waiting_tokens
        self.patience_s = patience_s
        self._idle = crew.size
        self._suspect_runs = False
        self._batchers: list[Batcher] = []
        self._calls: set[asyncio.Future[list[Outcome]]] = set()
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
            backlog = waiting * self._seconds_per_token / self.crew.size
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
        return not self._calls

    def _wake(self) -> None:
        """Looks for work once this turn of the event loop is over, so that what arrives together is seen together."""
        if not self._awake:
            self._awake = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Starts idle cores on what waits."""
        self._awake = False
        while self._idle and (found := self._next()):
            self._start(*found)

    def _next(self) -> tuple[Batcher, list[Waiting]] | None:
        """The next batch, from the batcher that has waited longest; None where there is nothing to start."""
        for batcher in sorted((one for one in self._batchers if one.tokens), key=lambda one: one.oldest):
            share = math.ceil(self.waiting_tokens / self._idle)
            if batch := batcher.take(share, suspects=not self._suspect_runs):
                return batcher, batch
        return None

    def _start(self, batcher: Batcher, batch: list[Waiting]) -> None:
        self._idle -= 1
        self._suspect_runs |= batch[0].suspect
        now = time.monotonic()
        for item in batch:
            item.started = now
        call = asyncio.ensure_future(self.crew.run(batcher.model, [item.encoding for item in batch], self.patience_s))
        self._calls.add(call)
        call.add_done_callback(partial(self._finish, batcher, batch))

    def _finish(self, batcher: Batcher, batch: list[Waiting], call: asyncio.Future[list[Outcome]]) -> None:
        """Frees the core first, then hands every caller who still waits what is theirs."""
        self._idle += 1
        self._suspect_runs &= not batch[0].suspect
        self._calls.discard(call)
        self._wake()
        now = time.monotonic()
        try:
            outcomes: Sequence[Row | SwiftletError] = call.result()
        except Lost as lost:
            if not (lost.guilty and batch[0].suspect):
                for item in batch:
                    item.suspect |= lost.guilty
                batcher.put_back(batch)
                return
            outcomes = [Internal("internal", "The model failed on this input.")]
        except SwiftletError as error:
            outcomes = [error] * len(batch)
        except (Exception, asyncio.CancelledError) as error:  # only a fault of ours
            report(log, "an engine call was lost", error)
            outcomes = [Internal("internal", "The model failed.") for _ in batch]
        else:
            pace = (now - batch[0].started) / sum(len(item) for item in batch)
            self._seconds_per_token += (pace - self._seconds_per_token) / 8
        for item, outcome in zip(batch, outcomes, strict=True):
            item.finished = now
            if item.answer.done():
                continue
            if isinstance(outcome, SwiftletError):
                item.answer.set_exception(outcome)
            else:
                item.answer.set_result(outcome)


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded("deadline_exceeded", "The answer was not ready within the deadline.")
