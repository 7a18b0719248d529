"""`plan` decides well for every queue; `Batcher` and `Dispatcher` keep every promise, whatever callers."""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlet_serve.service.errors import DeadlineExceeded, Internal, SwiftletError, Unavailable
from swiftlet_serve.service.scheduling.admission import USABLE, Pace
from swiftlet_serve.service.scheduling.batcher import BULK_EVERY, Batcher, Dispatcher, plan
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.types import Batch, Cost, WorkerLost
from swiftlet_serve.service.workers.hosted_model import HostedModel
from swiftlet_serve.service.workers.thread_executor import ThreadExecutor
from tests.support.fakes import PATIENCE_S, WIDTH, Engine, GatedEngine, ScriptedCrew, encoding, row_of, submit, tags

COSTS = st.builds(
    Cost,
    padded=st.booleans(),
    call_tokens=st.integers(0, 64),
    max_tokens=st.integers(1, 1024),
    max_rows=st.integers(1, 64),
    padded_attention=st.booleans(),
)
SHARES = st.integers(1, 4096)


def charge(lengths: list[int], cost: Cost) -> int:
    return len(lengths) * max(lengths) if cost.padded else sum(lengths)


def soon() -> float:
    """A deadline no passing test reaches."""
    return time.monotonic() + PATIENCE_S


async def settle() -> None:
    """Lets the event loop turn until what was started has been dispatched."""
    for _ in range(5):
        await asyncio.sleep(0)


def one_core(engine, max_waiting_tokens: int = 1 << 16) -> tuple[Dispatcher, Batcher]:
    pool = pool_of(1, max_waiting_tokens, model=engine)
    return pool, Batcher("model", pool)


def pool_of(cores: int, max_waiting_tokens: int, **engines) -> Dispatcher:
    """A pool over engines of this process, each a model of rows WIDTH long."""
    executor = ThreadExecutor({name: HostedModel(engine, WIDTH) for name, engine in engines.items()}, cores)
    return Dispatcher(executor, max_waiting_tokens)


# plan


def total_s(pace: Pace, lengths: list[int]) -> float:
    return pace.call_s(len(lengths), sum(lengths), sum(n * n for n in lengths), max(lengths))


def plan_of(lengths: list[int], cost: Cost, share: int) -> list[int]:
    """Where nobody is in a hurry, and nothing has been learnt."""
    return plan(lengths, [math.inf] * len(lengths), Pace(cost), share)


@st.composite
def queues(draw) -> tuple[list[int], list[float]]:
    """Encodings that wait: their lengths, and for how long their answers are of use."""
    queue = draw(st.lists(st.tuples(st.integers(1, 512), st.floats(0, 1)), min_size=1, max_size=60))
    return [length for length, _ in queue], [left for _, left in queue]


@st.composite
def paces(draw) -> Pace:
    """What may have been learnt of an engine."""
    pace = Pace(draw(COSTS))
    for length, seconds in draw(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-6, 10)), max_size=20)):
        pace.learn([length], seconds)
    return pace


@given(queues(), paces(), SHARES)
def test_a_plan_is_the_oldest_and_some_others(queue, pace, share):
    batch = plan(*queue, pace, share)

    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    assert set(batch) <= set(range(len(queue[0])))


@given(queues(), paces(), SHARES)
def test_a_plan_of_several_stays_within_every_limit(queue, pace, share):
    batch = [queue[0][i] for i in plan(*queue, pace, share)]

    assert len(batch) <= pace.cost.max_rows
    if len(batch) > 1:
        assert charge(batch, pace.cost) <= pace.cost.max_tokens
        assert sum(batch) <= share


@given(queues(), paces(), SHARES)
def test_a_batch_takes_no_longer_than_its_rows_one_by_one(queue, pace, share):
    batch = [queue[0][i] for i in plan(*queue, pace, share)]

    assert total_s(pace, batch) <= sum(pace.alone_s(length) for length in batch) * (1 + 1e-9)


@given(queues(), paces(), SHARES)
def test_nobody_is_taken_into_a_batch_that_makes_anybody_late(queue, pace, share):
    batch = plan(*queue, pace, share)

    if len(batch) > 1:
        assert total_s(pace, [queue[0][i] for i in batch]) <= min(queue[1][i] for i in batch) * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(1, 200), COSTS, SHARES)
