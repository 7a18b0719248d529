"""Scheduling of reads, on a clock that only the reads advance."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.http.connections.read_scheduler import (
    BUDGET_S,
    CROWDED_S,
    FAIR_EVERY,
    REST,
    REST_AFTER_S,
    STALE_S,
    ReadScheduler,
)


class Recorder:
    """A scheduler with its clock, and a record of the reads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.iteration = 0
        self.read: list[int] = []
        self.iterations: dict[int, int] = {}  # of each read
        self.scheduler = ReadScheduler(lambda: self.now)

    def reader(self, number: int, takes_s: float = 0.0, error: Exception | None = None) -> Reader:
        return Reader(self, number, takes_s, error)

    def schedule(self, reader: Reader) -> None:
        """Reads now if the scheduler gives a turn, as a connection does."""
        if self.scheduler.request_turn(reader):
            reader.read()


class Reader:
    client = "192.0.2.1"

    def __init__(self, recorder: Recorder, number: int, takes_s: float, error: Exception | None) -> None:
        self.recorder, self.number, self.takes_s, self.error = recorder, number, takes_s, error

    def read(self) -> None:
        self.recorder.read.append(self.number)
        self.recorder.iterations[self.number] = self.recorder.iteration
        self.recorder.now += self.takes_s
        if self.error:
            raise self.error


def run(scenario: Callable[[Recorder], Any]) -> Recorder:
    """Calls `scenario` in an iteration of an event loop, and runs the loop until no read is deferred."""
    recorder = Recorder()

    async def main() -> None:
        scenario(recorder)
        while recorder.scheduler.has_backlog():
            recorder.iteration += 1
            await asyncio.sleep(0)

    asyncio.run(main())
    return recorder


def test_scheduler_defers_reads_beyond_the_budget():
    def scenario(recorder: Recorder) -> None:
        for number in range(7):
            recorder.schedule(recorder.reader(number, BUDGET_S / 2))
        assert recorder.read == [0, 1]
        assert recorder.scheduler.has_backlog()

    recorder = run(scenario)

    assert recorder.read == list(range(7))
    assert list(recorder.iterations.values()) == [0, 0, 1, 1, 2, 2, 3]


def test_scheduler_gives_each_iteration_a_new_budget():
    recorder = Recorder()

    async def main() -> None:
        for number in range(5):
            recorder.schedule(recorder.reader(number, BUDGET_S))
            await asyncio.sleep(0)
            assert recorder.read == list(range(number + 1))

    asyncio.run(main())


def test_scheduler_runs_the_oldest_read_first():
    def scenario(recorder: Recorder) -> None:
        recorder.schedule(recorder.reader(0, BUDGET_S))
        recorder.schedule(recorder.reader(1))
        recorder.now = 2 * BUDGET_S  # as if this iteration had just begun
        recorder.schedule(recorder.reader(2))

    assert run(scenario).read == [0, 1, 2]


def test_scheduler_runs_the_newest_read_first_when_reads_are_stale():
    def scenario(recorder: Recorder) -> None:
        recorder.schedule(recorder.reader(0, BUDGET_S))
        for number in range(1, 4):
            recorder.schedule(recorder.reader(number))
        recorder.now += 2 * STALE_S
        recorder.schedule(recorder.reader(4))

    assert run(scenario).read == [0, 4, 3, 2, 1]


def test_scheduler_keeps_the_place_of_a_rescheduled_reader():
    def scenario(recorder: Recorder) -> None:
        recorder.schedule(recorder.reader(0, BUDGET_S))
        first, second = recorder.reader(1), recorder.reader(2)
        for reader in (first, second, first):
            recorder.schedule(reader)

    assert run(scenario).read == [0, 1, 2]


def test_scheduler_skips_cancelled_readers():
    def scenario(recorder: Recorder) -> None:
        recorder.schedule(recorder.reader(0, BUDGET_S))
        gone = recorder.reader(1)
        recorder.schedule(gone)
        recorder.schedule(recorder.reader(2))
        recorder.scheduler.cancel(gone)
        recorder.scheduler.cancel(gone)

    assert run(scenario).read == [0, 2]


