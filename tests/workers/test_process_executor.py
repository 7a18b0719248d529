"""Batches in worker processes that hang, crash or are killed: only the sequences that cause it fail."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time

import numpy as np
import pytest

from swiftlet_models.artifact import GOLDEN, open_artifact
from swiftlet_serve.errors import DeadlineExceeded, Unavailable
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.types import Batch, BatchResult, WorkerLost
from swiftlet_serve.workers import messages, process_executor
from swiftlet_serve.workers.circuit_breaker import FAILURE_THRESHOLD
from swiftlet_serve.workers.hosted_model import EngineModel, host_model
from swiftlet_serve.workers.process_executor import ProcessExecutor
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support.engines.faulty import CRASH, EXIT, FEW, HANG, NAN, ONCE, RAISE, SEIZE
from tests.support.fakes import PATIENCE_S, Scheduler, encoding, row_of, submit
from tests.support.tiers import first
from tests.support.workers import MODEL, alive, ask, far_deadline, opened, outcomes_of, pid, rows, start, until


async def test_worker_returns_rows_and_errors_like_a_thread(directory):
    async with opened(start(directory)) as executor:
        assert await ask(executor, 1, 2, 3) == rows(1, 2, 3)
        assert await ask(executor, 1, RAISE, 3) == [*rows(1), "internal", *rows(3)]
        assert await ask(executor, NAN, 2) == ["invalid_engine_output", *rows(2)]
        assert await ask(executor, 1, FEW) == ["invalid_engine_output"] * 2
        assert executor.cost(MODEL).max_tokens == 512


async def test_call_is_sent_before_the_event_loop_runs_again(directory):
    async with opened(start(directory)) as executor:
        sockets = [one._transport.get_extra_info("socket") for one in executor.supervisor.serving.calls._connections]
        call = executor.run(MODEL, [encoding(1)], PATIENCE_S)
        answered, _, _ = select.select(sockets, [], [], PATIENCE_S)  # blocks the event loop

        assert len(answered) == 1
        assert (await call).outcomes[0].tolist() == row_of(1).tolist()


@pytest.mark.parametrize("how", first([CRASH, EXIT], CRASH))
async def test_every_running_call_is_suspect_if_the_worker_dies(how, directory):
    async with opened(start(directory)) as executor:
        lost = pid(executor)
        other = asyncio.ensure_future(ask(executor, ONCE))
        await until((directory / "once").exists)
        outcomes = await asyncio.gather(ask(executor, how), other, return_exceptions=True)

        assert [(type(one), one.suspect) for one in outcomes] == [(WorkerLost, True)] * 2
        assert not executor.ready
        assert await ask(executor, 1) == rows(1)
        assert executor.ready
        assert pid(executor) != lost


@pytest.mark.parametrize("how", first([HANG, SEIZE], SEIZE))
async def test_only_the_overdue_call_is_suspect_if_the_worker_is_killed(how, directory):
    async with opened(start(directory)) as executor:
        lost = pid(executor)
        other = asyncio.ensure_future(ask(executor, ONCE))
        await until((directory / "once").exists)
        with pytest.raises(WorkerLost) as suspect:
            await ask(executor, how, timeout_s=0.1)
        with pytest.raises(WorkerLost) as bystander:
            await other

        assert (suspect.value.suspect, bystander.value.suspect) == (True, False)
        await until(lambda: not alive(lost))
        assert await ask(executor, 1) == rows(1)


async def test_suspended_machine_does_not_count_as_a_hang(directory):
    async with opened(start(directory)) as executor:
        paused = pid(executor)
        os.kill(paused, signal.SIGSTOP)
        call = asyncio.ensure_future(ask(executor, 1, timeout_s=0.5))
        await asyncio.sleep(0)
        time.sleep(1)  # suspends this process as well
        os.kill(paused, signal.SIGCONT)

        assert await call == rows(1)
        assert pid(executor) == paused


WRONG_RESULTS = [b"", b"no", messages.pack_result(9, BatchResult([row_of(1)], 0.0))[messages.HEADER_BYTES :]]


@pytest.mark.parametrize("result", first(WRONG_RESULTS, b"no"))
async def test_invalid_result_or_result_of_another_call_ends_the_worker(result, directory, monkeypatch):
    unpack = messages.unpack_result

    async with opened(start(directory)) as executor:
        lost = pid(executor)
        monkeypatch.setattr(messages, "unpack_result", lambda _: unpack(memoryview(result)))
        with pytest.raises(WorkerLost):
            await ask(executor, 1)
        monkeypatch.undo()

        assert await ask(executor, 1) == rows(1)
        assert pid(executor) != lost


@pytest.mark.parametrize("name", first(["albert-sst2", "mobilebert-qa", "albert-fill-mask"], "mobilebert-qa"))
async def test_worker_and_thread_return_bit_equal_rows(name):
    artifact = open_artifact(BUNDLED / name)
    with np.load(artifact.file(GOLDEN)) as file:
        arrays = {key: file[key] for key in file if key not in ("rows", "columns")}
    encodings = Batch.without_top_k(**arrays).encodings()

    threads = ThreadExecutor({name: EngineModel(*host_model([artifact], "onnx_cpu")[0])}, 1)
    executor = ProcessExecutor("onnx_cpu", [[artifact.path]], 1, spare=False)
    executor.load()
    for timed in (threads.timed_calls(name), executor.timed_calls(name)):
        assert [call.tokens for call in timed] == [len(one.input_ids) for one in encodings]
        assert all(call.seconds > 0 for call in timed)
    async with opened(executor):
        from_thread, from_worker = [
            (await one.run(name, encodings, PATIENCE_S)).outcomes for one in (threads, executor)
        ]
    assert [(row.shape, row.dtype, row.tobytes()) for row in from_thread] == [
        (row.shape, row.dtype, row.tobytes()) for row in from_worker
    ]


# With the scheduler


@pytest.mark.parametrize("size", first([1, 2], 2))
async def test_only_the_sequence_that_crashes_the_worker_fails(size, directory):
    async with opened(start(directory, size)) as executor:
        tags = [*range(10), CRASH, *range(10, 15)]

        assert await outcomes_of(executor, tags) == [*rows(*range(10)), "internal", *rows(*range(10, 15))]


async def test_only_the_sequence_that_hangs_fails(directory):
    async with opened(start(directory)) as executor:
        assert await outcomes_of(executor, [1, 2, HANG, 3], timeout_s=0.1) == [*rows(1, 2), "internal", *rows(3)]


async def test_spare_answers_calls_that_were_running_when_the_worker_was_killed(directory):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: executor.supervisor.spare)
        work = asyncio.ensure_future(outcomes_of(executor, [1, 2, ONCE, 4, 5]))
        await until((directory / "once").exists)
        lost, spare = pid(executor), executor.supervisor.spare
        os.kill(lost, signal.SIGKILL)
        await until(lambda: executor.supervisor.serving is spare)

        assert executor.ready
        assert await work == rows(1, 2, ONCE, 4, 5)
        await until(lambda: executor.supervisor.spare)
        assert not alive(lost)


async def test_caller_of_an_engine_that_hangs_gets_an_error_at_the_deadline(directory):
    async with opened(start(directory, 1)) as executor:
        scheduler = Scheduler(Dispatcher(executor, call_timeout_s=0.6), MODEL)
        hangs = asyncio.ensure_future(submit(scheduler, encoding(HANG), time.monotonic() + 0.2))
        await until(lambda: executor.supervisor.serving.calls.running)
        other = asyncio.ensure_future(submit(scheduler, encoding(1), far_deadline()))
        with pytest.raises(DeadlineExceeded):
            await hangs

        assert (await other).tolist() == row_of(1).tolist()


# The circuit breaker


async def test_broken_engine_is_replaced_then_rejected_until_a_probe_succeeds(directory, monkeypatch):
    monkeypatch.setattr(process_executor, "PROBE_INTERVAL_S", 0.01)

    async with opened(start(directory, 1)) as executor:
        first = pid(executor)
        (directory / "broken").touch()
        for _ in range(FAILURE_THRESHOLD):
            assert await ask(executor, 1, 2) == ["internal"] * 2
        await until(lambda: executor._breaker.open)
        assert not executor.ready
        with pytest.raises(Unavailable) as refusal:
            await ask(executor, 1)

        assert refusal.value.code == "engine_unavailable"
        (directory / "broken").unlink()
        await until(lambda: executor.ready)
        assert await ask(executor, 1) == rows(1)
        assert pid(executor) != first


async def test_breaker_closes_for_a_good_model_after_the_broken_one_was_removed(directory, monkeypatch):
    monkeypatch.setattr(process_executor, "PROBE_INTERVAL_S", 0.01)

    async with opened(start(directory, 1)) as executor:
        (directory / "broken").touch()
        for _ in range(FAILURE_THRESHOLD):
            await ask(executor, 1)
        await until(lambda: executor._breaker.open)
        await executor.remove_model(MODEL)
        await executor.supervisor.wait_until_serving()
        (directory / "broken").unlink()
        await executor.add_model(MODEL, directory / MODEL)
        await until(lambda: executor.ready)
        assert await ask(executor, 1) == rows(1)


async def test_native_engine_uses_the_cores_of_the_service_and_no_more():
    executor = ProcessExecutor("native", [[BUNDLED / "albert-qa"]], 1, spare=False)
    await asyncio.to_thread(executor.load)
    async with opened(executor):
        (name,) = executor._models
        result = await executor.run(name, [encoding(300)], PATIENCE_S)

    assert result.helped_s == 0.0


async def test_engine_is_not_replaced_if_only_one_clients_inputs_fail(directory):
    async with opened(start(directory, 1)) as executor:
        first = pid(executor)
        for _ in range(4 * FAILURE_THRESHOLD):
            assert await ask(executor, RAISE) == ["internal"]
            assert executor.ready
        await until(lambda: executor._probing.done())

        assert await ask(executor, 1) == rows(1)
        assert pid(executor) == first
