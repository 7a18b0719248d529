"""Deadlines of tasks that share one timer."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import DeadlineExceeded
from swiftlet_serve.inference.deadlines import RESOLUTION_S, Deadlines
from tests.support.virtual import run

SECONDS = st.integers(0, 20).map(float)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=8))
def test_deadlines_end_exactly_the_tasks_that_take_too_long(tasks: list[tuple[float, float, float]]) -> None:
    """Each task has a start, a timeout and a duration."""

    async def scenario() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()

        async def work(start: float, timeout: float, duration: float) -> None:
            await asyncio.sleep(start)
            started = loop.time()
            try:
                with deadlines.limit(started + timeout):
                    await asyncio.sleep(duration)
                took, expected = loop.time() - started, duration
                assert duration <= timeout
            except DeadlineExceeded:
                took, expected = loop.time() - started, timeout
                assert timeout <= duration
            assert expected - 1e-6 <= took <= expected + 2 * RESOLUTION_S

        await asyncio.gather(*(work(*task) for task in tasks))

    run(scenario())


def test_deadlines_keep_other_exceptions() -> None:
    async def scenario() -> None:
        deadlines = Deadlines()
        with pytest.raises(ValueError, match="other"), deadlines.limit(1):
            raise ValueError("other")
        await asyncio.sleep(2)

    run(scenario())


@pytest.mark.parametrize("order", [("cancel", "expire"), ("expire", "cancel")])
def test_deadlines_leave_a_cancelled_task_cancelled(order: tuple[str, ...]) -> None:
    """Another cancellation in the same iteration of the event loop takes precedence."""

    async def scenario() -> None:
        deadlines = Deadlines()
        limit = deadlines.limit(1000)

        async def work() -> None:
            with limit:
                await asyncio.sleep(100)

        task = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        for step in order:
            if step == "cancel":
                task.cancel()
            else:
                limit.expire()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())


def test_deadlines_work_on_one_event_loop_after_another() -> None:
    deadlines = Deadlines()

    async def scenario() -> None:
        with pytest.raises(DeadlineExceeded), deadlines.limit(5):
            await asyncio.sleep(10)
        with deadlines.limit(100):
            await asyncio.sleep(0)

    for _ in range(2):
        run(scenario())
