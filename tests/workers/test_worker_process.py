"""The parent's side of a worker process: load, calls, time limits and the end of the process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.memory import MEBIBYTE, CgroupMemory
from swiftlet_serve.types import WorkerLost
from swiftlet_serve.workers.worker_process import WorkerProcess, explain_exit
from tests.support.engines.faulty import EXIT, HANG, Faulty
from tests.support.fakes import PATIENCE_S, encoding, row_of
from tests.support.workers import MODEL


@contextmanager
def spawned(directory: Path, lost: list[WorkerProcess]) -> Iterator[WorkerProcess]:
    """A worker process with one model. Kills it at the end. `lost` receives the process each time it is reported."""
    settings = 1, "warning", "text"
    worker = WorkerProcess(
        "faulty", {0: [directory / MODEL]}, *settings, "tests.support.worker_main", {}, lost.append, print
    )
    try:
        yield worker
    finally:
        worker.kill()
        assert worker.reap(PATIENCE_S)


def test_load_returns_a_report_of_each_model(directory):
    with spawned(directory, []) as worker:
        worker.load()
    (report,) = worker.reports.values()

    assert (report.name, report.cost, report.timed_calls) == (MODEL, Faulty.cost, [])
    assert report.probe[:2] == [[2, 9, 3], [0, 0, 0]]


@pytest.mark.exhaustive
def test_load_raises_the_error_of_the_process(directory):
    (directory / "refuse").touch()
    with spawned(directory, []) as worker, pytest.raises(ArtifactError, match="the file `refuse` exists"):
        worker.load()


def test_process_that_is_killed_while_it_loads_is_reported_with_the_signal_and_the_likely_cause(directory):
    with spawned(directory, []) as worker:
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(SetupError) as caught:
            worker.load()

    assert "by signal 9 (SIGKILL). The likely cause is the memory limit" in str(caught.value)
    assert "spare_engine set to false" in str(caught.value)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (1, "with the exit status 1. The lines of the log before this one have the cause."),
        (-11, "by signal 11 (SIGSEGV). That is a fault in native code. The log may have the stack."),
        (
            -9,
            "by signal 9 (SIGKILL). The likely cause is the memory limit: the memory limit is 512 MiB, at most 511 MiB "
            "were in use, 2 processes were killed because of it. These artifacts have 104 MiB and need a limit of 662 "
            "MiB, or of 458 MiB with spare_engine set to false.",
        ),
    ],
)
def test_end_of_a_process_is_explained(status, sentence):
    assert explain_exit(status, 104 * MEBIBYTE, CgroupMemory(512 * MEBIBYTE, 511 * MEBIBYTE, 2)) == sentence


async def test_worker_answers_calls_one_after_another_on_a_connection(directory):
    with spawned(directory, []) as worker:
        worker.load()
        await worker.connect()
        for tag in range(3):
            outcomes, engine_s, _ = await worker.calls.run(0, [encoding(tag), encoding(9)], PATIENCE_S)

            assert [one.tolist() for one in outcomes] == [row_of(tag).tolist(), row_of(9).tolist()]
            assert engine_s >= 0
        worker.kill()


@pytest.mark.parametrize(("tag", "timeout_s"), [(EXIT, PATIENCE_S), (HANG, 0.0)], ids=["dies", "hangs"])
async def test_loss_of_the_process_fails_its_call_and_is_reported_once(tag, timeout_s, directory):
    lost: list[WorkerProcess] = []
    with spawned(directory, lost) as worker:
        worker.load()
        await worker.connect()
        with pytest.raises(WorkerLost) as error:
            await worker.calls.run(0, [encoding(tag)], timeout_s)
        worker.kill()

        assert error.value.suspect
        assert lost == [worker]
    assert lost == [worker]


async def test_killed_process_cannot_be_connected(directory):
    with spawned(directory, []) as worker:
        worker.load()
        worker.kill()
        assert worker.reap(PATIENCE_S)
        assert worker.exit_status == -signal.SIGKILL
        with pytest.raises(SetupError, match="ended after the models were loaded"):
            await worker.connect()
