"""Sequences of the same tokens for several heads of a trunk: they wait as one, and start together."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swiftlet_serve.errors import DeadlineExceeded
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.types import WorkerLost
from tests.support.fakes import RAGGED, ManualExecutor, encoding, row_of, rows_of, settle, soon

TRUNK = replace(RAGGED, shares_trunk=True)
NAMES = ["moods", "topics", "names"]


def dispatcher_of(size: int = 2, cost=TRUNK) -> tuple[Dispatcher, ManualExecutor, RequestStats]:
    executor, stats = ManualExecutor(size, cost), RequestStats()
    for name in NAMES:
        stats.add_model(name, "classify")
    dispatcher = Dispatcher(executor, stats=stats)
    dispatcher.add_model("moods", NAMES)
    return dispatcher, executor, stats


def read_by(*heads: int, tag: int = 7, length: int = 9):
    return [replace(encoding(tag, length), head=head) for head in heads]


async def test_heads_of_one_text_start_in_one_call_although_cores_are_idle():
    dispatcher, executor, stats = dispatcher_of()
    deadline = soon()
    rows = [*dispatcher.submit("moods", read_by(0), deadline), *dispatcher.submit("moods", read_by(1, 2), deadline)]
    assert dispatcher.queued_tokens == 9
    await settle()

    assert executor.asked == [[7, 7, 7]]
    executor.calls.get_nowait().set_result(rows_of([1, 2, 3]))
    assert [row.tolist() for row in await asyncio.gather(*rows)] == [row.tolist() for row in rows_of([1, 2, 3])]
    await settle()
    assert stats.models["moods"].batch_tokens.sum == 9
    assert [stats.models[name].batch_sizes.sum for name in NAMES] == [1, 0, 0]


@pytest.mark.parametrize("other", ["tokens", "deadline", "cost", "tick"])
async def test_other_sequences_wait_for_themselves(other):
    dispatcher, executor, _ = dispatcher_of(cost=RAGGED if other == "cost" else TRUNK)
    deadline = soon()
    dispatcher.submit("moods", read_by(0), deadline)
    if other == "tick":
        await settle()
    tag = 8 if other == "tokens" else 7
    dispatcher.submit("moods", read_by(1, tag=tag), deadline + 1 if other == "deadline" else deadline)
    await settle()
    assert executor.asked == [[7], [tag]]


async def test_a_sequence_that_joined_another_takes_its_place_when_its_caller_goes():
    dispatcher, executor, _ = dispatcher_of(size=1)
    busy = dispatcher.submit("moods", read_by(0, tag=1), soon())
    await settle()
    first, second, third = dispatcher.submit("moods", read_by(0, 1, 2), soon())
    second.cancel()
    first.cancel()
    await settle()
    assert dispatcher.queued_tokens == 9
    executor.calls.get_nowait().set_result(rows_of([1]))
    await busy[0]
    await settle()
    assert executor.asked == [[1], [7]]
    executor.calls.get_nowait().set_result(rows_of([3]))
    assert (await third).tolist() == row_of(3).tolist()


async def test_a_caller_that_goes_just_before_the_dispatch_takes_no_other_with_it():
    dispatcher, executor, _ = dispatcher_of()
    first, second = dispatcher.submit("moods", read_by(0, 1), soon())
    first.cancel()
    await settle()
    executor.calls.get_nowait().set_result(rows_of([2]))
    assert (await second).tolist() == row_of(2).tolist()
    assert executor.asked == [[7]]


async def test_sequences_that_joined_expire_together():
    dispatcher, executor, _ = dispatcher_of(size=1)
    busy = dispatcher.submit("moods", read_by(0, tag=1), soon())
    await settle()
    rows = dispatcher.submit("moods", read_by(0, 1), dispatcher.clock() - 1)
    executor.calls.get_nowait().set_result(rows_of([1]))
    await busy[0]
    await settle()
    for row in rows:
        assert isinstance(row.exception(), DeadlineExceeded)
    assert dispatcher.queued_tokens == 0


async def test_sequences_of_a_lost_call_run_again_each_as_a_suspect():
    dispatcher, executor, _ = dispatcher_of()
    rows = dispatcher.submit("moods", read_by(0, 1), soon())
    await settle()
    executor.calls.get_nowait().set_exception(WorkerLost(suspect=True))
    for tag in (4, 5):
        await settle()
        executor.calls.get_nowait().set_result(rows_of([tag]))
    assert [row.tolist() for row in await asyncio.gather(*rows)] == [row.tolist() for row in rows_of([4, 5])]
    assert executor.asked == [[7, 7], [7], [7]]