def test_scheduler_lets_other_callbacks_run_between_iterations():
    seen: list[int] = []

    def scenario(recorder: Recorder) -> None:
        for number in range(3):
            recorder.schedule(recorder.reader(number, BUDGET_S))
        asyncio.get_running_loop().call_soon(lambda: seen.append(len(recorder.read)))

    run(scenario)

    assert seen == [2]


def test_scheduler_continues_after_a_failing_reader():
    errors: list[BaseException] = []

    def scenario(recorder: Recorder) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
        recorder.schedule(recorder.reader(0, BUDGET_S))
        recorder.schedule(recorder.reader(1, error=ZeroDivisionError()))
        recorder.schedule(recorder.reader(2))

    assert run(scenario).read == [0, 1, 2]
    assert [type(error) for error in errors] == [ZeroDivisionError]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["schedule", "cancel", "wait", "iterate"]), st.integers(0, 9), st.floats(0, 2 * BUDGET_S)
        )
    )
)
def test_scheduler_reads_each_reader_once_within_the_budget(steps):
    recorder = Recorder()
    expected = dict.fromkeys(range(10), 0)
    spent: dict[int, float] = {}

    class CheckedReader(Reader):
        """A reader that asserts that it has bytes to read and that the iteration has budget left."""

        has_bytes = False

        def read(self) -> None:
            assert self.has_bytes
            self.has_bytes = False
            assert spent.get(recorder.iteration, 0.0) < BUDGET_S or math.isclose(spent[recorder.iteration], BUDGET_S)
            spent[recorder.iteration] = spent.get(recorder.iteration, 0.0) + self.takes_s
            super().read()

    async def main() -> None:
        readers = [CheckedReader(recorder, number, 0.0, None) for number in range(10)]
        for step, number, seconds in steps:
            reader = readers[number]
            if step == "schedule":
                if not reader.has_bytes:  # otherwise it keeps its place
                    reader.takes_s = seconds
                    expected[number] += 1
                reader.has_bytes = True
                recorder.schedule(reader)
            elif step == "cancel" and reader.has_bytes:
                reader.has_bytes = False
                expected[number] -= 1
                recorder.scheduler.cancel(reader)
            elif step == "wait":
                recorder.now += 100 * seconds
            elif step == "iterate":
                # A read after the first iteration may still use its budget.
                for _ in range(2):
                    recorder.iteration += 1
                    await asyncio.sleep(0)
                recorder.iteration += 1
        while recorder.scheduler.has_backlog():
            recorder.iteration += 1
            await asyncio.sleep(0)
        assert not any(reader.has_bytes for reader in readers)

    asyncio.run(main())

    assert {number: recorder.read.count(number) for number in range(10)} == expected


@pytest.mark.parametrize("count", [1, 1000])
def test_scheduler_schedules_nothing_when_idle(count):
    recorder = Recorder()

    async def main() -> None:
        for number in range(count):
            recorder.schedule(recorder.reader(number, BUDGET_S))
        loop = asyncio.get_running_loop()
        while recorder.scheduler.has_backlog():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not loop._ready  # only this coroutine is scheduled

    asyncio.run(main())
    assert len(recorder.read) == count


class Page(Reader):
    """A reader whose first turn starts a page, which takes its time in the iteration after that."""

    def read(self) -> None:
        asyncio.get_running_loop().call_soon(super().read)


def test_scheduler_runs_one_page_in_an_iteration():
    recorder = Recorder()

    async def main() -> None:
        for number in range(5):
            recorder.scheduler.schedule_page(Page(recorder, number, 0.0, None))
        started = []
        while len(recorder.read) < 5:
            started.append(len(recorder.read))
            await asyncio.sleep(0)
        assert max(after - before for before, after in pairwise(started)) == 1

    asyncio.run(main())
    assert recorder.read == list(range(5))