def test_equal_lengths_fill_the_batch_to_the_first_limit(length, n, cost, share):
    expected = min(n, cost.max_rows, cost.max_tokens // length, share // length)

    assert len(plan_of([length] * n, cost, share)) == max(1, expected)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8))
def test_idle_cores_share_what_waits_evenly(length, n, idle):
    unlimited = Cost(padded=True, call_tokens=0, max_tokens=1 << 30, max_rows=1 << 30)
    sizes = []
    for cores in range(min(idle, n), 0, -1):
        left = n - sum(sizes)
        sizes.append(len(plan_of([length] * left, unlimited, math.ceil(left * length / cores))))

    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1


def test_a_row_joins_where_padding_costs_less_than_a_call_as_learnt():
    cost = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    dear, cheap = Pace(cost), Pace(cost)
    for length in [10, 100, 200, 400] * 100:  # calls of 50 ms and of next to nothing, whatever was declared
        dear.learn([length], 50e-3 + 1e-5 * length)
        cheap.learn([length], 1e-5 + 1e-4 * length)

    assert plan([60, 20], [math.inf] * 2, dear, 1000) == [0, 1]
    assert plan([60, 20], [math.inf] * 2, cheap, 1000) == [0]


def test_neighbours_in_length_are_taken_before_older_ones():
    cost = Cost(padded=True, call_tokens=64, max_tokens=512, max_rows=64)

    assert plan_of([20, 300, 22, 40, 18], cost, 1000) == [0, 2, 4, 3]


def test_among_equals_the_older_goes_first():
    cost = Cost(padded=True, call_tokens=0, max_tokens=60, max_rows=64)

    assert plan_of([20, 20, 20, 20], cost, 1000) == [0, 1, 2]


# Batcher and Dispatcher


def test_every_caller_gets_their_own_row():
    async def scenario():
        _, batcher = one_core(Engine())
        rows = await asyncio.gather(*(submit(batcher, encoding(tag), soon()) for tag in range(50)))

        assert [row.tolist() for row in rows] == [row_of(tag).tolist() for tag in range(50)]

    asyncio.run(scenario())


def test_what_arrives_in_one_tick_is_one_batch():
    async def scenario():
        engine = Engine()
        _, batcher = one_core(engine)
        await asyncio.gather(*(submit(batcher, encoding(tag), soon()) for tag in range(4)))

        assert engine.asked == [[0, 1, 2, 3]]

    asyncio.run(scenario())


def test_two_idle_cores_share_what_arrives_in_one_tick():
    async def scenario():
        engine = GatedEngine()
        batcher = Batcher("model", pool_of(2, 1000, model=engine))
        work = asyncio.gather(*(submit(batcher, encoding(tag), soon()) for tag in range(4)))
        first, second = await engine.called(), await engine.called()

        assert sorted([first.tags, second.tags]) == [[0, 1], [2, 3]]
        first.finish()
        second.finish()
        await work

    asyncio.run(scenario())


def test_an_idle_core_starts_at_once_and_a_busy_one_gathers():
    async def scenario():
        engine = GatedEngine()
        _, batcher = one_core(engine)
        work = [asyncio.ensure_future(submit(batcher, encoding(0), soon()))]
        first = await engine.called()
        for tag in (1, 2, 3):
            work.append(asyncio.ensure_future(submit(batcher, encoding(tag), soon())))
            await settle()
        first.finish()
        second = await engine.called()
        second.finish()
        await asyncio.gather(*work)

        assert (first.tags, second.tags) == ([0], [1, 2, 3])

    asyncio.run(scenario())


