"""Admission control refuses requests that cannot meet their deadline, and no others."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.errors import DeadlineExceeded, Unavailable
from swiftlet_serve.scheduling.admission import MAX_WAIT_SHARE, admissible, retry_after_s
from swiftlet_serve.scheduling.load import wait_s
from tests.support.fakes import (
    PATIENCE_S,
    Engine,
    ManualEngine,
    Scheduler,
    dispatcher_of,
    encoding,
    one_core,
    row_of,
    settle,
    soon,
    submit,
)

PRIORITIES = st.sampled_from(list(MAX_WAIT_SHARE))


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), PRIORITIES)
def test_admissible_requests_meet_their_deadline_or_need_not_wait(wait, own, left, priority):
    assert not admissible(wait, own, left, priority) or (wait == 0 < left) or wait + own <= left


@given(st.floats(0, 100), st.floats(0, 25), st.floats(0, 25), PRIORITIES)
def test_admissible_does_not_prefer_short_requests(wait, short, long, priority):
    """Holds while either request takes less than a quarter of the time to its deadline."""
    assert admissible(wait, short, 100, priority) == admissible(wait, long, 100, priority)


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_admissible_refuses_bulk_first(wait, own, left):
    assert admissible(wait, own, left, "interactive") or not admissible(wait, own, left, "bulk")


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_retry_after_is_bounded_and_not_before_the_backlog_ends(wait, random):
    seconds = retry_after_s(wait, random)

    assert 1 <= seconds <= 30
    assert seconds == 30 or seconds >= wait
    assert seconds == 1 or seconds <= 1.5 * wait


def test_least_time_is_that_of_the_longest_sequence_or_of_all_on_every_core():
    def scheduler_of(cores: int) -> Scheduler:
        return Scheduler(dispatcher_of(cores, model=Engine()), max_queued_tokens=1 << 16)

    two, four = scheduler_of(2), scheduler_of(4)
    latency = two.dispatcher.models["model"].latency

    assert two.admission.minimum_s() == two.admission.minimum_s("model", [1]) == latency.single_s(1)
    assert two.admission.minimum_s("model", [9, 300]) >= latency.single_s(300)
    assert two.admission.minimum_s("model", [300] * 64) == 2 * four.admission.minimum_s("model", [300] * 64)


async def test_admission_refuses_a_request_past_its_deadline():
    engine = Engine()
    scheduler = one_core(engine)
    with pytest.raises(DeadlineExceeded):
        scheduler.submit([encoding(1)], time.monotonic() - 1)

    assert engine.asked == []


async def test_admission_refuses_while_the_queue_is_full():
    engine = ManualEngine()
    scheduler = one_core(engine, max_queued_tokens=8)
    running = asyncio.ensure_future(submit(scheduler, encoding(0), soon()))
    call = await engine.called()
    first, second = (asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in (1, 2))
    await settle()
    with pytest.raises(Unavailable) as refusal:
        await submit(scheduler, encoding(3), soon())

    assert refusal.value.code == "overloaded"
    assert refusal.value.retry_after >= 1
    first.cancel()
    await settle()
    fourth = asyncio.ensure_future(submit(scheduler, encoding(4), soon()))
    await settle()
    call.finish()
    call = await engine.called()
    call.finish()
    await asyncio.gather(running, second, fourth)
    assert call.tags == [2, 4]


async def test_admission_counts_reservations_as_queued_work():
    engine = ManualEngine()
    scheduler = one_core(engine)
    now = time.monotonic()
    scheduler.dispatcher.clock = lambda: now
    running = asyncio.ensure_future(submit(scheduler, encoding(0), soon()))
    call = await engine.called()
    one_s = scheduler.admission.mean_request_s
    for request in range(10):
        for _ in range(2):  # the second call does nothing
            scheduler.admission.reserve(request, 100.0, "interactive", complete=True)
        scheduler.admission.reserve(f"incomplete {request}", 100.0, "interactive", complete=False)
    remaining_s = (wait_s(scheduler.dispatcher.load(), "interactive") + 9.5 * one_s) / MAX_WAIT_SHARE["interactive"]
    with pytest.raises(Unavailable) as refusal:
        scheduler.admission.reserve("another", remaining_s, "interactive", complete=False)
    assert refusal.value.code == "overloaded"
    scheduler.admission.release(0)
    scheduler.admission.release("unknown")
    scheduler.admission.reserve("another", remaining_s, "interactive", complete=True)
    call.finish()
    await running


async def test_closed_admission_refuses_while_admitted_work_finishes():
    engine = ManualEngine()
    scheduler = one_core(engine)
    work = [asyncio.ensure_future(submit(scheduler, encoding(0), soon()))]
    first = await engine.called()
    work.append(asyncio.ensure_future(submit(scheduler, encoding(1), soon())))
    await settle()
    closing = asyncio.ensure_future(scheduler.close(PATIENCE_S))
    await settle()
    with pytest.raises(Unavailable) as refusal:
        await submit(scheduler, encoding(2), soon())

    assert refusal.value.code == "draining"
    first.finish()
    second = await engine.called()
    second.finish()
    assert await closing
    assert [row.tolist() for row in await asyncio.gather(*work)] == [row_of(0).tolist(), row_of(1).tolist()]