@pytest.mark.parametrize(("takes_s", "rests"), [(REST_AFTER_S / REST / 2, False), (REST_AFTER_S / REST * 2, True)])
def test_scheduler_rests_from_pages_that_fill_their_share(takes_s, rests):
    recorder = Recorder()

    async def main() -> None:
        recorder.scheduler.schedule_page(Page(recorder, 0, takes_s, None))
        while not recorder.read:
            await asyncio.sleep(0)
        recorder.scheduler.schedule_page(Page(recorder, 1, 0.0, None))
        assert recorder.scheduler.is_idle != rests  # a page that starts waits no more
        while len(recorder.read) < 2:
            await asyncio.sleep(0.001)

    asyncio.run(main())
    assert recorder.read == [0, 1]


def test_scheduler_reads_first_requests_while_it_rests_from_pages():
    recorder = Recorder()

    async def main() -> None:
        recorder.scheduler.schedule_page(Page(recorder, 0, 10.0, None))
        while not recorder.read:
            await asyncio.sleep(0)
        recorder.scheduler.schedule_page(Page(recorder, 1, 0.0, None))
        recorder.scheduler.schedule_pipelined(recorder.reader(2))
        recorder.schedule(recorder.reader(3))
        assert recorder.read == [0, 3]
        assert not recorder.scheduler.has_backlog()
        assert not recorder.scheduler.is_idle
        while len(recorder.read) < 4:
            await asyncio.sleep(0.001)  # the rest is a timer of the loop

    asyncio.run(main())
    assert recorder.read == [0, 3, 1, 2]


def test_scheduler_serves_pages_while_first_requests_overload_it():
    recorder = Recorder()

    async def main() -> None:
        for number in range(100):
            recorder.schedule(recorder.reader(number, BUDGET_S))
        recorder.scheduler.schedule_pipelined(recorder.reader(200))
        recorder.scheduler.schedule_page(Page(recorder, 100, 0.0, None))
        while recorder.scheduler.has_backlog():
            await asyncio.sleep(0)

    asyncio.run(main())
    assert recorder.read.index(200) < 10
    assert recorder.read.index(100) < 20


def test_scheduler_never_runs_a_pipelined_request_at_once():
    """It may be scheduled while the error of the request before it is handled."""
    recorder = Recorder()

    async def main() -> None:
        recorder.scheduler.schedule_pipelined(recorder.reader(0))
        assert recorder.read == []
        await asyncio.sleep(0)
        assert recorder.read == [0]

    asyncio.run(main())


def test_scheduler_starves_no_reader_beside_those_that_come_again_at_once():
    """The clock moves on beyond every limit, so that reads are stale all the time."""
    recorder = Recorder()
    victim_turns: list[int] = []

    class Greedy(Reader):
        def read(self) -> None:
            super().read()
            if len(recorder.read) < 5000:
                self.recorder.schedule(self)

    async def main() -> None:
        for number in range(16):
            recorder.schedule(Greedy(recorder, number, BUDGET_S / 4, None))
        for victim in range(16, 24):
            began = len(recorder.read)
            recorder.now += 2 * STALE_S
            recorder.schedule(recorder.reader(victim))
            while victim not in recorder.read:
                await asyncio.sleep(0)
            victim_turns.append(recorder.read.index(victim) - began)

    asyncio.run(main())
    assert max(victim_turns) <= (FAIR_EVERY + 1) * 17


def test_scheduler_tells_of_a_crowd_that_lasts():
    told: list[object] = []
    recorder = Recorder()
    recorder.scheduler = ReadScheduler(lambda: recorder.now, told.append)

    async def main() -> None:
        for number in range(3):
            recorder.scheduler.schedule_pipelined(recorder.reader(number))
            recorder.now += CROWDED_S
        while not recorder.scheduler.is_idle:
            await asyncio.sleep(0)
        recorder.scheduler.schedule_pipelined(recorder.reader(3))

    asyncio.run(main())
    assert told == [Reader.client]


def test_scheduler_forgets_a_page_that_is_cancelled():
    recorder = Recorder()

    async def main() -> None:
        pages = [Page(recorder, number, 0.0, None) for number in range(3)]
        for page in pages:
            recorder.scheduler.schedule_page(page)
        recorder.scheduler.cancel(pages[1])
        while len(recorder.read) < 2:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert recorder.read == [0, 2]
    assert recorder.scheduler.is_idle
