"""Batches form by themselves out of what waits.

    submit ─▶ Batcher   what waits for one model, in the order of turns; one for each model
                 │ plan
              Dispatcher      the cores of an executor, each running one call at a time; one for the process
                 │ run
              Executor ─▶ each row to the caller who waits for it

An idle core starts at once with its share of what waits: no core idles while there is work, and no batch waits to be
filled. While all cores are busy work gathers, and the next batch is the larger for it. Nothing here polls or paces
itself. A caller who has gone, or who cannot be answered within the deadline, is dropped before a batch is formed.

What waits is known in seconds, since each engine's pace is learned from its calls. A request that would wait too long
is refused at once and whole. Interactive work goes before bulk, of which one batch in `BULK_EVERY` is, so that it gets
on. Within a class turns go by arrival; only the second of a request's encodings takes its turn as if it had come
when the first is done, and so on: a request of many lets others pass between.

An engine may be lost in a call (`WorkerLost`). Rows of a call that had no part in it go back to the front of
their queue. Those of a call that may have been the cause are suspects: each runs alone, one suspect at a time, so that
a second loss tells whose fault it was. That one fails; all others are answered.

Everything but `Executor.run` happens on the event loop, between two awaits, and so needs no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Final, NamedTuple

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import (
    Internal,
    SwiftletError,
    Unavailable,
    deadline_exceeded,
    draining,
    log_exception,
)
from swiftlet_serve.service.scheduling.admission import Load, Pace, admissible, retry_after_s
from swiftlet_serve.service.scheduling.queue import Line, QueuedSequence
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from swiftlet_serve.service.telemetry.snapshot import QueueState
from swiftlet_serve.service.types import BatchResult, Deadline, Executor, Priority, Row, Scheduler, WorkerLost

log = logging.getLogger(__name__)

LOOKAHEAD: Final = 256
"""Encodings that are looked at to form a batch, if it cannot hold more: so a decision is cheap however many wait."""

BULK_EVERY: Final = 20
"""While work of both classes waits, one batch in so many is bulk."""

PATIENCE_S: Final = 10.0
"""How long a call may take while it is not known how long calls take."""
OVERDUE: Final = 20
"""A call that takes so many times as long as it should is given up; though never within `OVERDUE_S` seconds."""
OVERDUE_S: Final = 1.0


def plan(lengths: Sequence[int], left_s: Sequence[float], pace: Pace, share: int) -> list[int]:
    """Decides which of the waiting encodings make the next batch.

    The oldest always goes, so nothing starves. The others follow by nearness to its length, each while the batch stays
    within the engine's limits, this core takes no more than its share, the row makes the call no longer than a call of
    its own would be, and everyone in the batch has their answer in time.

    Args:
        lengths: tokens of each encoding, oldest first; at least one.
        left_s: for how many seconds each one's answer is of use.
        pace: what calls of the engine take, and its limits.
        share: tokens that this core should take, so that idle cores share what waits.

    Returns:
        Indices into `lengths`.
    """
    cost, oldest = pace.cost, lengths[0]
    batch, tokens, squares, longest, left = [0], oldest, oldest * oldest, oldest, left_s[0]
    seconds = pace.alone_s(oldest)
    for i in sorted(range(1, len(lengths)), key=lambda i: abs(lengths[i] - oldest)):
        if len(batch) == cost.max_rows:
            break
        rows, length = len(batch) + 1, lengths[i]
        new_longest = max(longest, length)
        charge = rows * new_longest if cost.padded else tokens + length
        if tokens + length > share or charge > cost.max_tokens:
            continue
        new_seconds = pace.call_s(rows, tokens + length, squares + length * length, new_longest)
        if new_seconds <= seconds + pace.alone_s(length) and new_seconds <= min(left, left_s[i]):
            batch.append(i)
            tokens, squares, longest = tokens + length, squares + length * length, new_longest
            seconds, left = new_seconds, min(left, left_s[i])
    return batch


class Batcher:
    """What waits for one model. Its `submit` is a `Submit`."""

    def __init__(self, model: str, pool: Dispatcher) -> None:
        """Joins the pool; `model` is the name that its executor knows."""
        self.model = model
        self.lines: dict[Priority, Line] = {"interactive": Line(), "bulk": Line()}
        self.calls = 0  # that run
        self.usual_s = 0.0  # what calls take, averaged over those of late
        self._pool = pool
        pool.join(self)

    @cached_property
    def pace(self) -> Pace:
        """What its calls take. The executor knows its engine once that is loaded."""
        pace = Pace(self._pool.executor.cost(self.model))
        for tokens, seconds in self._pool.executor.timed_calls(self.model):
            pace.learn([tokens], seconds)
        return pace

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority = "interactive"
    ) -> list[asyncio.Future[Row]]:
        """Lets all encodings of a request wait, or none.

        Each answer is the row, or Internal where the engine failed on the encoding, or DeadlineExceeded where it could
        not begin in time. At the deadline itself nothing happens: it is the caller who then waits no longer.

        Raises:
            Unavailable: the request would not be answered in time, too much waits, or the pool is closing.
        """
        now = self._pool.clock()
        self._pool.admit(self, [len(encoding.input_ids) for encoding in encodings], deadline - now, priority)
        loop, turn, answers = asyncio.get_running_loop(), now, []
        for encoding in encodings:
            item = QueuedSequence(encoding, deadline, priority, turn, now, loop.create_future())
            item.answer.add_done_callback(partial(self._settle, item))
            self.lines[priority].add(item)
            answers.append(item.answer)
            turn += self.pace.backlog_s(1, len(item), len(item) ** 2)
        return answers

    def _settle(self, item: QueuedSequence, answer: asyncio.Future[Row]) -> None:
        """Runs in the context of the request, whatever became of it."""
        self.lines[item.priority].discard(item)
        if not answer.cancelled() and answer.exception() is None:
            request_record.add_stage("queue", item.submitted, item.started)
            request_record.add_stage("batch", item.started, item.finished - item.engine_s)  # as if all of it came first
            request_record.add_stage("infer", item.finished - item.engine_s, item.finished)
            request_record.add_batch(item.rows)

    @property
    def at_most(self) -> int:
        """How many calls may run at the same time."""
        return min(self._pool.executor.size, self.pace.cost.calls or self._pool.executor.size)

    def backlog_s(self, priority: Priority, turn: float) -> float:
        """Seconds of one core, for what waits of that class and goes before a newcomer of that turn."""
        line = self.lines[priority]
        return self.pace.backlog_s(*line.before(turn)) if line else 0.0

    def share_s(self, lengths: Sequence[int]) -> float:
        """Seconds of one core for encodings of these lengths, in batches as full as they may be."""
        return self.pace.backlog_s(len(lengths), sum(lengths), sum(n * n for n in lengths))

    def own_s(self, lengths: Sequence[int], share_s: float) -> float:
        """Seconds of one core for a request with encodings of these lengths, in batches like those of late."""
        return max(self.usual_s, self.pace.alone_s(max(lengths)), share_s)

    def take(self, priority: Priority, share: int, *, suspects: bool, idle: bool) -> list[QueuedSequence]:
        """Removes the next batch from a line: a suspect alone, if `suspects` may run, else some of the others.

        Whoever cannot be answered in time is told so. Only if all is `idle`, what is thought to take too long is tried.
        Empty where there are none of which somebody waits for the row.
        """
        line, now = self.lines[priority], self._pool.clock()
        wanted = []
        for item in list(islice(line, max(LOOKAHEAD, self.pace.cost.max_rows))):
            left = item.deadline - now
            in_time = idle or not self._pool.by_deadline or left >= self.pace.alone_s(len(item))
            if not item.answer.done() and left > 0 and in_time:
                wanted.append(item)
                continue
            line.discard(item)
            if not item.answer.done():
                item.answer.set_exception(deadline_exceeded())
        batch = [item for item in wanted if item.suspect][:1] if suspects else []
        if not batch and (others := [item for item in wanted if not item.suspect]):
            lengths = [len(item) for item in others]
            left_s = [item.deadline - now if self._pool.by_deadline else math.inf for item in others]
            batch = [others[i] for i in plan(lengths, left_s, self.pace, share)]
        for item in batch:
            line.discard(item)
        return batch

    def put_back(self, batch: Sequence[QueuedSequence]) -> None:
        """Gives what was taken its turn again, unless its caller has gone."""
        for item in batch:
            if not item.answer.done():
                self.lines[item.priority].add(item)


class Call(NamedTuple):
    """A batch that runs."""

    batcher: Batcher
    batch: list[QueuedSequence]
    started: float
    expected_s: float

    def left_s(self, now: float) -> float:
        """What is overdue by a second is thought to need another."""
        return abs(self.started + self.expected_s - now)


class Dispatcher:
    """The cores of an executor, shared by all batchers."""

    def __init__(
        self,
        executor: Executor,
        max_waiting_tokens: int,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        scheduler: Scheduler = "deadlines",
        stats: RequestStats | None = None,
    ) -> None:
        """`patience_s` is after how long any call is given up, and the engine with it. `stats` are told of calls.

        The scheduler "fifo" is there to be compared with: it admits by count alone and starts whatever is not yet late.
        """
        self.executor = executor
        self.max_waiting_tokens = max_waiting_tokens
        self.patience_s = patience_s
        self.clock = clock
        self.by_deadline = scheduler == "deadlines"
        self._stats = RequestStats({}) if stats is None else stats
        self._batchers: list[Batcher] = []
        self._lines: list[Line] = []  # theirs
        self._calls: dict[asyncio.Future[BatchResult], Call] = {}
        self._busy_s = 0.0
        self._counted = clock()  # up to when
        self._suspect_runs = False
        self._interactive = Load(executor.size)
        self._since_bulk = 0  # batches of interactive work that went before waiting bulk
        self._jitter = random.Random()  # noqa: S311  # spreads out when clients come back; no secret
        self._awake = False
        self._coming: set[object] = set()  # requests that are being read
        self._usual_s = 0.0  # of one core, that a request takes; averaged over those of late
        self.closing = False  # whether nothing more is admitted

    def join(self, batcher: Batcher) -> None:
        self._batchers.append(batcher)
        self._lines.extend(batcher.lines.values())

    def admit(self, batcher: Batcher, lengths: Sequence[int], left_s: float, priority: Priority) -> None:
        """Lets a request's encodings wait, and sees to it that an idle core looks at them.

        Raises:
            Unavailable: as `check`, or there is too much of it.
        """
        share_s = batcher.share_s(lengths)
        own_s = batcher.own_s(lengths, share_s)
        self._usual_s += (share_s - self._usual_s) / 16
        self.check(left_s, priority, batcher, own_s)
        if self.waiting_tokens + sum(lengths) > self.max_waiting_tokens:
            raise self._overloaded(self.wait_s(priority, batcher, own_s))
        self._wake()

    def expect(self, request: object, left_s: float, priority: Priority, *, whole: bool) -> None:
        """Lets a request come that was not read yet, unless none could be answered in time.

        One that is here as a `whole` counts as if it waited, until `meet`: while it is read, many more would come than
        can be admitted, and all the work of reading them would be for nothing. Others do not count, since those who
        have yet to send a body may never do.

        Raises:
            Unavailable: as `check`.
        """
        if request in self._coming:
            return
        self.check(left_s, priority, ahead_s=len(self._coming) * self._usual_s / self.executor.size)
        if whole:
            self._coming.add(request)

    def meet(self, request: object) -> None:
        """What was expected waits now, or never will."""
        self._coming.discard(request)

    def check(
        self,
        left_s: float,
        priority: Priority,
        batcher: Batcher | None = None,
        own_s: float = 0.0,
        ahead_s: float = 0.0,
    ) -> None:
        """Refuses what cannot be answered in time; of a request that was not read yet, only what no request could be.

        Raises:
            Unavailable: there is no use in waiting, or the pool is closing.
        """
        if self.closing:
            raise draining()
        wait_s = ahead_s + self.wait_s(priority, batcher, own_s)
        if self.by_deadline and not admissible(wait_s, own_s, left_s, priority):
            raise self._overloaded(wait_s)

    def _overloaded(self, wait_s: float) -> Unavailable:
        after = retry_after_s(wait_s, self._jitter.random())
        return Unavailable("overloaded", "Too much work waits to answer this within its deadline.", retry_after=after)

    def wait_s(self, priority: Priority, batcher: Batcher | None = None, own_s: float = 0.0) -> float:
        """Seconds of what goes before a newcomer, up to the last of its turns; without a batcher, at least."""
        free = len(self._calls) < self.executor.size and (batcher is None or batcher.calls < batcher.at_most)
        if free and not self.waiting_tokens:
            return 0.0
        now = self.clock()
        calls, batchers = list(self._calls.values()), self._batchers
        wait_s = self._drained_s(priority, now, now + own_s, calls, batchers, self.executor.size)
        if batcher is not None and batcher.at_most < self.executor.size:
            calls = [call for call in calls if call.batcher is batcher]
            wait_s = max(wait_s, self._drained_s(priority, now, now + own_s, calls, [batcher], batcher.at_most))
        return wait_s

    def _drained_s(
        self,
        priority: Priority,
        now: float,
        turn: float,
        calls: Sequence[Call],
        batchers: Sequence[Batcher],
        cores: int,
    ) -> float:
        """Seconds until so many cores have done these calls and what waits; bulk has only what others leave."""
        ahead = sum(call.left_s(now) for call in calls) + sum(one.backlog_s("interactive", turn) for one in batchers)
        if priority == "interactive":
            return ahead / cores
        spare = max(1 / BULK_EVERY, 1 - self._interactive.share(now))
        return (ahead + sum(one.backlog_s("bulk", turn) for one in batchers) / spare) / cores

    def queue(self) -> QueueState:
        self._count()
        now, rows = self.clock(), sum(map(len, self._lines))
        oldest = min((item.submitted for line in self._lines for item in line), default=now)
        return QueueState(
            rows, self.waiting_tokens, now - oldest, self.wait_s("interactive"), len(self._calls), self._busy_s
        )

    def _count(self) -> None:
        """Takes in how long calls have run; to be called before there is one more or less."""
        now = self.clock()
        self._busy_s += (now - self._counted) * len(self._calls)
        self._counted = now

    @property
    def waiting_tokens(self) -> int:
        return sum([line.tokens for line in self._lines])

    async def close(self, grace_s: float) -> bool:
        """Admits nothing more, and finishes what waits; says whether all of it was done in time."""
        self.closing = True
        ends = self.clock() + grace_s
        self._dispatch()
        while self._calls and (left := ends - self.clock()) > 0:
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
        while len(self._calls) < self.executor.size:
            batch: list[QueuedSequence] = []
            try:
                found = self._next()
                if found is None:
                    return
                batcher, batch = found
                self._start(batcher, batch)
            except Exception as error:  # only a fault of ours; the oldest fails, so that the rest gets on
                log_exception(log, "a batch could not be started", error)
                for item in batch or self._give_up():
                    if not item.answer.done():
                        item.answer.set_exception(Internal("internal", "The model failed."))

    def _give_up(self) -> list[QueuedSequence]:
        """Removes the oldest of what waits."""
        lines = [line for batcher in self._batchers for line in batcher.lines.values() if line]
        line = min(lines, key=lambda line: line.turn)
        item = next(iter(line))
        line.discard(item)
        return [item]

    def _next(self) -> tuple[Batcher, list[QueuedSequence]] | None:
        """The next batch, of the batcher whose turn it is; None where there is nothing to start."""
        bulk_waits = any(one.lines["bulk"] for one in self._batchers)
        classes: list[Priority] = ["interactive", "bulk"]
        if self._since_bulk >= BULK_EVERY - 1:
            classes.reverse()
        for priority in classes:
            waiting = [one for one in self._batchers if one.lines[priority] and one.calls < one.at_most]
            for batcher in sorted(waiting, key=lambda one: one.lines[priority].turn):
                idle = min(self.executor.size - len(self._calls), batcher.at_most - batcher.calls)
                share = math.ceil(self.waiting_tokens / idle)
                batch = batcher.take(priority, share, suspects=not self._suspect_runs, idle=not self._calls)
                if batch:
                    self._since_bulk = self._since_bulk + 1 if bulk_waits and priority == "interactive" else 0
                    return batcher, batch
        return None

    def _start(self, batcher: Batcher, batch: list[QueuedSequence]) -> None:
        now, lengths = self.clock(), [len(item) for item in batch]
        expected_s = batcher.pace.call_s(len(batch), sum(lengths), sum(n * n for n in lengths), max(lengths))
        patience_s = min(self.patience_s, max(OVERDUE_S, OVERDUE * expected_s) if batcher.pace.known else math.inf)
        call = asyncio.ensure_future(self.executor.run(batcher.model, [item.encoding for item in batch], patience_s))
        batcher.usual_s += (expected_s - batcher.usual_s) / 8
        self._suspect_runs |= batch[0].suspect
        batcher.calls += 1
        for item in batch:
            item.started = now
        self._count()
        self._calls[call] = Call(batcher, batch, now, expected_s)
        call.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[BatchResult]) -> None:
        """Keeps the core busy first, then hands every caller who still waits what is theirs, and learns last."""
        now, engine_s, ended = self.clock(), 0.0, False
        self._count()
        batcher, batch, started, _ = self._calls.pop(future)
        batcher.calls -= 1
        self._suspect_runs &= not batch[0].suspect
        if future.cancelled() or future.exception() is not None:
            self._wake()  # rows may come back
        else:
            self._dispatch()
        try:
            outcomes: Sequence[Row | SwiftletError]
            outcomes, engine_s = future.result()
            ended = True
        except WorkerLost as lost:
            if not (lost.suspect and batch[0].suspect):
                for item in batch:
                    item.suspect |= lost.suspect
                batcher.put_back(batch)
                return
            outcomes = [Internal("internal", "The model failed on this input.")]
        except SwiftletError as error:
            outcomes = [error] * len(batch)
        except (Exception, asyncio.CancelledError) as error:  # only a fault of ours
            log_exception(log, "an engine call was lost", error)
            outcomes = [Internal("internal", "The model failed.") for _ in batch]
        for item, outcome in zip(batch, outcomes, strict=True):
            item.finished, item.engine_s, item.rows = now, engine_s, len(batch)
            if item.answer.done():
                continue
            if isinstance(outcome, SwiftletError):
                item.answer.set_exception(outcome)
            else:
                item.answer.set_result(outcome)
        if batch[0].priority == "interactive":
            self._interactive.add(now - started, now)
        if ended:
            lengths = [len(item) for item in batch]
            batcher.pace.learn(lengths, now - started)
            padding = len(batch) * max(lengths) - sum(lengths) if batcher.pace.cost.padded else 0
            self._stats.add_batch(batcher.model, len(batch), sum(lengths), padding)