def test_a_core_has_its_next_batch_before_anybody_has_an_answer_of_the_last():
    async def scenario():
        seen: list[str] = []

        class Executor(ScriptedCrew):
            def run(self, model, encodings, patience_s):
                seen.append(f"runs {tags(Batch.of(encodings))}")
                return asyncio.ensure_future(super().run(model, encodings, patience_s))

        executor = Executor(1)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        answers = [*batcher.submit([encoding(0)], soon())]
        call = await executor.calls.get()
        answers += batcher.submit([encoding(1)], soon())
        answers[0].add_done_callback(lambda _: seen.append("answers [0]"))
        call.set_result([row_of(0)])
        await answers[0]
        await settle()
        (await executor.calls.get()).set_result([row_of(1)])
        await answers[1]

        assert seen == ["runs [0]", "runs [1]", "answers [0]"]

    asyncio.run(scenario())


def test_models_share_the_cores_and_the_longest_waiting_goes_first():
    async def scenario():
        one, other = GatedEngine(), GatedEngine()
        pool = pool_of(1, 1000, one=one, other=other)
        ones, others = Batcher("one", pool), Batcher("other", pool)
        work = [asyncio.ensure_future(submit(ones, encoding(0), soon()))]
        running = await one.called()
        for batcher, tag in ((others, 1), (ones, 2), (others, 3)):
            work.append(asyncio.ensure_future(submit(batcher, encoding(tag), soon())))
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

    asyncio.run(scenario())


def test_a_device_that_takes_one_call_at_a_time_gathers_meanwhile_and_another_model_runs_beside():
    async def scenario():
        device = GatedEngine(Cost(padded=True, call_tokens=8, max_tokens=512, max_rows=64, calls=1))
        other = GatedEngine()
        pool = pool_of(2, 1000, device=device, other=other)
        on_device, beside = Batcher("device", pool), Batcher("other", pool)
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

    asyncio.run(scenario())


def test_interactive_work_goes_first_and_one_batch_in_so_many_is_bulk():
    async def scenario():
        executor = ScriptedCrew(1, Cost(padded=False, call_tokens=0, max_tokens=4, max_rows=1))
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        bulk = batcher.submit([encoding(100), encoding(101)], soon(), "bulk")
        await settle()
        rest = batcher.submit([encoding(tag) for tag in range(30)], soon())
        while not all(answer.done() for answer in [*bulk, *rest]):
            (await executor.calls.get()).set_result([row_of(0)])
            await settle()

        asked = [tag for (tag,) in executor.asked]
        assert asked == [100, *range(BULK_EVERY - 1), 101, *range(BULK_EVERY - 1, 30)]

    asyncio.run(scenario())


def test_what_cannot_be_done_in_time_is_told_so_and_not_begun_unless_all_is_idle():
    async def scenario():
        executor = ScriptedCrew(2)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        for _ in range(8):
            batcher.pace.learn([4], 100.0)
        (tried,) = batcher.submit([encoding(0)], soon())  # for 30 seconds, and who knows
        await settle()
        (hopeless,) = batcher.submit([encoding(1)], soon())
        with pytest.raises(DeadlineExceeded):
            await hopeless

        (await executor.calls.get()).set_result([row_of(0)])
        assert (await tried).tolist() == row_of(0).tolist()
        assert executor.asked == [[0]]

    asyncio.run(scenario())


def test_work_whose_caller_has_gone_is_never_started():
    async def scenario():
        engine = GatedEngine()
        pool, batcher = one_core(engine)
        running = asyncio.ensure_future(submit(batcher, encoding(0), soon()))
        first = await engine.called()
        gone, stays = (asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in (1, 2))
        await settle()
        gone.cancel()
        await settle()

        assert pool.waiting_tokens == 4
        first.finish()
        second = await engine.called()
        second.finish()
        await asyncio.gather(running, stays)
        assert second.tags == [2]
        assert gone.cancelled()

    asyncio.run(scenario())


def test_a_caller_who_goes_in_the_tick_of_the_dispatch_is_dropped():
    async def scenario():
        engine = Engine()
        pool, batcher = one_core(engine)
        gone = asyncio.ensure_future(submit(batcher, encoding(1), soon()))
        await asyncio.sleep(0)
        gone.cancel()
        await settle()

        assert engine.asked == []
        assert pool.waiting_tokens == 0

    asyncio.run(scenario())


