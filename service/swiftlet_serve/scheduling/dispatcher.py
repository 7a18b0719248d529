"""Queues sequences and dispatches them to the executor in batches that form without timers.

    submit ─▶ SequenceQueue   one for each model and priority
                   │ choose
                Executor      runs one call on each core at a time
                   │ row
                Future        one for each sequence

An idle core starts immediately with its share of the queue. While all cores are busy, the queue and the next batch
grow. Nothing polls or waits for a batch to fill. A sequence whose caller has gone, or whose deadline cannot be
met, is dropped before a batch is formed.

Long sequences have queues of their own where an engine's calls share cores. They never take the last core, so that
another sequence need not wait for seconds.

Interactive work goes first. One batch in `BULK_EVERY` is bulk, so that bulk work makes progress. Within a priority,
clients take turns by `ClientTimes`: each client with work gets an equal share of the engine. One client's sequences
run in the order of arrival. The second sequence of a request queues as if it arrived when the first one is done, and so
on. So a request with many sequences lets others of its client pass. Only as many of them are in the queue as the next
call of each core takes. The others follow once those have started: calls that take longer than predicted make no later
request wait for all of them. They count in the load from the beginning.

A call can lose its worker process (`WorkerLost`). If the call cannot be the cause, its sequences go back to their
place in the queue. Otherwise they are suspects: each runs alone, one suspect at a time. A suspect whose call loses the
process again fails, and all others are answered.

All methods run on the event loop and never await between a decision and its effect, so they need no lock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Final

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, SwiftletError, deadline_exceeded, log_exception
from swiftlet_serve.scheduling.batch_planner import choose
from swiftlet_serve.scheduling.client_times import ClientTimes
from swiftlet_serve.scheduling.latency_model import CALL_TIMEOUT_S, Utilization, call_limit_s
from swiftlet_serve.scheduling.load import BULK_EVERY, AdmissionPolicy, Load, RunningCall, wait_s
from swiftlet_serve.scheduling.queue import ArrivingRequest, ModelQueue, QueuedSequence, SequenceQueue, may_start_long
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import QueueState
from swiftlet_serve.types import BatchResult, Deadline, Executor, Priority, Row, WorkerLost

log = logging.getLogger(__name__)

PART: Final = 256
"""Sequences that are queued in one iteration of the event loop. Each takes 4 µs, and a request has up to 2,048."""


class Dispatcher:
    """Owns the queues of all models and dispatches their sequences to one executor."""

    policy: AdmissionPolicy = "deadline"
    """Only benchmarks change it."""

    def __init__(
        self,
        executor: Executor,
        call_timeout_s: float = CALL_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        stats: RequestStats | None = None,
    ) -> None:
        """Creates a dispatcher without models.

        Args:
            executor: runs the batches.
            call_timeout_s: time limit of a call, after which its worker process is replaced.
            clock: the time in seconds.
            stats: counts the batches.
        """
        self.executor = executor
        self.call_timeout_s = call_timeout_s
        self.clock = clock
        self.models: dict[str, ModelQueue] = {}
        self._queues: list[SequenceQueue] = []  # of all models
        self._times: dict[Priority, ClientTimes] = {"interactive": ClientTimes(), "bulk": ClientTimes()}
        self._stats = RequestStats() if stats is None else stats
        self._calls: dict[asyncio.Future[BatchResult], RunningCall] = {}
        self._busy_s = 0.0  # total duration of all calls until `_busy_until`
        self._busy_until = clock()
        self._interactive = Utilization(executor.size)
        self._interactive_batches = 0  # since the last bulk batch, while bulk work is queued
        self._suspect_runs = False
        # Sequences for heads on a trunk that were submitted since the last dispatch.
        self._arrived: dict[tuple[object, ...], QueuedSequence] = {}
        self._arriving: list[ArrivingRequest] = []  # requests whose sequences are not all queued
        self._scheduled = False  # whether the event loop will call `_dispatch`

    def add_model(self, name: str, stats_names: Sequence[str] = ()) -> ModelQueue:
        """Adds the queues of a model, or of several that share a trunk.

        Args:
            name: its name in the executor.
            stats_names: the name in the statistics of each head's model. Empty: the same name.
        """
        self.models[name] = model = ModelQueue(name, self.executor, self._times, stats_names)
        self._queues += model.queues
        return model

    async def remove_model(self, name: str) -> None:
        """Removes a model that gets no more requests. Waits for calls whose callers have gone."""
        model = self.models[name]
        while running := [future for future, call in self._calls.items() if call.model is model]:
            await asyncio.wait(running)
        del self.models[name]
        self._queues = [queue for model in self.models.values() for queue in model.queues]

    # The way of a sequence

    def submit(
        self,
        model: str,
        encodings: Sequence[Encoding],
        deadline: Deadline,
        priority: Priority = "interactive",
        record: RequestRecord | None = None,
    ) -> list[asyncio.Future[Row]]:
        """Queues the sequences of an admitted request and returns a future for the row of each.

        The record of the request, if there is one, gets the stages of each sequence that has a row.

        A future's exception is DeadlineExceeded if its call could not start in time, or the engine's error. Nothing
        happens at the deadline itself: the caller stops waiting, and cancels the futures that it no longer needs.
        """
        now, create, queues = self.clock(), asyncio.get_running_loop().create_future, self.models[model]
        client = "" if record is None else record.account
        rows = [create() for _ in encodings]
        lengths = [len(encoding.input_ids) for encoding in encodings]
        request = ArrivingRequest(queues, priority, encodings, lengths, rows, deadline, client, record, now, now)
        if len(rows) > 1 and len(rows) > min(PART, most := queues.most_waiting(lengths)):
            request.most_waiting = most
            if queues.is_long(max(lengths)):
                request.are_long = [*map(queues.is_long, lengths)]
            request.expect()
            self._arriving.append(request)
            rows[-1].add_done_callback(lambda _: self._schedule())  # its caller may cancel all of them
        else:
            self._queue(request, encodings, lengths, rows)
        if rows:
            self._schedule()
        return rows

    def _queue_arriving(self) -> None:
        """Queues the next sequences of all requests that have more, while few of theirs wait.

        Their virtual arrival is not before now: if calls take longer than predicted, a later request still goes before
        those that were not queued. Those of a trunk's heads stay together.
        """
        if not self._arriving:
            return
        now, size = self.clock(), max(1, PART // len(self._arriving))
        for request in self._arriving:
            if request.rows[-1].done() and all(row.done() for row in request.rows[request.queued :]):
                request.expect(-1)  # its caller has gone
                request.queued = len(request.rows)
                continue
            room = request.most_waiting - request.waiting
            if room <= 0:
                continue
            part = slice(request.queued, min(request.queued + min(size, room), len(request.rows)))
            request.expect_part(part, -1, requests=-(part.stop == len(request.rows)))
            request.arrival = max(request.arrival, now)
            self._queue(request, request.encodings[part], request.lengths[part], request.rows[part])
            request.queued = part.stop
        self._arriving = [request for request in self._arriving if request.queued < len(request.rows)]
        if self._has_room():
            self._schedule()

    def _has_room(self) -> bool:
        """Returns whether a request has more sequences that may be queued now."""
        return any(request.waiting < request.most_waiting for request in self._arriving)

    def _queue(
        self,
        request: ArrivingRequest,
        encodings: Sequence[Encoding],
        lengths: Sequence[int],
        rows: Sequence[asyncio.Future[Row]],
    ) -> None:
        """Queues the next sequences of a request, except those whose caller has gone."""
        queues, client, record, submitted = request.queues, request.client, request.record, request.submitted
        short, long, deadline = queues.short[request.priority], queues.long[request.priority], request.deadline
        shares_trunk, predict_s = queues.latency.cost.shares_trunk, queues.latency.backlog_s
        added: dict[SequenceQueue, list[QueuedSequence]] = {short: [], long: []}
        has_long, arrival = queues.is_long(max(lengths, default=0)), request.arrival
        for encoding, length, row in zip(encodings, lengths, rows, strict=True):
            if row.done():
                continue
            queue = long if has_long and queues.is_long(length) else short
            item = QueuedSequence(encoding, length, deadline, client, arrival, submitted, row, queue, record, request)
            row.add_done_callback(item.leave)  # its caller may cancel it
            if not (shares_trunk and self._join(item)):
                added[queue].append(item)
                arrival += predict_s(1, length, length * length)
        for queue, items in added.items():
            if items:
                queue.add(client, items)
        request.arrival = arrival

    def _join(self, item: QueuedSequence) -> bool:
        """Has a sequence wait with another one of the same tokens, deadline and client, if one has just arrived."""
        encoding = item.encoding
        tokens = encoding.input_ids.tobytes(), encoding.token_type_ids.tobytes(), encoding.attends_to
        key = id(item.queue), item.deadline, item.client, *tokens
        other = self._arrived.setdefault(key, item)
        if other is item or other.row.done():
            self._arrived[key] = item
            return False
        other.joined += (item,)
        item.costs = False
        return True

    def _schedule(self) -> None:
        """Dispatches in the next iteration of the event loop, so that requests that arrive together form a batch."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Starts a batch on every idle core, as far as the queues have work."""
        self._scheduled = False
        self._queue_arriving()
        self._arrived.clear()
        self._start_batches()
        if self._arriving and not self._calls and self._has_room():  # those that waited were dropped
            self._schedule()

    def _start_batches(self) -> None:
        while len(self._calls) < self.executor.size:
            batch: list[QueuedSequence] = []
            try:
                batch = self._next_batch()
                if not batch:
                    return
                self._start(batch)
            except Exception as error:  # a bug; the oldest sequences fail, so that the others make progress
                log_exception(log, "A batch could not be started", error)
                for item in batch or self._remove_oldest().together:
                    if not item.row.done():
                        item.row.set_exception(Internal("internal", "The model failed."))

    def _remove_oldest(self) -> QueuedSequence:
        """Removes the sequence that is next."""
        queue = min([queue for queue in self._queues if queue.is_ready], key=lambda queue: queue.turn)
        item = next(queue.in_turn())
        queue.remove(item.client, [item])
        return item

    def _next_batch(self) -> list[QueuedSequence]:
        """Removes and returns the next batch, from the queue with the sequence that is next; none if none can start."""
        waiting = [queue for queue in self._queues if queue.rows and (not self._arriving or queue.is_ready)]
        if not waiting:
            return []
        has_bulk = any(queue.priority == "bulk" for queue in waiting)
        first = "bulk" if self._interactive_batches >= BULK_EVERY - 1 else "interactive"
        long = may_start_long(sum([call.is_long for call in self._calls.values()]), self.executor.size)
        ready = [queue for queue in waiting if queue.model.has_room and (long or not queue.is_long)]
        for queue in sorted(ready, key=lambda queue: (queue.priority != first, queue.turn)):
            if batch := self._take(queue):
                counts = has_bulk and queue.priority == "interactive"
                self._interactive_batches = self._interactive_batches + 1 if counts else 0
                return batch
        return []

    def _take(self, queue: SequenceQueue) -> list[QueuedSequence]:
        """Removes a batch from a queue, and the sequences that come too late, which fail.

        Returns an empty list if no sequence can start. While no call runs, predictions are not trusted: a sequence with
        any time left then starts.
        """
        now, model, by_deadline = self.clock(), queue.model, self.policy == "deadline"
        idle = min(self.executor.size - len(self._calls), model.max_calls - model.running_calls)
        tokens = sum([other.tokens for other in self._queues if other.is_long == queue.is_long])
        batch, dropped = choose(
            queue,
            now,
            math.ceil(tokens / idle),
            trusts_predictions=bool(self._calls) and by_deadline,
            takes_suspects=not self._suspect_runs,
            keeps_deadlines=by_deadline,
        )
        for item in dropped:
            if item.row.done():  # its caller has just gone, and another sequence may take its place
                item.leave()
                self._schedule()
                continue
            queue.remove(item.client, [item])
            for late in item.together:
                late.row.set_exception(deadline_exceeded())
        if not batch:
            return []
        queue.times.serve(batch[0].client)
        of_client: dict[str, list[QueuedSequence]] = {}
        for item in batch:
            of_client.setdefault(item.client, []).append(item)
        for client, items in of_client.items():
            queue.remove(client, items)
            queue.times.charge(client, model.work_s([item.length for item in items]), now)
        return [item for first in batch for item in first.together] if model.latency.cost.shares_trunk else batch

    def _start(self, batch: list[QueuedSequence]) -> None:
        """Starts a call."""
        now, queue = self.clock(), batch[0].queue
        model, lengths = queue.model, [item.length for item in batch if item.costs]
        expected_s = model.latency.batch_s(lengths)
        timeout_s = call_limit_s(self.call_timeout_s, expected_s, calibrated=model.latency.calibrated)
        future = asyncio.ensure_future(self.executor.run(model.name, [item.encoding for item in batch], timeout_s))
        if not queue.is_long:
            model.mean_call_s += (expected_s - model.mean_call_s) / 8
        model.running_calls += 1
        self._suspect_runs |= batch[0].suspect
        self._update_busy_time()
        self._calls[future] = RunningCall(model, batch, lengths, now, expected_s)
        future.add_done_callback(self._finish)

    def _finish(self, future: asyncio.Future[BatchResult]) -> None:
        """Starts the next batch first, so that the core stays busy. Then delivers the rows, and last learns."""
        now = self.clock()
        self._update_busy_time()
        call = self._calls.pop(future)
        model, batch = call.model, call.batch
        model.running_calls -= 1
        self._suspect_runs &= not batch[0].suspect
        if future.cancelled() or future.exception() is not None:
            self._schedule()  # not yet: sequences may go back into the queue
        else:
            self._dispatch()
        result: BatchResult | None = None
        outcomes: Sequence[Row | SwiftletError]
        try:
            result = future.result()
            outcomes = result.outcomes
        except WorkerLost as lost:
            if not (lost.suspect and batch[0].suspect):
                self._put_back(batch, suspect=lost.suspect)
                return
            outcomes = [Internal("internal", "The model failed on this input.")]
        except SwiftletError as error:
            outcomes = [error] * len(batch)
        except BaseException as error:  # a bug
            log_exception(log, "A call to the engine failed", error)
            outcomes = [Internal("internal", "The model failed.") for _ in batch]
        self._deliver(call, outcomes, now, 0.0 if result is None else result.engine_s)
        if batch[0].queue.priority == "interactive":
            self._interactive.add(now - call.started, now)
        if result is not None:
            self._busy_s += result.helped_s
            self._learn(call, now - call.started + result.helped_s)

    def _put_back(self, batch: Sequence[QueuedSequence], *, suspect: bool) -> None:
        """Queues the sequences of a lost call again, at their former place, unless their caller has gone."""
        for item in batch:
            item.suspect |= suspect
            item.costs, item.joined = True, ()
            if not item.row.done():
                item.queue.add(item.client, [item])

    @staticmethod
    def _deliver(call: RunningCall, outcomes: Sequence[Row | SwiftletError], now: float, engine_s: float) -> None:
        """Sets the row or the error of every sequence whose caller still waits."""
        recorded = set[tuple[int, float]]()  # records and submissions, all of whose sequences have the same times
        for item, outcome in zip(call.batch, outcomes, strict=True):
            row, record = item.row, item.record
            if row.done():
                continue
            row.remove_done_callback(item.leave)  # it has left the queue
            if isinstance(outcome, SwiftletError):
                row.set_exception(outcome)
                continue
            row.set_result(outcome)
            key = id(record), item.submitted
            if record is not None and key not in recorded:
                record.add_call(item.submitted, call.started, now, engine_s, len(call.batch))
                recorded.add(key)

    def _learn(self, call: RunningCall, seconds: float) -> None:
        """Updates the latency model and the statistics with a call that has ended.

        `seconds` include the time of cores that helped: a prediction never relies on idle cores.
        """
        model, lengths, longest = call.model, call.lengths, max(call.lengths)
        model.latency.learn(lengths, seconds)
        pads = model.latency.cost.padded
        for head, name in enumerate(model.stats_names):
            if len(model.stats_names) > 1:
                lengths = [item.length for item in call.batch if item.costs and item.encoding.head == head]
            if lengths:
                padding = len(lengths) * longest - sum(lengths) if pads else 0
                self._stats.add_batch(name, len(lengths), sum(lengths), padding)

    def _update_busy_time(self) -> None:
        """Adds the time that calls ran since the last update. Must precede every change of the number of calls."""
        now = self.clock()
        self._busy_s += (now - self._busy_until) * len(self._calls)
        self._busy_until = now

    # The state

    def load(self) -> Load:
        """Returns a view of the current load, for admission control."""
        return Load(
            self.clock(),
            self.executor.size,
            self._calls.values(),
            self.models,
            self._queues,
            self._times,
            self._interactive,
            self.policy,
        )

    @property
    def queued_tokens(self) -> int:
        """Tokens of all queued sequences."""
        return self.load().queued_tokens

    def queue_state(self) -> QueueState:
        """Returns the state of the queues, for the metrics."""
        self._update_busy_time()
        load = self.load()
        oldest = min((item.submitted for queue in self._queues for item in queue), default=load.now)
        return QueueState(
            sum(map(len, self._queues)),
            load.queued_tokens,
            load.now - oldest,
            wait_s(load, "interactive", is_long=True),  # all that is queued counts
            len(self._calls),
            self._busy_s,
        )

    async def close(self, grace_s: float) -> bool:
        """Finishes the queued work and returns whether all of it was done in time. No work may be submitted after."""
        ends = self.clock() + grace_s
        self._dispatch()
        while self._calls and (left := ends - self.clock()) > 0:
            await asyncio.wait(self._calls, timeout=left)
            self._dispatch()
        return not self._calls
