"""Every submitted sequence has exactly one outcome, in whatever order events happen."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, SwiftletError
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Batch, BatchResult, Cost, Outcome, Priority, TimedCall, WorkerLost
from tests.support.fakes import (
    PATIENCE_S,
    ManualEngine,
    Scheduler,
    dispatcher_of,
    encoding,
    row_of,
    settle,
    soon,
    submit,
    tags,
)
from tests.support.virtual import VirtualLoop

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40)),
        st.tuples(st.just("late"), st.integers(1, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["answer", "fail", "spoil", "drop", "turn"]), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
def test_every_submission_has_exactly_one_outcome(steps, cores):
    """Holds for every order of arrivals, cancellations, late requests, failures and results."""

    def finish(call, how: str) -> None:
        rows = [row_of(tag) for tag in call.tags]
        if how == "fail":
            call.finish(error=RuntimeError("cannot"))
        elif how == "spoil":
            call.finish(rows=[rows[0] * math.nan, *rows[1:]])
        elif how == "drop":
            call.finish(rows=rows[1:])
        else:
            call.finish(rows=rows)

    async def scenario():
        engine = ManualEngine(Cost(padded=True, call_tokens=8, max_tokens=64, max_rows=4))
        scheduler = Scheduler(dispatcher_of(cores, model=engine), max_queued_tokens=200)
        tasks: list[asyncio.Task] = []
        late, cancelled = set(), set()
        for step, number in steps:
            if step in ("submit", "late"):
                tag = len(tasks)
                if step == "late":
                    late.add(tag)
                deadline = soon() if step == "submit" else time.monotonic()
                tasks.append(asyncio.ensure_future(submit(scheduler, encoding(tag, number), deadline)))
            elif step == "cancel":
                if number < len(tasks) and tasks[number].cancel():
                    cancelled.add(number)
            elif step == "turn":
                await settle()
            elif not engine.calls.empty():
                finish(engine.calls.get(), step)
        everything = asyncio.gather(*tasks, return_exceptions=True)
        while not everything.done():
            await asyncio.sleep(0)
            if not engine.calls.empty():
                finish(engine.calls.get(), "answer")
        for tag, outcome in enumerate(await everything):
            if tag in cancelled:
                assert isinstance(outcome, asyncio.CancelledError)
            elif isinstance(outcome, np.ndarray):
                assert outcome.tolist() == row_of(tag).tolist()
                assert tag not in late
            else:
                assert isinstance(outcome, SwiftletError)
                assert outcome.code == "overloaded" or (outcome.code == "deadline_exceeded") == (tag in late)
        closing = asyncio.ensure_future(scheduler.close(PATIENCE_S))
        while not closing.done():
            await asyncio.sleep(0)
            if not engine.calls.empty():
                finish(engine.calls.get(), "answer")
        assert await closing
        assert scheduler.dispatcher.queued_tokens == 0

    asyncio.run(scenario())


COST = Cost(padded=True, call_tokens=8, max_tokens=64, max_rows=4)


@dataclass(eq=False)
class Submitted:
    """One sequence of a request, and its state."""

    tag: int
    length: int
    deadline: float
    priority: Priority
    client: str
    alone: bool  # whether it is the only sequence of its request
    task: asyncio.Task | None = None
    runs: int = 0
    suspect: bool = False


@dataclass(eq=False)
class Call:
    tags: list[int]
    answer: asyncio.Future[list[Outcome]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SchedulingMachine(RuleBasedStateMachine):
    """Submits and cancels requests, lets time pass, ends calls in every way, and breaks the latency model."""

    @initialize(cores=st.integers(1, 3))
    def begin(self, cores):
        self.size, self.ready = cores, True
        self.loop = VirtualLoop()
        self.asked: list[Submitted] = []
        self.requests: list[tuple[asyncio.Task, list[Submitted]]] = []
        self.calls: list[Call] = []
        self.broken: set[str] = set()
        self.violated: list[str] = []
        self.scheduler = Scheduler(Dispatcher(self, clock=self.loop.time), max_queued_tokens=400)
        self.queue = self.scheduler.queue
        self.loop.set_exception_handler(lambda loop, context: None)  # the latency model fails on purpose
        for name in ("learn", "call_s"):
            setattr(self.queue.latency, name, self.fragile(name, getattr(self.queue.latency, name)))

    def fragile(self, name, function):
        def called(*args):
            if name in self.broken:
                self.broken.discard(name)
                raise RuntimeError(name)
            return function(*args)

        return called

    # The executor

    def cost(self, model: str) -> Cost:
        return COST

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return ()

    async def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        call = Call(tags(Batch.of(encodings)))
        self.violated += self.violations([self.asked[tag] for tag in call.tags])
        self.calls.append(call)
        try:
            return BatchResult(await call.answer, 0.0)
        finally:
            self.calls.remove(call)

    def violations(self, batch: list[Submitted]) -> list[str]:
        """Returns what is wrong with a batch. Raising here would look like an error of the executor."""
        several = len(batch) > 1
        for one in batch:
            one.runs += 1
        found = {
            "too many rows": len(batch) > COST.max_rows,
            "too many tokens": several and len(batch) * max(one.length for one in batch) > COST.max_tokens,
            "two priorities": len({one.priority for one in batch}) > 1,
            "more calls than cores": len(self.calls) >= self.size,
            "a suspect beside others": several and any(one.suspect for one in batch),
            "started after its deadline": any(self.loop.time() >= one.deadline for one in batch),
            "an earlier equal sequence still waits": any(self.overtaken(one) for one in batch),
            "cancelled before": any(one.task.done() for one in batch),
        }
        return [name for name, is_violated in found.items() if is_violated]

    def overtaken(self, younger: Submitted) -> bool:
        """Returns whether an equal sequence of its client arrived earlier, has as much time left, and still waits."""
        return any(
            older.alone
            and younger.alone
            and older.runs == 0
            and not older.task.done()
            and not older.task.cancelling()
            and (older.length, older.priority, older.client) == (younger.length, younger.priority, younger.client)
            and older.deadline >= younger.deadline
            for older in self.asked[: younger.tag]
        )

    # Events

    @rule(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
        timeout=st.sampled_from([0.0, 0.001, 0.1, 10.0]),
        priority=st.sampled_from(["interactive", "bulk"]),
        client=st.sampled_from(["a", "b", "c"]),
    )
    def submit(self, lengths, timeout, priority, client):
        deadline, alone = self.loop.time() + timeout, len(lengths) == 1
        work = [Submitted(len(self.asked) + i, n, deadline, priority, client, alone) for i, n in enumerate(lengths)]
        self.asked += work
        record = RequestRecord(account=client)

        async def request() -> list[Outcome | SwiftletError]:
            answers = []
            try:
                async with asyncio.timeout_at(deadline):
                    sequences = [encoding(one.tag, one.length) for one in work]
                    answers = self.scheduler.submit(sequences, deadline, priority, record)
                    return await asyncio.gather(*answers, return_exceptions=True)
            finally:
                assert self.loop.time() <= deadline + 1e-9
                for answer in answers:
                    answer.cancel()

        task = self.loop.create_task(request())
        for one in work:
            one.task = task
        self.requests.append((task, work))

    @rule(which=st.integers(0, 100))
    def cancel(self, which):
        if self.requests:
            self.requests[which % len(self.requests)][0].cancel()

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.01, 1.0]))
    def wait(self, seconds):
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule(which=st.integers(0, 2), how=st.sampled_from(["rows", "rows", "one fails", "raises", "suspect", "innocent"]))
    def end_call(self, which, how):
        if not self.calls:
            return
        call = self.calls[which % len(self.calls)]
        rows: list[Outcome] = [row_of(tag) for tag in call.tags]
        if call.answer.done():
            return
        if how == "raises":
            call.answer.set_exception(RuntimeError("a bug of the executor"))
        elif how in ("suspect", "innocent"):
            for tag in call.tags:
                self.asked[tag].suspect |= how == "suspect"
            call.answer.set_exception(WorkerLost(suspect=how == "suspect"))
        else:
            call.answer.set_result(rows if how == "rows" else [Internal("internal", "It failed."), *rows[1:]])

    @rule(what=st.sampled_from(["learn", "call_s"]))
    def fail_once(self, what):
        self.broken.add(what)

    # Invariants

    @invariant()
    def every_batch_is_valid(self):
        assert not hasattr(self, "loop") or not self.violated

    @invariant()
    def queue_totals_are_correct(self):
        for queue in self.queue.short.values() if hasattr(self, "loop") else ():
            assert queue.tokens == sum(item.length for item in queue)
            assert queue.squares == sum(item.length**2 for item in queue)
            assert len(queue) == len(list(queue))
            for client, lane in queue.lanes.items():
                assert lane.total == (
                    len(lane.items),
                    sum(n := [item.length for item in lane.items]),
                    sum(i * i for i in n),
                )
                assert [item.arrival for item in lane.items] == sorted(item.arrival for item in lane.items)
                assert lane.items
                assert {item.client for item in lane.items} == {client}

    @invariant()
    def every_sequence_has_a_turn(self):
        for queue in self.queue.short.values() if hasattr(self, "loop") else ():
            in_turn = list(queue.in_turn())
            assert sorted(map(id, in_turn)) == sorted(map(id, queue))
            assert not in_turn or queue.turn == (queue.times.of(in_turn[0].client), in_turn[0].arrival)
            for lane in queue.lanes.values():
                assert [item for item in in_turn if item in lane.items] == lane.items

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        self.broken.clear()
        for _ in range(20 + 2 * len(self.asked)):  # without virtual time, so that no deadline ends a request
            for call in self.calls:
                if not call.answer.done():
                    call.answer.set_result([row_of(tag) for tag in call.tags])
            for _ in range(5):
                self.loop.run_until_complete(asyncio.sleep(0))
        assert not self.violated
        assert not self.calls
        assert all(task.done() for task, _ in self.requests)
        for task, work in self.requests:
            if task.cancelled() or task.exception() is not None:
                assert task.cancelled() or isinstance(task.exception(), SwiftletError | TimeoutError | RuntimeError)
                continue
            for one, outcome in zip(work, task.result(), strict=True):
                assert isinstance(outcome, SwiftletError) or np.array_equal(outcome, row_of(one.tag))
        assert self.scheduler.dispatcher.queued_tokens == 0
        assert self.queue.running_calls == 0
        assert not any(self.queue.short.values())
        assert self.loop.run_until_complete(self.scheduler.close(1))
        self.loop.close()


SchedulingMachine.TestCase.settings = settings(stateful_step_count=40)

TestScheduling = SchedulingMachine.TestCase