def test_a_caller_who_goes_while_the_batch_runs_costs_the_others_nothing():
    async def scenario():
        engine = GatedEngine()
        _, batcher = one_core(engine)
        gone, *stay = (asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in range(3))
        call = await engine.called()
        gone.cancel()
        await settle()
        call.finish()

        assert [row.tolist() for row in await asyncio.gather(*stay)] == [row_of(1).tolist(), row_of(2).tolist()]
        assert call.tags == [0, 1, 2]

    asyncio.run(scenario())


def test_an_encoding_that_comes_too_late_is_refused_and_never_started():
    async def scenario():
        engine = Engine()
        _, batcher = one_core(engine)
        with pytest.raises(Unavailable):
            batcher.submit([encoding(1)], time.monotonic() - 1)

        assert engine.asked == []

    asyncio.run(scenario())


def test_callers_are_answered_at_their_deadline_however_slow_the_engine():
    async def scenario():
        engine = GatedEngine()
        pool, batcher = one_core(engine)
        runs = asyncio.ensure_future(submit(batcher, encoding(0), time.monotonic() + 0.5))
        call = await engine.called()
        waits = asyncio.ensure_future(submit(batcher, encoding(1), time.monotonic() + 0.5))
        outcomes = await asyncio.gather(runs, waits, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [DeadlineExceeded] * 2
        assert pool.waiting_tokens == 0
        call.finish()
        later = asyncio.ensure_future(submit(batcher, encoding(2), soon()))
        call = await engine.called()
        call.finish()
        assert (await later).tolist() == row_of(2).tolist()
        assert call.tags == [2]

    asyncio.run(scenario())


@pytest.mark.parametrize("suspects", range(16))
def test_one_guilty_encoding_fails_alone(suspects):
    def answer(asked):
        if suspects in asked:
            raise RuntimeError("cannot")
        return [row_of(tag) for tag in asked]

    async def scenario():
        engine = Engine(answer)
        _, batcher = one_core(engine)
        outcomes = await asyncio.gather(
            *(submit(batcher, encoding(tag), soon()) for tag in range(16)), return_exceptions=True
        )

        failed = [tag for tag, outcome in enumerate(outcomes) if isinstance(outcome, Internal)]
        assert failed == [suspects]
        assert all(outcomes[tag].tolist() == row_of(tag).tolist() for tag in range(16) if tag != suspects)
        assert len(engine.asked) <= 1 + 2 * 4

    asyncio.run(scenario())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_fails_alone(bad):
    async def scenario():
        _, batcher = one_core(Engine(lambda asked: [np.array([[tag, bad if tag == 2 else 0.0]]) for tag in asked]))
        outcomes = await asyncio.gather(
            *(submit(batcher, encoding(tag), soon()) for tag in range(4)), return_exceptions=True
        )

        assert [getattr(outcome, "code", None) for outcome in outcomes] == [None, None, "invalid_engine_output", None]

    asyncio.run(scenario())


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
def test_rows_that_do_not_fit_their_encodings_are_all_refused(answer):
    async def scenario():
        engine = Engine(answer)
        _, batcher = one_core(engine)
        outcomes = await asyncio.gather(
            *(submit(batcher, encoding(tag), soon()) for tag in range(3)), return_exceptions=True
        )

        assert [outcome.code for outcome in outcomes] == ["invalid_engine_output"] * 3
        assert len(engine.asked) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [lambda _: None, lambda asked: [np.full((1, WIDTH), "x", object) for _ in asked]])
def test_a_fault_that_nobody_foresaw_is_an_error_and_the_core_works_on(answer):
    async def scenario():
        engine = Engine(answer)
        _, batcher = one_core(engine)
        with pytest.raises(Internal):
            await submit(batcher, encoding(1), soon())
        engine.answer = lambda asked: [row_of(tag) for tag in asked]

        assert (await submit(batcher, encoding(2), soon())).tolist() == row_of(2).tolist()

    asyncio.run(scenario())


def poisoned(executor: ScriptedCrew, poison: set[int]) -> asyncio.Task:
    """Answers every call of the executor; the engine dies of those that hold poison, and nobody knows why."""

    async def answer():
        while True:
            call = await executor.calls.get()
            asked = executor.asked[-1]
            if poison & set(asked):
                call.set_exception(WorkerLost(suspect=True))
            else:
                call.set_result([row_of(tag) for tag in asked])

    return asyncio.ensure_future(answer())


