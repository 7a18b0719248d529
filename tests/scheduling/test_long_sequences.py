"""Long sequences leave a core to short ones, where calls share cores. Nothing here depends on how long calls take."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import Unavailable
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.queue import may_start_long
from swiftlet_serve.types import Cost, WorkerLost
from tests.support.fakes import RAGGED, ManualExecutor, Scheduler, encoding, row_of, settle, soon

SHARED = Cost(padded=False, call_tokens=0, max_tokens=512, max_rows=64, shares_cores=True)
LONG = 8192  # before any call, predicted to take 7 seconds


@given(st.integers(0, 64), st.integers(1, 64))
def test_one_core_is_kept_for_short_calls(running, cores):
    assert may_start_long(running, cores) == (running + 1 < cores)


def submit(scheduler: Scheduler, *tags_and_lengths: tuple[int, int]) -> list[asyncio.Future]:
    return [row for tag, length in tags_and_lengths for row in scheduler.submit([encoding(tag, length)], soon())]


async def finish(executor: ManualExecutor, tag: int) -> None:
    """Ends the oldest call, which has one sequence."""
    (await executor.calls.get()).set_result([row_of(tag)])
    await settle()


@pytest.mark.parametrize("cores", [2, 3])
async def test_short_sequence_starts_beside_a_stream_of_long_ones(cores):
    executor = ManualExecutor(cores, SHARED)
    scheduler = Scheduler(Dispatcher(executor))
    rows = submit(scheduler, *((tag, LONG) for tag in range(cores + 1)))
    await settle()
    assert executor.asked == [[tag] for tag in range(cores - 1)]

    rows += submit(scheduler, (9, 30))
    await settle()
    assert executor.asked[cores - 1 :] == [[9]]

    await finish(executor, 0)
    assert executor.asked[cores:] == [[cores - 1]]  # the next long one takes the place of the one that has ended
    for row in rows:
        row.cancel()


async def test_long_sequences_take_turns_with_short_ones_of_their_client():
    executor = ManualExecutor(2, SHARED)
    scheduler = Scheduler(Dispatcher(executor))
    rows = submit(scheduler, (0, LONG), (1, 300))
    await settle()
    rows += submit(scheduler, (2, LONG), (3, 300))
    await settle()
    await finish(executor, 0)

    assert executor.asked == [[0], [1], [2]]
    for row in rows:
        row.cancel()


@pytest.mark.parametrize(("cores", "cost"), [(1, SHARED), (2, RAGGED)])
async def test_long_sequences_may_take_every_core_if_it_would_be_idle_otherwise(cores, cost):
    executor = ManualExecutor(cores, cost)
    rows = submit(Scheduler(Dispatcher(executor)), *((tag, LONG) for tag in range(cores)))
    await settle()

    assert executor.asked == [[tag] for tag in range(cores)]
    for row in rows:
        row.cancel()


async def test_short_requests_are_admitted_as_if_no_long_ones_were_queued():
    executor = ManualExecutor(2, SHARED)
    scheduler = Scheduler(Dispatcher(executor))
    rows = submit(scheduler, *((tag, LONG) for tag in range(3)))
    await settle()
    rows += scheduler.submit([encoding(8, 30)], time.monotonic() + 1)
    await settle()
    rows += scheduler.submit([encoding(9, 30)], time.monotonic() + 1)

    assert executor.asked == [[0], [8]]
    with pytest.raises(Unavailable, match="queue is too long"):
        scheduler.submit([encoding(10, LONG)], time.monotonic() + 10)
    scheduler.admission.reserve("request", 1.0, "interactive", complete=True)
    assert scheduler.dispatcher.queue_state().wait_s > 5  # what is published counts all
    for row in rows:
        row.cancel()


async def test_long_request_waits_for_a_long_call_although_a_core_is_idle():
    executor = ManualExecutor(2, SHARED)
    scheduler = Scheduler(Dispatcher(executor))
    rows = submit(scheduler, (0, LONG))
    await settle()

    with pytest.raises(Unavailable, match="queue is too long"):
        scheduler.submit([encoding(1, LONG)], time.monotonic() + 8)
    rows += scheduler.submit([encoding(1, LONG)], time.monotonic() + 20)
    for row in rows:
        row.cancel()


async def test_sequences_of_a_lost_call_go_back_to_their_queue():
    """A long one then waits for other long ones again."""
    executor = ManualExecutor(2, SHARED)
    dispatcher = Dispatcher(executor)
    scheduler = Scheduler(dispatcher)
    rows = submit(scheduler, (0, LONG), (1, LONG))
    await settle()
    (await executor.calls.get()).set_exception(WorkerLost(suspect=False))
    await settle()

    assert executor.asked == [[0], [0]]
    assert [queue.is_long for queue in dispatcher.load().queues if queue] == [True]
    for row in rows:
        row.cancel()
