"""An engine process may hang, crash or be killed: the suspects fail, all others are served."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftlet_serve.models.artifact import GOLDEN, ArtifactError, open_artifact, seal
from swiftlet_serve.service.errors import DeadlineExceeded, Internal, SetupError, Unavailable
from swiftlet_serve.service.loading import BUNDLED
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.scheduling.batcher import Batcher, Dispatcher
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.types import Batch, BatchResult, WorkerLost
from swiftlet_serve.service.workers import codec, process_executor, supervisor
from swiftlet_serve.service.workers.circuit_breaker import FAILURE_THRESHOLD
from swiftlet_serve.service.workers.hosted_model import HostedModel, host_model
from swiftlet_serve.service.workers.process_executor import ProcessExecutor
from swiftlet_serve.service.workers.thread_executor import ThreadExecutor
from tests.support.artifacts import make_artifact
from tests.support.engines.faulty import CRASH, EXIT, FEW, HANG, NAN, ONCE, RAISE, SEIZE
from tests.support.fakes import PATIENCE_S, encoding, row_of, submit

MODEL = "tiny-qa"  # its rows are two numbers wide, as those of the faulty engine


@pytest.fixture
def place(tmp_path) -> Path:
    """A directory with one artifact, and room for the files that tell the faulty engine what to do."""
    make_artifact(tmp_path, "qa")
    return tmp_path


def start(place: Path, size: int = 2, spare: bool = False) -> ProcessExecutor:
    executor = ProcessExecutor("faulty", [place / MODEL], size, spare=spare, worker_module="tests.support.worker_main")
    executor.load()
    return executor


@asynccontextmanager
async def opened(executor: ProcessExecutor):
    await executor.open()
    try:
        yield executor
    finally:
        assert await executor.close(PATIENCE_S)


async def until(holds: Callable[[], object]) -> None:
    """Waits for what must happen outside of this process."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


def soon() -> float:
    return time.monotonic() + PATIENCE_S


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or while it was read
        return False


def pid(executor: ProcessExecutor) -> int:
    return executor.supervisor.serving.pid


async def ask(executor: ProcessExecutor, *tags: int, patience_s: float = PATIENCE_S) -> list:
    outcomes, _ = await executor.run(MODEL, [encoding(tag) for tag in tags], patience_s)
    return [one.code if isinstance(one, Internal) else one.tolist() for one in outcomes]


def rows(*tags: int) -> list:
    return [row_of(tag).tolist() for tag in tags]


# What an engine may do to a call


def test_rows_and_errors_come_from_the_process_as_from_a_thread(place):
    async def scenario():
        async with opened(start(place)) as executor:
            assert await ask(executor, 1, 2, 3) == rows(1, 2, 3)
            assert await ask(executor, 1, RAISE, 3) == [*rows(1), "internal", *rows(3)]
            assert await ask(executor, NAN, 2) == ["invalid_engine_output", *rows(2)]
            assert await ask(executor, 1, FEW) == ["invalid_engine_output"] * 2
            assert executor.cost(MODEL).max_tokens == 512

    asyncio.run(scenario())


def test_a_call_is_on_its_way_before_the_turn_of_the_event_loop_ends(place):
    async def scenario():
        async with opened(start(place)) as executor:
            lines = [line._transport.get_extra_info("socket") for line in executor.supervisor.serving._connections]
            call = executor.run(MODEL, [encoding(1)], PATIENCE_S)
            answered, _, _ = select.select(lines, [], [], PATIENCE_S)  # the loop stands still meanwhile

            assert len(answered) == 1
            assert (await call).outcomes[0].tolist() == row_of(1).tolist()

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [CRASH, EXIT])
def test_where_the_process_dies_every_call_may_have_been_the_cause(how, place):
    async def scenario():
        async with opened(start(place)) as executor:
            died = pid(executor)
            beside = asyncio.ensure_future(ask(executor, ONCE))
            await until((place / "once").exists)
            outcomes = await asyncio.gather(ask(executor, how), beside, return_exceptions=True)

            assert [(type(one), one.suspect) for one in outcomes] == [(WorkerLost, True)] * 2
            assert not executor.ready
            assert await ask(executor, 1) == rows(1)
            assert executor.ready
            assert pid(executor) != died

    asyncio.run(scenario())