def test_of_a_batch_that_kills_the_engine_only_the_guilty_fails():
    async def scenario():
        executor = ScriptedCrew(1)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        answering = poisoned(executor, {5})
        outcomes = await asyncio.gather(
            *(submit(batcher, encoding(tag), soon()) for tag in range(16)), return_exceptions=True
        )
        answering.cancel()

        assert [tag for tag, outcome in enumerate(outcomes) if isinstance(outcome, Internal)] == [5]
        assert all(outcomes[tag].tolist() == row_of(tag).tolist() for tag in range(16) if tag != 5)
        assert executor.asked == [list(range(16)), *([tag] for tag in range(16))]

    asyncio.run(scenario())


def test_suspects_run_one_at_a_time_and_others_beside_them():
    async def scenario():
        executor = ScriptedCrew(2)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        work = [asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in (0, 1)]
        await settle()
        for _ in range(2):
            (await executor.calls.get()).set_exception(WorkerLost(suspect=True))
        await settle()
        work.append(asyncio.ensure_future(submit(batcher, encoding(2), soon())))
        await settle()

        assert executor.asked == [[0], [1], [0], [2]]
        for _ in range(2):
            (await executor.calls.get()).set_result([row_of(9)])
        await settle()
        (await executor.calls.get()).set_result([row_of(9)])
        await asyncio.gather(*work)
        assert executor.asked[4:] == [[1]]

    asyncio.run(scenario())


def test_what_was_lost_by_the_fault_of_another_call_runs_again_first_and_as_a_batch():
    async def scenario():
        executor = ScriptedCrew(1)
        pool = Dispatcher(executor, 1 << 16)
        batcher = Batcher("model", pool)
        work = [asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in range(3)]
        await settle()
        work += [asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in (3, 4)]
        work[1].cancel()
        await settle()
        (await executor.calls.get()).set_exception(WorkerLost(suspect=False))
        (await executor.calls.get()).set_result([row_of(9)] * 4)
        await asyncio.wait(work)

        assert executor.asked == [[0, 1, 2], [0, 2, 3, 4]]
        assert pool.waiting_tokens == 0

    asyncio.run(scenario())


def test_what_was_lost_and_is_late_is_not_tried_again():
    async def scenario():
        executor = ScriptedCrew(1)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        work = asyncio.ensure_future(submit(batcher, encoding(0), time.monotonic() + 0.2))
        call = await executor.calls.get()
        with pytest.raises(DeadlineExceeded):
            await work
        call.set_exception(WorkerLost(suspect=True))
        await settle()

        assert executor.asked == [[0]]

    asyncio.run(scenario())


def test_where_there_is_no_engine_every_caller_of_the_call_is_told_so():
    async def scenario():
        executor = ScriptedCrew(1)
        batcher = Batcher("model", Dispatcher(executor, 1 << 16))
        work = [asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in range(3)]
        (await executor.calls.get()).set_exception(Unavailable("engine_unavailable", "There is no engine."))
        outcomes = await asyncio.gather(*work, return_exceptions=True)

        assert [outcome.code for outcome in outcomes] == ["engine_unavailable"] * 3

    asyncio.run(scenario())


def test_a_full_queue_refuses_says_when_to_come_back_and_has_room_again():
    async def scenario():
        engine = GatedEngine()
        _, batcher = one_core(engine, max_waiting_tokens=8)
        running = asyncio.ensure_future(submit(batcher, encoding(0), soon()))
        call = await engine.called()
        first, second = (asyncio.ensure_future(submit(batcher, encoding(tag), soon())) for tag in (1, 2))
        await settle()
        with pytest.raises(Unavailable) as refusal:
            await submit(batcher, encoding(3), soon())

        assert refusal.value.code == "overloaded"
        assert refusal.value.retry_after >= 1
        first.cancel()
        await settle()
        fourth = asyncio.ensure_future(submit(batcher, encoding(4), soon()))
        await settle()
        call.finish()
        call = await engine.called()
        call.finish()
        await asyncio.gather(running, second, fourth)
        assert call.tags == [2, 4]

    asyncio.run(scenario())


