"""Time limits of asyncio tasks, with one timer for all."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import DeadlineExceeded
from swiftlet_serve.inference.task_timer import RESOLUTION_S, TaskTimer
from tests.support.virtual import run

SECONDS = st.integers(0, 20).map(float)


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=8))
def test_task_timer_cancels_exactly_the_tasks_that_take_too_long(tasks: list[tuple[float, float, float]]) -> None:
    """Each task has a start, a timeout and a duration."""

    async def scenario() -> None:
        timer, loop = TaskTimer(), asyncio.get_running_loop()

        async def work(start: float, timeout: float, duration: float) -> None:
            await asyncio.sleep(start)
            started = loop.time()
            try:
                with timer.limit(started + timeout):
                    await asyncio.sleep(duration)
                took, expected = loop.time() - started, duration
                assert duration <= timeout
            except DeadlineExceeded:
                took, expected = loop.time() - started, timeout
                assert timeout <= duration
            assert expected - 1e-6 <= took <= expected + 2 * RESOLUTION_S

        await asyncio.gather(*(work(*task) for task in tasks))

    run(scenario())


def test_task_timer_keeps_other_exceptions() -> None:
    async def scenario() -> None:
        timer = TaskTimer()
        with pytest.raises(ValueError, match="other"), timer.limit(1):
            raise ValueError("other")
        await asyncio.sleep(2)

    run(scenario())


@pytest.mark.parametrize("order", [("cancel", "expire"), ("expire", "cancel")])
def test_task_timer_leaves_a_cancelled_task_cancelled(order: tuple[str, ...]) -> None:
    """Another cancellation in the same iteration of the event loop takes precedence."""

    async def scenario() -> None:
        timer = TaskTimer()
        limit = timer.limit(1000)

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


def test_task_timer_works_on_one_event_loop_after_another() -> None:
    timer = TaskTimer()

    async def scenario() -> None:
        with pytest.raises(DeadlineExceeded), timer.limit(5):
            await asyncio.sleep(10)
        with timer.limit(100):
            await asyncio.sleep(0)

    for _ in range(2):
        run(scenario())
