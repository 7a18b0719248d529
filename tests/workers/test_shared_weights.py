"""Worker processes share the weights of the native engine, and leave nothing of models that are gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.workers.process_executor import ProcessExecutor
from tests.support.large_artifacts import make_bert
from tests.support.workers import opened, until

pytestmark = pytest.mark.skipif(_kernel_selection.best() is None, reason="no kernel is compiled for this CPU")


def start(tmp_path):
    artifact = make_bert(tmp_path, "classify", words=200, hidden=64, layers=1)
    executor = ProcessExecutor("native", [[artifact.path]], 1, spare=True)
    executor.load()
    return executor, artifact.path


def files(process):
    """Returns the inodes of the sealed files that a process has mapped."""
    lines = [line.split() for line in Path(f"/proc/{process.pid}/maps").read_text("ascii").splitlines()]
    return {fields[4] for fields in lines if fields[5:6] == ["/memfd:weights"]}


async def test_every_process_maps_the_files_of_the_first(tmp_path):
    executor, _ = start(tmp_path)
    async with opened(executor):
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        first, second = supervisor.serving, supervisor.spare
        assert len(shared := files(first)) == 1
        assert files(second) == shared
        first.kill()
        await until(lambda: supervisor.spare)

        assert (supervisor.serving, files(supervisor.spare)) == (second, shared)


async def test_process_that_finds_no_fitting_file_makes_one_for_those_after_it(tmp_path):
    executor, _ = start(tmp_path)
    async with opened(executor):
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        old = files(supervisor.serving)
        supervisor._close_weights(0)
        supervisor.spare.kill()
        await until(lambda: supervisor.spare)
        assert len(new := files(supervisor.spare)) == 1
        assert new.isdisjoint(old)
        supervisor.serving.kill()
        await until(lambda: supervisor.spare)

        assert files(supervisor.spare) == files(supervisor.serving) == new


async def test_model_that_goes_while_a_spare_starts_leaves_no_file(tmp_path):
    executor, path = start(tmp_path)
    async with opened(executor):
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        await executor.add_model("other", path)
        supervisor._close_weights(1)  # the next process packs a file of its own
        known = {supervisor.serving, supervisor.spare}
        supervisor.spare.kill()
        await until(lambda: supervisor._processes - known)  # it was told to load the other model
        await executor.remove_model("other")
        await until(lambda: supervisor.spare)

        assert supervisor._weights.keys() == {0}


async def test_models_that_come_and_go_leave_no_file(tmp_path):
    executor, path = start(tmp_path)
    async with opened(executor):
        supervisor = executor.supervisor
        await until(lambda: supervisor.spare)
        processes = supervisor.serving, supervisor.spare

        def held():
            return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), *(one.pid for one in processes))]

        shared, before = files(processes[0]), held()
        for _ in range(3):
            await executor.add_model("other", path)
            assert len(files(processes[0])) == 2
            assert files(processes[0]) == files(processes[1])
            await executor.remove_model("other")
            await until(lambda: all(len(one.reports) == 1 for one in processes))

        assert [files(one) for one in processes] == [shared] * 2
        assert held() == before
    assert supervisor._weights == {}
