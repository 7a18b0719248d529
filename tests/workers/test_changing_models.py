"""Models are loaded and released while worker processes serve others."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import SetupError
from swiftlet_serve.workers import worker_process
from swiftlet_serve.workers.process_executor import ProcessExecutor
from swiftlet_serve.workers.worker_process import WorkerProcess
from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S, encoding
from tests.support.tiers import first
from tests.support.workers import MODEL, ask, opened, pid, rows, start, until


@pytest.fixture
def other(tmp_path) -> Path:
    """Directory with another artifact, and with the files that switch faults on for it alone."""
    directory = tmp_path / "elsewhere"
    make_artifact(directory, "qa", "other")
    return directory


async def ask_other(executor: ProcessExecutor, *tags: int) -> list[object]:
    outcomes = (await executor.run("other@2", [encoding(tag) for tag in tags], PATIENCE_S)).outcomes
    return [one.tolist() for one in outcomes]


@pytest.mark.parametrize("spare", first([True, False], True))
async def test_added_model_answers_beside_the_first_and_can_be_removed(spare, directory, other):
    async with opened(start(directory, spare=spare)) as executor:
        await executor.add_model("other@2", other / "other")

        assert executor.runtime("other@2") == "faulty"
        assert await ask_other(executor, 5, 6) == rows(5, 6)
        assert await ask(executor, 7) == rows(7)
        await executor.remove_model("other@2")
        assert await ask(executor, 8) == rows(8)
        processes = filter(None, (executor.supervisor.serving, executor.supervisor.spare))
        for process in processes:
            await until(lambda process=process: len(process.reports) == 1)
        assert executor.restarts == 0


async def test_process_that_loads_runs_no_calls(directory, other, monkeypatch):
    """Only without a spare, a process loads a model beside its calls."""

    async with opened(start(directory, spare=True)) as executor:
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        serving, spare = supervisor.serving, supervisor.spare
        loaded, load = [], WorkerProcess.load_model

        async def observed(process: WorkerProcess, *args: Any) -> None:
            loaded.append(process)
            assert process is not supervisor.serving
            await load(process, *args)
            assert await ask(executor, 1) == rows(1)

        monkeypatch.setattr(WorkerProcess, "load_model", observed)
        await executor.add_model("other@2", other / "other")

        assert loaded == [spare, serving]
        assert (supervisor.serving, supervisor.spare) == (serving, spare)
        assert await ask_other(executor, 5) == rows(5)


@pytest.mark.parametrize("lost", first(["serving", "spare"], "serving"))
async def test_process_that_is_lost_while_models_change_is_replaced(lost, directory, other, monkeypatch):
    async with opened(start(directory, spare=True)) as executor:
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        victim, load = getattr(supervisor, lost), WorkerProcess.load_model

        async def observed(process: WorkerProcess, *args: Any) -> None:
            if process is not before[1]:  # the second load
                victim.kill()
                monkeypatch.undo()
            await load(process, *args)

        before = supervisor.serving, supervisor.spare
        monkeypatch.setattr(WorkerProcess, "load_model", observed)
        try:
            await executor.add_model("other@2", other / "other")
        except SetupError:  # the process that loaded was lost
            assert lost == "serving"
            await executor.add_model("other@2", other / "other")

        await until(lambda: executor.ready and supervisor.spare)
        assert victim not in (supervisor.serving, supervisor.spare)
        assert await ask_other(executor, 5) == rows(5)
        assert await ask(executor, 1) == rows(1)


async def test_later_processes_have_the_added_model_and_not_the_removed_one(directory, other):
    async with opened(start(directory, spare=False)) as executor:
        await executor.add_model("third", other / "other")
        await executor.add_model("other@2", other / "other")
        await executor.remove_model("third")
        os.kill(pid(executor), signal.SIGKILL)
        await until(lambda: not executor.ready)
        await until(lambda: executor.ready)

        assert await ask_other(executor, 5) == rows(5)
        assert [report.name for report in executor.supervisor.serving.reports.values()] == [MODEL, "other"]


@pytest.mark.parametrize("spare", first([True, False], True))
async def test_model_that_cannot_be_loaded_changes_nothing(spare, directory, other):
    (other / "refuse").touch()

    async with opened(start(directory, spare=spare)) as executor:
        with pytest.raises(ArtifactError, match="the file `refuse` exists"):
            await executor.add_model("other@2", other / "other")

        assert await ask(executor, 1) == rows(1)
        assert executor.restarts == 0


async def test_model_that_ends_its_process_costs_the_spare_only(directory, other):
    (other / "die").touch()

    async with opened(start(directory, spare=True)) as executor:
        serving = pid(executor)
        with pytest.raises(SetupError, match="ended while it loaded the model"):
            await executor.add_model("other@2", other / "other")

        assert (executor.restarts, pid(executor)) == (1, serving)
        assert await ask(executor, 1) == rows(1)
        (other / "die").unlink()
        await executor.add_model("other@2", other / "other")
        assert await ask_other(executor, 5) == rows(5)


async def test_model_that_never_loads_is_given_up(directory, other, monkeypatch):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: executor.supervisor.spare)
        os.kill(executor.supervisor.spare.pid, signal.SIGSTOP)
        monkeypatch.setattr(worker_process, "LOAD_TIMEOUT_S", 0.0)
        with pytest.raises(SetupError, match="ended while it loaded the model"):
            await executor.add_model("other@2", other / "other")

        assert executor.restarts == 1
        assert await ask(executor, 1) == rows(1)


async def test_cancelled_load_leaves_no_model_behind(directory, other):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: executor.supervisor.spare)
        os.kill(executor.supervisor.spare.pid, signal.SIGSTOP)
        adding = asyncio.create_task(executor.add_model("other@2", other / "other"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding

        assert list(executor.supervisor.models) == [0]
        assert await ask(executor, 1) == rows(1)
        await executor.add_model("other@2", other / "other")
        assert await ask_other(executor, 5) == rows(5)


NONSENSE = [b"[]", b"{}", b'{"index": 9, "kind": "SetupError", "message": ""}', b"7", b"{"]


@pytest.mark.parametrize("message", first(NONSENSE, b"[]", b"{"))
async def test_process_that_sends_nonsense_is_lost(message, directory):
    async with opened(start(directory, spare=False)) as executor:
        process = executor.supervisor.serving
        process._received = message + b"\n"
        process._receive_reports()

        assert executor.supervisor.serving is not process
        await until(lambda: executor.ready)
        assert await ask(executor, 1) == rows(1)