def test_requests_that_are_still_read_count_as_if_they_waited():
    async def scenario():
        engine = GatedEngine()
        pool, batcher = one_core(engine)
        stands = time.monotonic()
        pool.clock = lambda: stands
        running = asyncio.ensure_future(submit(batcher, encoding(0), soon()))
        call = await engine.called()
        one_s = pool._usual_s
        for request in range(10):
            for _ in range(2):  # it is the same one
                pool.expect(request, 100.0, "interactive", whole=True)
            pool.expect(f"the head of {request}", 100.0, "interactive", whole=False)
        left_s = (pool.wait_s("interactive") + 9.5 * one_s) / USABLE["interactive"]
        with pytest.raises(Unavailable) as refusal:
            pool.expect("another", left_s, "interactive", whole=False)
        assert refusal.value.code == "overloaded"
        pool.meet(0)
        pool.meet("nobody knows")
        pool.expect("another", left_s, "interactive", whole=True)
        call.finish()
        await running

    asyncio.run(scenario())


def test_closing_finishes_what_was_admitted_and_admits_nothing_more():
    async def scenario():
        engine = GatedEngine()
        pool, batcher = one_core(engine)
        work = [asyncio.ensure_future(submit(batcher, encoding(0), soon()))]
        first = await engine.called()
        work.append(asyncio.ensure_future(submit(batcher, encoding(1), soon())))
        await settle()
        closing = asyncio.ensure_future(pool.close(PATIENCE_S))
        await settle()
        with pytest.raises(Unavailable) as refusal:
            await submit(batcher, encoding(2), soon())

        assert refusal.value.code == "draining"
        first.finish()
        second = await engine.called()
        second.finish()
        assert await closing
        assert [row.tolist() for row in await asyncio.gather(*work)] == [row_of(0).tolist(), row_of(1).tolist()]

    asyncio.run(scenario())


def test_closing_does_not_wait_for_an_engine_that_hangs():
    async def scenario():
        engine = GatedEngine()
        pool, batcher = one_core(engine)
        work = asyncio.ensure_future(submit(batcher, encoding(0), time.monotonic() + 0.2))
        call = await engine.called()

        assert not await pool.close(0.01)
        with pytest.raises(DeadlineExceeded):
            await work
        call.finish()

    asyncio.run(scenario())


def test_the_time_in_the_queue_and_in_the_engine_is_recorded():
    async def scenario():
        _, batcher = one_core(Engine())
        with request_record.recording(RequestRecord()) as record:
            await asyncio.gather(*(submit(batcher, encoding(tag), soon()) for tag in range(3)))

        assert record.stages.keys() == {"queue", "batch", "infer"}
        assert all(span.duration_s >= 0 for span in record.stages.values())

    asyncio.run(scenario())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 40)),
        st.tuples(st.just("late"), st.integers(1, 40)),
        st.tuples(st.just("cancel"), st.integers(0, 30)),
        st.tuples(st.sampled_from(["answer", "fail", "spoil", "drop", "turn"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(STEPS, st.integers(1, 3))
def test_every_submit_has_exactly_one_outcome_and_it_is_its_own(steps, cores):
    """Whatever the order of arrivals, cancellations, late comers, failures and answers."""

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
        engine = GatedEngine(Cost(padded=True, call_tokens=8, max_tokens=64, max_rows=4))
        pool = pool_of(cores, max_waiting_tokens=200, model=engine)
        batcher = Batcher("model", pool)
        tasks: list[asyncio.Task] = []
        late, cancelled = set(), set()
        for step, number in steps:
            if step in ("submit", "late"):
                tag = len(tasks)
                if step == "late":
                    late.add(tag)
                deadline = soon() if step == "submit" else time.monotonic()
                tasks.append(asyncio.ensure_future(submit(batcher, encoding(tag, number), deadline)))
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
        closing = asyncio.ensure_future(pool.close(PATIENCE_S))
        while not closing.done():
            await asyncio.sleep(0)
            if not engine.calls.empty():
                finish(engine.calls.get(), "answer")
        assert await closing
        assert pool.waiting_tokens == 0

    asyncio.run(scenario())
