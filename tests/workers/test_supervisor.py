"""Worker processes are replaced when they are lost, and end with the service."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from swiftlet_models.artifact import GOLDEN, ArtifactError, open_artifact, seal
from swiftlet_serve.errors import SetupError, Unavailable
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.machine import child_process
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import WorkerLost
from swiftlet_serve.workers.process_executor import ProcessExecutor
from tests.support.engines.faulty import HANG, SEIZE
from tests.support.fakes import PATIENCE_S
from tests.support.tiers import first
from tests.support.workers import MODEL, alive, ask, opened, pid, rows, start, until


async def test_supervisor_replaces_a_dead_spare(directory):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: executor.supervisor.spare)
        spare = executor.supervisor.spare
        os.kill(spare.pid, signal.SIGKILL)
        await until(lambda: executor.supervisor.spare not in (None, spare))

        assert executor.ready


async def test_calls_fail_while_no_worker_can_be_started(directory, monkeypatch):
    monkeypatch.setattr(child_process, "BACK_OFF_S", (0.01,))

    async with opened(start(directory)) as executor:
        (directory / "refuse").touch()
        os.kill(pid(executor), signal.SIGKILL)
        await until(lambda: not executor.ready)
        with pytest.raises(Unavailable) as refusal:
            await ask(executor, 1)

        assert refusal.value.code == "engine_unavailable"
        assert refusal.value.retry_after
        (directory / "refuse").unlink()
        await until(lambda: executor.ready)
        assert await ask(executor, 1) == rows(1)


@pytest.mark.parametrize("kills", first([4, 20], 4))
async def test_kills_leak_no_descriptors_processes_or_threads(directory, kills):
    def resources() -> tuple[int, int]:
        children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True)
        return len(os.listdir("/proc/self/fd")), len(children.stdout.split())

    async with opened(start(directory, 1)) as executor:
        for n in range(kills + 1):
            assert await ask(executor, n) == rows(n)
            if n == 0:
                before, threads = resources(), threading.active_count()
            if n < kills:
                os.kill(pid(executor), signal.SIGKILL)
                await until(lambda: not executor.ready)
        await until(lambda: resources() == before)

        assert threading.active_count() <= threads + 8  # threads of the event loop's default executor


PARENT = """
import asyncio, sys
from pathlib import Path
from tests.support.fakes import encoding
from swiftlet_serve.workers.process_executor import ProcessExecutor

async def main():
    models = [[Path(sys.argv[1])]]
    executor = ProcessExecutor("faulty", models, 1, spare=False, worker_module="tests.support.worker_main")
    executor.load()
    await executor.open()
    print(executor.supervisor.serving.pid, flush=True)
    await executor.run("tiny-qa", [encoding(int(sys.argv[2]))], 1000)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("tag", first([1, HANG, SEIZE], 1, SEIZE), ids=["idle", "hangs", "hangs with the GIL"])
def test_worker_ends_with_its_parent(tag, directory):
    command = [sys.executable, "-c", PARENT, str(directory / MODEL), str(tag)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    asyncio.run(until(lambda: not alive(child)))


async def test_worker_ignores_termination_signals(directory):
    async with opened(start(directory)) as executor:
        for which in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid(executor), which)

        assert await ask(executor, 1) == rows(1)
        assert os.getpgid(pid(executor)) != os.getpgrp()


async def test_close_ends_a_worker_that_hangs(directory):
    executor = start(directory, 1)
    await executor.open()
    child = pid(executor)
    call = asyncio.ensure_future(ask(executor, SEIZE))
    await until(lambda: executor.supervisor.serving.calls.running)

    assert await executor.close(PATIENCE_S)
    assert not alive(child)
    assert not executor.ready
    with pytest.raises(WorkerLost):
        await call
    with pytest.raises(Unavailable):
        await ask(executor, 1)


# Start-up


def test_start_fails_with_the_same_error_as_load(directory, capfd):
    artifact = open_artifact(directory / MODEL)
    artifact.file(GOLDEN).write_bytes(b"no")
    seal(artifact.path, replace(artifact.manifest))
    for settings, kind in (
        (Settings(models=(str(artifact.path),), cores=1), ArtifactError),
        (Settings(models=(str(artifact.path),), engine="abacus"), SetupError),
        (Settings(models=(str(directory / "none"),)), SetupError),
        (Settings(models=(str(artifact.path),) * 2, engine="echo"), SetupError),
    ):
        with pytest.raises(kind) as started:
            LocalRuntime.start(settings)
        with pytest.raises(kind) as loaded:
            LocalRuntime.load(settings)

        assert str(started.value) == str(loaded.value)
    assert "Traceback" not in capfd.readouterr().err


def test_load_fails_if_the_worker_ends_first():
    with pytest.raises(SetupError, match="ended before the models were loaded"):
        ProcessExecutor("echo", [], 1, spare=False, worker_module="this_module_is_not_there").load()