@pytest.mark.parametrize("how", [HANG, SEIZE])
def test_a_call_that_hangs_is_ended_with_its_process_and_the_others_are_not_to_blame(how, place):
    async def scenario():
        async with opened(start(place)) as executor:
            died = pid(executor)
            beside = asyncio.ensure_future(ask(executor, ONCE))
            await until((place / "once").exists)
            with pytest.raises(WorkerLost) as lost:
                await ask(executor, how, patience_s=0.1)
            with pytest.raises(WorkerLost) as other:
                await beside

            assert (lost.value.suspect, other.value.suspect) == (True, False)
            await until(lambda: not alive(died))
            assert await ask(executor, 1) == rows(1)

    asyncio.run(scenario())


def test_a_pause_of_the_machine_is_no_hang(place):
    async def scenario():
        async with opened(start(place)) as executor:
            paused = pid(executor)
            os.kill(paused, signal.SIGSTOP)
            call = asyncio.ensure_future(ask(executor, 1, patience_s=0.5))
            await asyncio.sleep(0)
            time.sleep(1)  # this process stands still as well
            os.kill(paused, signal.SIGCONT)

            assert await call == rows(1)
            assert pid(executor) == paused

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "answer", [b"", b"no", codec.pack_result(9, BatchResult([row_of(1)], 0.0))[codec.HEADER_BYTES :]]
)
def test_an_answer_that_makes_no_sense_or_belongs_to_another_call_is_nobodys(answer, place, monkeypatch):
    unpack = codec.unpack_result

    async def scenario():
        async with opened(start(place)) as executor:
            died = pid(executor)
            monkeypatch.setattr(codec, "unpack_result", lambda _: unpack(memoryview(answer)))
            with pytest.raises(WorkerLost):
                await ask(executor, 1)
            monkeypatch.undo()

            assert await ask(executor, 1) == rows(1)
            assert pid(executor) != died

    asyncio.run(scenario())


# What the pool makes of it


async def outcomes_of(executor: ProcessExecutor, tags: list[int], patience_s: float = PATIENCE_S) -> list:
    pool = Dispatcher(executor, 1 << 16, patience_s)
    batcher = Batcher(MODEL, pool)
    found = await asyncio.gather(*(submit(batcher, encoding(tag), soon()) for tag in tags), return_exceptions=True)
    return [one.code if isinstance(one, Internal) else one.tolist() for one in found]


@pytest.mark.parametrize("size", [1, 2])
def test_of_sixteen_only_the_one_that_kills_the_process_fails(size, place):
    async def scenario():
        async with opened(start(place, size)) as executor:
            tags = [*range(10), CRASH, *range(10, 15)]

            assert await outcomes_of(executor, tags) == [*rows(*range(10)), "internal", *rows(*range(10, 15))]

    asyncio.run(scenario())


def test_of_several_only_the_one_that_hangs_fails(place):
    async def scenario():
        async with opened(start(place)) as executor:
            assert await outcomes_of(executor, [1, 2, HANG, 3], patience_s=0.1) == [*rows(1, 2), "internal", *rows(3)]

    asyncio.run(scenario())


def test_what_was_under_way_when_the_process_was_killed_is_answered_by_the_spare(place):
    async def scenario():
        async with opened(start(place, spare=True)) as executor:
            await until(lambda: executor.supervisor.spare)
            work = asyncio.ensure_future(outcomes_of(executor, [1, 2, ONCE, 4, 5]))
            await until((place / "once").exists)
            died, spare = pid(executor), executor.supervisor.spare
            os.kill(died, signal.SIGKILL)
            await until(lambda: executor.supervisor.serving is spare)

            assert executor.ready
            assert await work == rows(1, 2, ONCE, 4, 5)
            await until(lambda: executor.supervisor.spare)
            assert not alive(died)

    asyncio.run(scenario())


