"""The scheduler as a whole, in virtual time: whatever happens in whatever order, and under too much load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import Internal, SwiftletError
from swiftlet_serve.service.scheduling.batcher import Batcher, Dispatcher
from swiftlet_serve.service.types import Batch, BatchResult, Cost, Outcome, Priority, TimedCall, WorkerLost
from tests.support.fakes import encoding, row_of, tags
from tests.support.simulation import LONG, SHORT, Client, Executor, capacity, simulate, summary
from tests.support.virtual import VirtualLoop

# Whatever happens

COST = Cost(padded=True, call_tokens=8, max_tokens=64, max_rows=4)


@dataclass(eq=False)
class Asked:
    """One encoding of a request, and what became of it."""

    tag: int
    length: int
    deadline: float
    priority: Priority
    alone: bool  # whether it is all of its request
    task: asyncio.Task | None = None
    runs: int = 0
    suspect: bool = False


@dataclass(eq=False)
class Call:
    tags: list[int]
    answer: asyncio.Future[list[Outcome]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Scheduling(RuleBasedStateMachine):
    """Requests come and go, time passes, calls end in every way, and what learns may fail."""

    @initialize(cores=st.integers(1, 3))
    def begin(self, cores):
        self.size, self.ready = cores, True
        self.loop = VirtualLoop()
        self.asked: list[Asked] = []
        self.requests: list[tuple[asyncio.Task, list[Asked]]] = []
        self.calls: list[Call] = []
        self.broken: set[str] = set()
        self.wrong: list[str] = []
        self.pool = Dispatcher(self, 400, clock=self.loop.time)
        self.batcher = Batcher("model", self.pool)
        self.loop.set_exception_handler(lambda loop, context: None)  # what learns fails on purpose
        for name in ("learn", "call_s"):
            setattr(self.batcher.pace, name, self.fragile(name, getattr(self.batcher.pace, name)))

    def fragile(self, name, function):
        def called(*args):
            if name in self.broken:
                self.broken.discard(name)
                raise RuntimeError(name)
            return function(*args)

        return called

    # A executor

    def cost(self, model: str) -> Cost:
        return COST

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return ()

    async def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> BatchResult:
        call = Call(tags(Batch.of(encodings)))
        self.wrong += self.faults_of([self.asked[tag] for tag in call.tags])
        self.calls.append(call)
        try:
            return BatchResult(await call.answer, 0.0)
        finally:
            self.calls.remove(call)

    def faults_of(self, batch: list[Asked]) -> list[str]:
        """What is wrong with a batch; told later, since the pool would take an exception for one of the executor."""
        several = len(batch) > 1
        for one in batch:
            one.runs += 1
        found = {
            "too many rows": len(batch) > COST.max_rows,
            "too many tokens": several and len(batch) * max(one.length for one in batch) > COST.max_tokens,
            "two classes": len({one.priority for one in batch}) > 1,
            "more calls than cores": len(self.calls) >= self.size,
            "a suspect beside others": several and any(one.suspect for one in batch),
            "begun too late": any(self.loop.time() >= one.deadline for one in batch),
            "an earlier one was left behind": any(self.overtaken(one) for one in batch),
            "given up before": any(one.task.done() for one in batch),
        }
        return [fault for fault, is_so in found.items() if is_so]

    def overtaken(self, younger: Asked) -> bool:
        """Whether somebody waits who came earlier, is alike, and has at least as much time."""
        return any(
            older.alone
            and younger.alone
            and older.runs == 0
            and not older.task.done()
            and not older.task.cancelling()
            and (older.length, older.priority) == (younger.length, younger.priority)
            and older.deadline >= younger.deadline
            for older in self.asked[: younger.tag]
        )

    # What may happen

    @rule(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
        timeout=st.sampled_from([0.0, 0.001, 0.1, 10.0]),
        priority=st.sampled_from(["interactive", "bulk"]),
    )
    def submit(self, lengths, timeout, priority):
        deadline = self.loop.time() + timeout
        work = [Asked(len(self.asked) + i, n, deadline, priority, len(lengths) == 1) for i, n in enumerate(lengths)]
        self.asked += work

        async def request() -> list[Outcome | SwiftletError]:
            answers = []
            try:
                async with asyncio.timeout_at(deadline):
                    answers = self.batcher.submit([encoding(one.tag, one.length) for one in work], deadline, priority)
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

    @rule(which=st.integers(0, 2), how=st.sampled_from(["rows", "rows", "one fails", "raises", "suspects", "innocent"]))
    def end_call(self, which, how):
        if not self.calls:
            return
        call = self.calls[which % len(self.calls)]
        rows: list[Outcome] = [row_of(tag) for tag in call.tags]
        if call.answer.done():
            return
        if how == "raises":
            call.answer.set_exception(RuntimeError("an executor's own mistake"))
        elif how in ("suspects", "innocent"):
            for tag in call.tags:
                self.asked[tag].suspect |= how == "suspects"
            call.answer.set_exception(WorkerLost(suspect=how == "suspects"))
        else:
            call.answer.set_result(rows if how == "rows" else [Internal("internal", "It failed."), *rows[1:]])

    @rule(what=st.sampled_from(["learn", "call_s"]))
    def fail_once(self, what):
        self.broken.add(what)

    # What holds at any time

    @invariant()
    def every_batch_was_right(self):
        assert not hasattr(self, "loop") or not self.wrong

    @invariant()
    def what_waits_is_counted(self):
        for line in self.batcher.lines.values() if hasattr(self, "loop") else ():
            assert line.tokens == sum(len(item) for item in line)
            assert line.squares == sum(len(item) ** 2 for item in line)
            assert [item.turn for item in line] == sorted(item.turn for item in line)

    def teardown(self):
        if not hasattr(self, "loop"):
            return
        self.broken.clear()
        for _ in range(20 + 2 * len(self.asked)):  # in no time, so that nobody is answered by a deadline alone
            for call in self.calls:
                if not call.answer.done():
                    call.answer.set_result([row_of(tag) for tag in call.tags])
            for _ in range(5):
                self.loop.run_until_complete(asyncio.sleep(0))
        assert not self.wrong
        assert not self.calls
        assert all(task.done() for task, _ in self.requests)
        for task, work in self.requests:
            if task.cancelled() or task.exception() is not None:
                assert task.cancelled() or isinstance(task.exception(), SwiftletError | TimeoutError | RuntimeError)
                continue
            for one, outcome in zip(work, task.result(), strict=True):
                assert isinstance(outcome, SwiftletError) or np.array_equal(outcome, row_of(one.tag))
        assert self.pool.waiting_tokens == 0
        assert self.batcher.calls == 0
        assert not any(self.batcher.lines.values())
        assert self.loop.run_until_complete(self.pool.close(1))
        self.loop.close()


Scheduling.TestCase.settings = settings(max_examples=120, stateful_step_count=40)
TestScheduling = Scheduling.TestCase


# More than can be met

SLOW = {
    "fixed_s": 9.6e-3,
    "token_s": 4e-4,
    "square_s": 4e-7,
}  # a quarter of MobileBERT's pace, for a quarter of the work
PEAK = capacity(Executor(**SLOW))


def load(times: float, until: float = 20.0, **client) -> dict[str, float]:
    rate = times * PEAK
    return summary(simulate([Client(lambda _: rate, **client)], until, Executor(**SLOW)), until)


@pytest.mark.parametrize(("times", "goal"), [(1.5, 0.95), (3, 0.95), (10, 0.90)])
def test_too_much_load_takes_nothing_from_what_is_done(times, goal):
    """Goodput stays, whoever comes in is answered in time, and long texts come in as short ones do."""
    figures = load(times, until=20.0 if times < 10 else 10.0)

    assert figures["goodput"] >= goal * PEAK
    assert figures["late"] <= 0.01
    assert figures["p99"] <= 1.0
    assert figures["ratio"] >= 0.5


def test_a_queue_that_knows_no_deadlines_does_next_to_nothing_in_time():
    """What the rest is held against: the same load on the same engine."""
    results = simulate([Client(lambda _: 3 * PEAK)], 20.0, Executor(**SLOW), "fifo")

    assert summary(results, 20.0)["goodput"] < 0.5 * PEAK


def test_what_can_be_met_is_met():
    figures = load(0.5)

    assert figures["refused"] == figures["late"] == 0
    assert figures["p99"] < 0.5


def test_deadlines_of_a_few_calls_are_met_as_well():
    figures = load(3, timeout_s=0.5)

    assert figures["goodput"] >= 0.9 * PEAK
    assert figures["late"] <= 0.02
    assert figures["ratio"] >= 0.5


def test_a_burst_of_clients_that_come_again_at_once_is_over_with_its_end():
    def rate(now: float) -> float:
        return PEAK * (3 if 5 <= now < 15 else 0.8)

    results = simulate([Client(rate, retries=3)], 25.0, Executor(**SLOW))
    after = [one for one in results if one.arrived >= 17]

    assert sum(one.outcome == "ok" for one in after) == len(after)
    assert sum(one.outcome == "ok" for one in results if 5 <= one.arrived < 15) >= 0.9 * 10 * PEAK


def test_a_machine_that_becomes_half_as_fast_is_not_promised_more_than_it_does():
    executor = Executor(**SLOW, slower=lambda now: 2.0 if now > 10 else 1.0)
    results = simulate([Client(lambda _: 2 * PEAK)], 25.0, executor)
    figures = summary([one for one in results if one.arrived >= 12], 13.0)

    assert figures["goodput"] >= 0.9 * PEAK / 2
    assert figures["late"] <= 0.01


def test_the_first_overload_after_a_start_is_judged_by_what_the_golden_calls_took():
    """A burst before any call has ended, on a machine far from the guess of a server that was told nothing."""
    slow = {name: 8 * seconds for name, seconds in SLOW.items()}

    def late(golden: Sequence[int]) -> int:
        results = simulate([Client(lambda _: 5 * PEAK)], 0.2, Executor(**slow, golden=golden))
        return sum(one.outcome == "late" for one in results)

    assert late(golden=()) > 20
    assert late(golden=(17, 20, 3, 28)) == 0


def test_bulk_is_shed_first_and_gets_on():
    clients = [
        Client(lambda _: 0.8 * PEAK),
        Client(lambda _: 2 * PEAK, priority="bulk", timeout_s=5.0, seed=2),
    ]
    results = simulate(clients, 20.0, Executor(**SLOW))
    person, program = ([one for one in results if one.priority == priority] for priority in ("interactive", "bulk"))

    assert sum(one.outcome == "ok" for one in person) >= 0.994 * len(person)
    assert 0.02 * len(program) < sum(one.outcome == "ok" for one in program) < 0.5 * len(program)
    assert sum(one.outcome == "late" for one in program) < 0.05 * len(program)


def test_a_request_of_many_lets_others_pass():
    """One of 200 rows does not hold up short ones that come after it: they take no more than half as long again."""
    short = Client(lambda _: 0.3 * PEAK, classes={SHORT: 1.0}, timeout_s=30.0)
    giant = Client(lambda now: 2.0 if 4.95 < now < 5.01 else 0.0, classes={LONG: 1.0}, encodings=200, timeout_s=60.0)
    alone = summary(simulate([short], 20.0, Executor(**SLOW)), 20.0)
    results = simulate([short, giant], 20.0, Executor(**SLOW))

    assert [one.outcome for one in results if one.length == LONG] == ["ok"]
    beside = summary([one for one in results if one.length == SHORT], 20.0)
    assert beside["p99"] <= 1.5 * alone["p99"] + 2 * Executor(**SLOW).takes_s([LONG])


def test_what_is_refused_is_told_to_come_back_when_the_backlog_is_gone():
    results = simulate([Client(lambda _: 5 * PEAK, timeout_s=8.0)], 10.0, Executor(**SLOW))
    told = [one.retry_s for one in results if one.outcome == "refused"]

    assert 6.0 <= min(told) <= max(told) <= 1.5 * 8
