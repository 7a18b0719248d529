"""An engine failure, or the loss of a worker process, fails only the sequences that cause it."""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest

from swiftlet_serve.errors import DeadlineExceeded, Internal, Unavailable
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.types import WorkerLost
from tests.support.fakes import (
    WIDTH,
    Engine,
    ManualExecutor,
    Scheduler,
    encoding,
    one_core,
    row_of,
    settle,
    soon,
    submit,
)


@pytest.mark.parametrize("bad", range(16))
async def test_dispatcher_fails_only_the_sequence_that_breaks_a_batch(bad):
    def answer(asked):
        if bad in asked:
            raise RuntimeError("cannot")
        return [row_of(tag) for tag in asked]

    engine = Engine(answer)
    scheduler = one_core(engine)
    outcomes = await asyncio.gather(
        *(submit(scheduler, encoding(tag), soon()) for tag in range(16)), return_exceptions=True
    )

    failed = [tag for tag, outcome in enumerate(outcomes) if isinstance(outcome, Internal)]
    assert failed == [bad]
    assert all(outcomes[tag].tolist() == row_of(tag).tolist() for tag in range(16) if tag != bad)
    assert len(engine.asked) <= 1 + 2 * 4


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
async def test_dispatcher_fails_only_the_row_that_is_not_finite(bad):
    scheduler = one_core(Engine(lambda asked: [np.array([[tag, bad if tag == 2 else 0.0]]) for tag in asked]))
    outcomes = await asyncio.gather(
        *(submit(scheduler, encoding(tag), soon()) for tag in range(4)), return_exceptions=True
    )

    assert [getattr(outcome, "code", None) for outcome in outcomes] == [None, None, "invalid_engine_output", None]


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked: [row_of(tag) for tag in asked[1:]],
        lambda asked: [row_of(tag) for tag in [*asked, 9]],
        lambda asked: [row_of(tag)[0] for tag in asked],
        lambda asked: [np.zeros((2, WIDTH), np.float32), *(row_of(tag) for tag in asked[1:])],
        lambda asked: [np.zeros((1, WIDTH + 1), np.float32) for _ in asked],
        lambda asked: [None for _ in asked],
        lambda _: [],
    ],
    ids=["too few", "too many", "flat", "one too long", "too wide", "none", "empty"],
)
async def test_dispatcher_rejects_rows_of_wrong_shapes(answer):
    engine = Engine(answer)
    scheduler = one_core(engine)
    outcomes = await asyncio.gather(
        *(submit(scheduler, encoding(tag), soon()) for tag in range(3)), return_exceptions=True
    )

    assert [outcome.code for outcome in outcomes] == ["invalid_engine_output"] * 3
    assert len(engine.asked) == 1


@pytest.mark.parametrize("answer", [lambda _: None, lambda asked: [np.full((1, WIDTH), "x", object) for _ in asked]])
async def test_dispatcher_survives_an_unexpected_result(answer):
    engine = Engine(answer)
    scheduler = one_core(engine)
    with pytest.raises(Internal):
        await submit(scheduler, encoding(1), soon())
    engine.answer = lambda asked: [row_of(tag) for tag in asked]

    assert (await submit(scheduler, encoding(2), soon())).tolist() == row_of(2).tolist()


def poisoned(executor: ManualExecutor, poison: set[int]) -> asyncio.Task:
    """Answers every call of the executor, except those with a poisoned sequence, which lose the worker."""

    async def answer():
        while True:
            call = await executor.calls.get()
            asked = executor.asked[-1]
            if poison & set(asked):
                call.set_exception(WorkerLost(suspect=True))
            else:
                call.set_result([row_of(tag) for tag in asked])

    return asyncio.ensure_future(answer())


async def test_worker_loss_fails_only_the_sequence_that_causes_it():
    executor = ManualExecutor(1)
    scheduler = Scheduler(Dispatcher(executor))
    answering = poisoned(executor, {5})
    outcomes = await asyncio.gather(
        *(submit(scheduler, encoding(tag), soon()) for tag in range(16)), return_exceptions=True
    )
    answering.cancel()

    assert [tag for tag, outcome in enumerate(outcomes) if isinstance(outcome, Internal)] == [5]
    assert all(outcomes[tag].tolist() == row_of(tag).tolist() for tag in range(16) if tag != 5)
    assert executor.asked == [list(range(16)), *([tag] for tag in range(16))]


async def test_suspects_run_one_at_a_time_beside_other_work():
    executor = ManualExecutor(2)
    scheduler = Scheduler(Dispatcher(executor))
    work = [asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in (0, 1)]
    await settle()
    for _ in range(2):
        (await executor.calls.get()).set_exception(WorkerLost(suspect=True))
    await settle()
    work.append(asyncio.ensure_future(submit(scheduler, encoding(2), soon())))
    await settle()

    assert executor.asked == [[0], [1], [0], [2]]
    for _ in range(2):
        (await executor.calls.get()).set_result([row_of(9)])
    await settle()
    (await executor.calls.get()).set_result([row_of(9)])
    await asyncio.gather(*work)
    assert executor.asked[4:] == [[1]]


async def test_innocent_batch_of_a_lost_worker_runs_again_first():
    executor = ManualExecutor(1)
    scheduler = Scheduler(Dispatcher(executor))
    work = [asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in range(3)]
    await settle()
    work += [asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in (3, 4)]
    work[1].cancel()
    await settle()
    (await executor.calls.get()).set_exception(WorkerLost(suspect=False))
    (await executor.calls.get()).set_result([row_of(9)] * 4)
    await asyncio.wait(work)

    assert executor.asked == [[0, 1, 2], [0, 2, 3, 4]]
    assert scheduler.dispatcher.queued_tokens == 0


async def test_lost_sequence_past_its_deadline_is_not_retried():
    executor = ManualExecutor(1)
    scheduler = Scheduler(Dispatcher(executor))
    work = asyncio.ensure_future(submit(scheduler, encoding(0), time.monotonic() + 0.2))
    call = await executor.calls.get()
    with pytest.raises(DeadlineExceeded):
        await work
    call.set_exception(WorkerLost(suspect=True))
    await settle()

    assert executor.asked == [[0]]


async def test_missing_engine_fails_every_sequence_of_the_batch():
    executor = ManualExecutor(1)
    scheduler = Scheduler(Dispatcher(executor))
    work = [asyncio.ensure_future(submit(scheduler, encoding(tag), soon())) for tag in range(3)]
    (await executor.calls.get()).set_exception(Unavailable("engine_unavailable", "There is no engine."))
    outcomes = await asyncio.gather(*work, return_exceptions=True)

    assert [outcome.code for outcome in outcomes] == ["engine_unavailable"] * 3