def test_a_caller_of_an_engine_that_hangs_is_answered_at_the_deadline(place):
    async def scenario():
        async with opened(start(place, 1)) as executor:
            batcher = Batcher(MODEL, Dispatcher(executor, 1 << 16, patience_s=0.6))
            hangs = asyncio.ensure_future(submit(batcher, encoding(HANG), time.monotonic() + 0.2))
            await until(lambda: executor.supervisor.serving._ticks_left)
            other = asyncio.ensure_future(submit(batcher, encoding(1), soon()))
            with pytest.raises(DeadlineExceeded):
                await hangs

            assert (await other).tolist() == row_of(1).tolist()

    asyncio.run(scenario())


# What becomes of the processes


def test_a_spare_that_dies_is_replaced(place):
    async def scenario():
        async with opened(start(place, spare=True)) as executor:
            await until(lambda: executor.supervisor.spare)
            spare = executor.supervisor.spare
            os.kill(spare.pid, signal.SIGKILL)
            await until(lambda: executor.supervisor.spare not in (None, spare))

            assert executor.ready

    asyncio.run(scenario())


def test_where_no_process_can_be_started_callers_are_told_until_one_can(place, monkeypatch):
    monkeypatch.setattr(supervisor, "BACK_OFF_S", (0.01,))

    async def scenario():
        async with opened(start(place)) as executor:
            (place / "refuse").touch()
            os.kill(pid(executor), signal.SIGKILL)
            await until(lambda: not executor.ready)
            with pytest.raises(Unavailable) as refusal:
                await ask(executor, 1)

            assert refusal.value.code == "engine_unavailable"
            assert refusal.value.retry_after
            (place / "refuse").unlink()
            await until(lambda: executor.ready)
            assert await ask(executor, 1) == rows(1)

    asyncio.run(scenario())


def test_an_engine_that_fails_at_everything_is_replaced_then_shut_off_then_found_to_work_again(place, monkeypatch):
    monkeypatch.setattr(process_executor, "PROBE_INTERVAL_S", 0.01)

    async def scenario():
        async with opened(start(place, 1)) as executor:
            first = pid(executor)
            (place / "broken").touch()
            for _ in range(FAILURE_THRESHOLD):
                assert await ask(executor, 1, 2) == ["internal"] * 2
            await until(lambda: executor._breaker.open)
            assert not executor.ready
            with pytest.raises(Unavailable) as refusal:
                await ask(executor, 1)

            assert refusal.value.code == "engine_unavailable"
            (place / "broken").unlink()
            await until(lambda: executor.ready)
            assert await ask(executor, 1) == rows(1)
            assert pid(executor) != first

    asyncio.run(scenario())


def test_an_engine_is_not_replaced_because_one_client_asks_nothing_but_what_fails(place):
    async def scenario():
        async with opened(start(place, 1)) as executor:
            first = pid(executor)
            for _ in range(4 * FAILURE_THRESHOLD):
                assert await ask(executor, RAISE) == ["internal"]
                assert executor.ready
            await until(lambda: executor._probing.done())

            assert await ask(executor, 1) == rows(1)
            assert pid(executor) == first

    asyncio.run(scenario())


def test_twenty_kills_leave_nothing_behind(place):
    def holds() -> tuple[int, int]:
        children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True)
        return len(os.listdir("/proc/self/fd")), len(children.stdout.split())

    async def scenario():
        async with opened(start(place, 1)) as executor:
            for n in range(21):
                assert await ask(executor, n) == rows(n)
                if n == 0:
                    before, threads = holds(), threading.active_count()
                if n < 20:
                    os.kill(pid(executor), signal.SIGKILL)
                    await until(lambda: not executor.ready)
            await until(lambda: holds() == before)

            assert threading.active_count() <= threads + 8  # those of the event loop's executor

    asyncio.run(scenario())


