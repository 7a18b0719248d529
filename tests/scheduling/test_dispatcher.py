"""The dispatcher forms batches, orders them, and drops work that no caller waits for."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from swiftlet_serve.errors import DeadlineExceeded
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import PART, Dispatcher
from swiftlet_serve.scheduling.latency_model import work
from swiftlet_serve.scheduling.load import BULK_EVERY, wait_s
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Batch, Cost
from tests.support.fakes import (
    RAGGED,
    Engine,
    ManualEngine,
    ManualExecutor,
    Scheduler,
    dispatcher_of,
    encoding,
    one_core,
    row_of,
    rows_of,
    settle,
    soon,
    submit,
    tags,
)


async def test_dispatcher_returns_the_row_of_each_sequence():
    scheduler = one_core(Engine())
    rows = await asyncio.gather(*(submit(scheduler, encoding(tag), soon()) for tag in range(50)))

    assert [row.tolist() for row in rows] == [row_of(tag).tolist() for tag in range(50)]


async def test_dispatcher_batches_requests_of_one_loop_iteration():
    engine = Engine()
    scheduler = one_core(engine)
    await asyncio.gather(*(submit(scheduler, encoding(tag), soon()) for tag in range(4)))

    assert engine.asked == [[0, 1, 2, 3]]


async def test_dispatcher_shares_requests_between_idle_cores():
    engine = ManualEngine()
    scheduler = Scheduler(dispatcher_of(2, model=engine))
    work = asyncio.gather(*(submit(scheduler, encoding(tag), soon()) for tag in range(4)))
    first, second = await engine.called(), await engine.called()

    assert sorted([first.tags, second.tags]) == [[0, 1], [2, 3]]
    first.finish()
    second.finish()
    await work


async def test_dispatcher_starts_on_an_idle_core_and_queues_for_a_busy_one():
    engine = ManualEngine()
    scheduler = one_core(engine)
    work = [asyncio.ensure_future(submit(scheduler, encoding(0), soon()))]
    first = await engine.called()
    for tag in (1, 2, 3):
        work.append(asyncio.ensure_future(submit(scheduler, encoding(tag), soon())))
        await settle()
    first.finish()
    second = await engine.called()
    second.finish()
    await asyncio.gather(*work)

    assert (first.tags, second.tags) == ([0], [1, 2, 3])


async def test_dispatcher_starts_the_next_batch_before_it_delivers_rows():
    seen: list[str] = []

    class Executor(ManualExecutor):
        def run(self, model, encodings, timeout_s):
            seen.append(f"runs {tags(Batch.of(encodings))}")
            return asyncio.ensure_future(super().run(model, encodings, timeout_s))

    executor = Executor(1)
    scheduler = Scheduler(Dispatcher(executor))
    answers = [*scheduler.submit([encoding(0)], soon())]
    call = await executor.calls.get()
    answers += scheduler.submit([encoding(1)], soon())
    answers[0].add_done_callback(lambda _: seen.append("answers [0]"))
    call.set_result([row_of(0)])
    await answers[0]
    await settle()
    (await executor.calls.get()).set_result([row_of(1)])
    await answers[1]

    assert seen == ["runs [0]", "runs [1]", "answers [0]"]


async def test_dispatcher_serves_the_model_with_the_oldest_sequence_first():
    one, other = ManualEngine(), ManualEngine()
    dispatcher = dispatcher_of(1, one=one, other=other)
    ones, others = Scheduler(dispatcher, "one"), Scheduler(dispatcher, "other")
    work = [asyncio.ensure_future(submit(ones, encoding(0), soon()))]
    running = await one.called()
    for scheduler, tag in ((others, 1), (ones, 2), (others, 3)):
        work.append(asyncio.ensure_future(submit(scheduler, encoding(tag), soon())))
        await settle()

    assert one.calls.empty()
    assert other.calls.empty()
    running.finish()
    second = await other.called()
    second.finish()
    third = await one.called()
    third.finish()
    await asyncio.gather(*work)
    assert (second.tags, third.tags) == ([1, 3], [2])


async def test_dispatcher_limits_the_calls_of_a_model_and_runs_others_beside():
    device = ManualEngine(Cost(padded=True, call_tokens=8, max_tokens=512, max_rows=64, max_calls=1))
    other = ManualEngine()
    dispatcher = dispatcher_of(2, device=device, other=other)
    on_device, beside = Scheduler(dispatcher, "device"), Scheduler(dispatcher, "other")
    work = [asyncio.ensure_future(submit(on_device, encoding(0), soon()))]
    first = await device.called()
    for tag in (1, 2, 3):
        work.append(asyncio.ensure_future(submit(on_device, encoding(tag), soon())))
        await settle()
    work.append(asyncio.ensure_future(submit(beside, encoding(4), soon())))
    call = await other.called()

    assert device.calls.empty()
    call.finish()
    first.finish()
    second = await device.called()
    second.finish()
    await asyncio.gather(*work)
    assert (second.tags, call.tags) == ([1, 2, 3], [4])


async def test_dispatcher_runs_one_bulk_batch_in_bulk_every():
    executor = ManualExecutor(1, Cost(padded=False, call_tokens=0, max_tokens=4, max_rows=1))
    scheduler = Scheduler(Dispatcher(executor))
    bulk = scheduler.submit([encoding(100), encoding(101)], soon(), "bulk")
    await settle()
    rest = scheduler.submit([encoding(tag) for tag in range(30)], soon())
    while not all(answer.done() for answer in [*bulk, *rest]):
        (await executor.calls.get()).set_result([row_of(0)])
        await settle()

    asked = [tag for (tag,) in executor.asked]
    assert asked == [100, *range(BULK_EVERY - 1), 101, *range(BULK_EVERY - 1, 30)]


async def test_dispatcher_drops_hopeless_sequences_unless_all_cores_are_idle():
    executor = ManualExecutor(2)
    scheduler = Scheduler(Dispatcher(executor))
    for _ in range(8):
        scheduler.queue.latency.learn([4], 100.0)
    (tried,) = scheduler.submit([encoding(0)], soon())  # predicted to take 100 s of the 30 s left
    await settle()
    (hopeless,) = scheduler.submit([encoding(1)], soon())
    with pytest.raises(DeadlineExceeded):
        await hopeless

    (await executor.calls.get()).set_result([row_of(0)])
    assert (await tried).tolist() == row_of(0).tolist()
    assert executor.asked == [[0]]


async def test_dispatcher_never_starts_cancelled_sequences():
    engine = ManualEngine()
    scheduler = one_core(engine)
    running = asyncio.ensure_future(submit(scheduler, encoding(0), soon()))
    first = await engine.called()
    gone, stays = (asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in (1, 2))
    await settle()
    gone.cancel()
    await settle()

    assert scheduler.dispatcher.queued_tokens == 4
    first.finish()
    second = await engine.called()
    second.finish()
    await asyncio.gather(running, stays)
    assert second.tags == [2]
    assert gone.cancelled()


async def test_dispatcher_drops_a_sequence_cancelled_in_the_same_iteration():
    engine = Engine()
    scheduler = one_core(engine)
    gone = asyncio.ensure_future(submit(scheduler, encoding(1), soon()))
    await asyncio.sleep(0)
    gone.cancel()
    await settle()

    assert engine.asked == []
    assert scheduler.dispatcher.queued_tokens == 0


async def test_dispatcher_answers_the_others_of_a_batch_with_a_cancelled_sequence():
    engine = ManualEngine()
    scheduler = one_core(engine)
    gone, *stay = (asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in range(3))
    call = await engine.called()
    gone.cancel()
    await settle()
    call.finish()

    assert [row.tolist() for row in await asyncio.gather(*stay)] == [row_of(1).tolist(), row_of(2).tolist()]
    assert call.tags == [0, 1, 2]


async def test_dispatcher_frees_callers_at_their_deadline():
    engine = ManualEngine()
    scheduler = one_core(engine)
    runs = asyncio.ensure_future(submit(scheduler, encoding(0), time.monotonic() + 0.5))
    call = await engine.called()
    waits = asyncio.ensure_future(submit(scheduler, encoding(1), time.monotonic() + 0.5))
    outcomes = await asyncio.gather(runs, waits, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [DeadlineExceeded] * 2
    assert scheduler.dispatcher.queued_tokens == 0
    call.finish()
    later = asyncio.ensure_future(submit(scheduler, encoding(2), soon()))
    call = await engine.called()
    call.finish()
    assert (await later).tolist() == row_of(2).tolist()
    assert call.tags == [2]


async def test_dispatcher_close_does_not_wait_for_a_hanging_engine():
    engine = ManualEngine()
    scheduler = one_core(engine)
    work = asyncio.ensure_future(submit(scheduler, encoding(0), time.monotonic() + 0.2))
    call = await engine.called()

    assert not await scheduler.close(0.01)
    with pytest.raises(DeadlineExceeded):
        await work
    call.finish()


async def test_dispatcher_records_the_stages_of_a_request():
    scheduler, record = one_core(Engine()), RequestRecord()
    await asyncio.gather(*scheduler.submit([encoding(tag) for tag in range(3)], soon(), record=record))

    assert record.stages.keys() == {"queue", "batch", "infer"}
    assert all(span.duration_s >= 0 for span in record.stages.values())
    assert record.batch_size == 3


async def test_many_sequences_are_queued_as_calls_take_them_and_count_at_once():
    """No iteration of the event loop queues all of them, and admission knows all of them."""
    executor = ManualExecutor(1)
    dispatcher = Dispatcher(executor)
    (queue, *_) = dispatcher.add_model("model").queues
    rows = dispatcher.submit("model", [encoding(tag % 100) for tag in range(5 * RAGGED.max_rows + 1)], soon())
    assert dispatcher.queued_tokens == 4 * len(rows)
    while not all(row.done() for row in rows):
        await settle()
        assert len([*queue]) <= RAGGED.max_rows
        assert dispatcher.queued_tokens == 4 * (len(rows) - sum(map(len, executor.asked)))
        executor.calls.get_nowait().set_result(rows_of(executor.asked[-1]))
        await settle()
    assert [len(asked) for asked in executor.asked] == [RAGGED.max_rows] * 5 + [1]
    assert [row.result().tolist() for row in rows] == [row_of(tag % 100).tolist() for tag in range(len(rows))]
    assert (dispatcher.queued_tokens, queue.lanes) == (0, {})


async def test_an_iteration_of_the_event_loop_queues_a_part():
    """However many sequences the next call takes."""
    dispatcher = Dispatcher(ManualExecutor(1, replace(RAGGED, max_rows=4096, max_tokens=1 << 16)))
    (queue, *_) = dispatcher.add_model("model").queues
    for _ in range(2):
        dispatcher.submit("model", [encoding(tag) for tag in range(2 * PART)], soon())
    waiting = [0]
    for _ in range(6):
        await asyncio.sleep(0)
        waiting.append(len([*queue]))
    assert waiting == [0, 0, PART, 2 * PART, 3 * PART, 3 * PART, 3 * PART]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("factor", [0.5, 2, 5])
async def test_a_short_request_beside_many_sequences_is_in_the_very_next_call(cores, factor):
    """Also if calls take longer than predicted."""
    now = [0.0]
    executor = ManualExecutor(cores)
    dispatcher = Dispatcher(executor, clock=lambda: now[0])
    model = dispatcher.add_model("model")
    call_s = model.latency.batch_s([4] * RAGGED.max_rows)
    dispatcher._learn = lambda *_: None  # type: ignore[method-assign]
    dispatcher.submit("model", [encoding(1) for _ in range(20 * RAGGED.max_rows)], 1e9)
    for _ in range(8):
        await settle()
        now[0] += factor * call_s / cores
        executor.calls.get_nowait().set_result(rows_of([1] * RAGGED.max_rows))
    await settle()
    started = len(executor.asked)
    dispatcher.submit("model", [encoding(2)], 1e9)
    executor.calls.get_nowait().set_result(rows_of([1] * RAGGED.max_rows))
    await settle()

    assert [2 in asked for asked in executor.asked[started:]] == [True]


async def test_sequences_whose_caller_goes_before_they_are_queued_leave_nothing():
    executor = ManualExecutor(1)
    dispatcher = Dispatcher(executor)
    (queue, *_) = dispatcher.add_model("model").queues
    for row in dispatcher.submit("model", [encoding(1) for _ in range(2 * PART)], soon()):
        row.cancel()
    for _ in range(4):
        await settle()

    assert (executor.asked, dispatcher.queued_tokens, queue.lanes) == ([], 0, {})


async def test_a_short_request_is_admitted_beside_many_expected_sequences():
    """It waits for what arrives until it is done, and not for all of the large request."""
    executor = ManualExecutor(1)
    dispatcher = Dispatcher(executor)
    model = dispatcher.add_model("model")
    large_s = model.latency.backlog_s(*work([4] * 2000 * RAGGED.max_rows))
    admission = AdmissionController(dispatcher.load, 1 << 30)
    dispatcher.submit("model", [encoding(1) for _ in range(2000 * RAGGED.max_rows)], 1e9)
    for _ in range(3):
        await settle()
    (queue, *_) = model.queues
    one_s = model.latency.single_s(4)
    assert queue.ahead_s(dispatcher.clock() + one_s, dispatcher.clock(), "") < large_s / 100
    admission.commit(None, "model", [4], large_s / 20, "interactive")


async def test_a_short_request_does_not_wait_for_long_sequences_that_are_expected():
    executor = ManualExecutor(2, replace(RAGGED, shares_cores=True))
    dispatcher = Dispatcher(executor)
    model = dispatcher.add_model("model")
    length = next(n for n in (2**k for k in range(30)) if model.is_long(n))
    long = replace(encoding(1), input_ids=np.ones(length, np.int64), token_type_ids=np.zeros(length, np.int64))
    dispatcher.submit("model", [long] * 20, 1e9)
    for _ in range(3):
        await settle()
    assert model.short["interactive"].total == (0, 0, 0)
    assert wait_s(dispatcher.load(), "interactive", model, model.latency.single_s(4)) == 0.0
    for row in dispatcher.submit("model", [long] * 20, 1e9):
        row.cancel()
    await settle()
    assert len(dispatcher._arriving) == 1