PARENT = """
import asyncio, sys
from pathlib import Path
from tests.support.fakes import encoding
from swiftlet_serve.service.workers.process_executor import ProcessExecutor

async def main():
    executor = ProcessExecutor("faulty", [Path(sys.argv[1])], 1, spare=False, worker_module="tests.support.worker_main")
    executor.load()
    await executor.open()
    print(executor.supervisor.serving.pid, flush=True)
    await executor.run("tiny-qa", [encoding(int(sys.argv[2]))], 1000)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("tag", [1, HANG, SEIZE], ids=["idle", "hangs", "hangs with the lock"])
def test_the_process_dies_with_its_parent(tag, place):
    command = [sys.executable, "-c", PARENT, str(place / MODEL), str(tag)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    asyncio.run(until(lambda: not alive(child)))


def test_the_process_leaves_signals_to_its_parent(place):
    async def scenario():
        async with opened(start(place)) as executor:
            for which in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid(executor), which)

            assert await ask(executor, 1) == rows(1)
            assert os.getpgid(pid(executor)) != os.getpgrp()

    asyncio.run(scenario())


def test_closing_ends_a_process_that_hangs(place):
    async def scenario():
        executor = start(place, 1)
        await executor.open()
        child = pid(executor)
        call = asyncio.ensure_future(ask(executor, SEIZE))
        await until(lambda: executor.supervisor.serving._ticks_left)

        assert await executor.close(PATIENCE_S)
        assert not alive(child)
        assert not executor.ready
        with pytest.raises(WorkerLost):
            await call
        with pytest.raises(Unavailable):
            await ask(executor, 1)

    asyncio.run(scenario())


# Start-up


def test_what_keeps_a_model_from_being_hosted_is_said_in_the_same_sentence(place, capfd):
    artifact = open_artifact(place / MODEL)
    artifact.file(GOLDEN).write_bytes(b"no")
    seal(artifact.path, replace(artifact.manifest))
    for settings, kind in (
        (Settings(models=(str(artifact.path),), cores=1), ArtifactError),
        (Settings(models=(str(artifact.path),), engine="abacus"), SetupError),
        (Settings(models=(str(place / "none"),)), SetupError),
        (Settings(models=(str(artifact.path),) * 2, engine="echo"), SetupError),
    ):
        with pytest.raises(kind) as isolated:
            Runtime.start(settings)
        with pytest.raises(kind) as plain:
            Runtime.load(settings)

        assert str(isolated.value) == str(plain.value)
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_that_ends_while_it_loads_is_said_to():
    with pytest.raises(SetupError, match="ended before the models were loaded"):
        ProcessExecutor("echo", [], 1, spare=False, worker_module="this_module_is_not_there").load()


@pytest.mark.parametrize("name", ["albert-sst2", "mobilebert-qa", "albert-fill-mask"])
def test_rows_are_those_of_a_thread_bit_for_bit(name):
    artifact = open_artifact(BUNDLED / name)
    with np.load(artifact.file(GOLDEN)) as file:
        arrays = {key: file[key] for key in file if key not in ("rows", "columns")}
    encodings = Batch.without_top_k(**arrays).encodings()

    async def scenario():
        threads = ThreadExecutor({name: HostedModel(*host_model(artifact, "onnx_cpu")[0])}, 1)
        executor = ProcessExecutor("onnx_cpu", [artifact.path], 1, spare=False)
        executor.load()
        for timed in (threads.timed_calls(name), executor.timed_calls(name)):
            assert [call.tokens for call in timed] == [len(one.input_ids) for one in encodings]
            assert all(call.seconds > 0 for call in timed)
        async with opened(executor):
            return [(await one.run(name, encodings, PATIENCE_S)).outcomes for one in (threads, executor)]

    here, there = asyncio.run(scenario())
    assert [(row.shape, row.dtype, row.tobytes()) for row in here] == [
        (row.shape, row.dtype, row.tobytes()) for row in there
    ]
