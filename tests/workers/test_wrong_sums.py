"""Wrong sums in worker processes are counted once, and no later process trusts their cause."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal

import pytest

from swiftlet_serve.machine import child_process
from swiftlet_serve.workers import supervisor
from swiftlet_serve.workers.worker_main import ModelReport
from tests.support.engines.faulty import WRONG
from tests.support.fakes import PATIENCE_S, encoding
from tests.support.workers import MODEL, alive, ask, opened, pid, rows, start, until


async def test_wrong_sum_is_counted_and_changes_the_runtime(directory, caplog):
    async with opened(start(directory)) as executor:
        assert (executor.kernel_faults, executor.runtime(MODEL)) == (0, "faulty")
        assert await ask(executor, WRONG, 1) == rows(WRONG, 1)
        await until(lambda: executor.kernel_faults)
        assert await ask(executor, WRONG) == rows(WRONG)

        assert (executor.kernel_faults, executor.runtime(MODEL)) == (1, "faulty (wrong)")
        assert executor.restarts == 0
        assert [(record.name, record.levelno) for record in caplog.records] == [(supervisor.__name__, logging.ERROR)]


async def test_process_that_replaces_another_is_told_of_wrong_sums(directory):
    async with opened(start(directory)) as executor:
        await ask(executor, WRONG)
        await until(lambda: executor.kernel_faults)
        for _ in range(2):
            os.kill(pid(executor), signal.SIGKILL)
            await until(lambda: not executor.ready)
            assert executor.kernel_faults == 1
            await until(lambda: executor.ready)
            assert await ask(executor, WRONG) == rows(WRONG)

            assert (executor.kernel_faults, executor.runtime(MODEL)) == (1, "faulty (told)")


async def test_process_is_not_told_of_wrong_sums_that_were_not_found(directory):
    async with opened(start(directory)) as executor:
        os.kill(pid(executor), signal.SIGKILL)
        await until(lambda: not executor.ready)
        await until(lambda: executor.ready)

        assert executor.runtime(MODEL) == "faulty"


async def test_spare_that_was_not_told_is_replaced(directory):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: executor.supervisor.spare)
        serving, spare = executor.supervisor.serving, executor.supervisor.spare
        await ask(executor, WRONG)
        await until(lambda: executor.supervisor.spare not in (None, spare))

        assert executor.supervisor.serving is serving
        assert executor.supervisor.spare.avoids_tiles
        await until(lambda: not alive(spare.pid))
        serving.kill()
        assert executor.runtime(MODEL) == "faulty (told)"
        assert executor.kernel_faults == 1


async def test_process_that_was_starting_is_replaced(directory):
    async with opened(start(directory, spare=True)) as executor:
        await until(lambda: len(executor.supervisor._processes) == 2)
        (first,) = executor.supervisor._processes - {executor.supervisor.serving}
        await ask(executor, WRONG)
        await until(lambda: executor.supervisor.spare not in (None, first))

        assert executor.supervisor.spare.avoids_tiles
        await until(lambda: not alive(first.pid))
        assert executor.kernel_faults == 1


async def test_wrong_sum_reported_before_the_process_is_killed_is_counted(directory):
    async with opened(start(directory)) as executor:
        lost = executor.supervisor.serving
        call = executor.run(MODEL, [encoding(WRONG)], PATIENCE_S)
        sockets = [one._transport.get_extra_info("socket") for one in lost.calls._connections]
        assert select.select(sockets, [], [], PATIENCE_S)[0]  # blocks the event loop, so the report is not read
        assert executor.kernel_faults == 0
        lost.kill()

        assert executor.kernel_faults == 1
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: executor.ready)
        assert executor.runtime(MODEL) == "faulty (told)"


async def test_wrong_sum_while_the_first_process_is_loaded_is_counted(directory):
    (directory / "wrong").touch()
    executor = start(directory, spare=True)
    assert (executor.kernel_faults, executor.runtime(MODEL)) == (1, "faulty (wrong)")
    async with opened(executor):
        await until(lambda: executor.supervisor.spare)

        assert executor.supervisor.spare.avoids_tiles
        assert (executor.kernel_faults, executor.restarts) == (1, 0)


async def test_wrong_sum_while_the_spare_is_loaded_is_counted(directory):
    executor = start(directory, spare=True)
    (directory / "wrong").touch()
    async with opened(executor):
        await until(lambda: executor.supervisor.spare)

        assert executor.supervisor.spare.avoids_tiles
        assert (executor.kernel_faults, executor.runtime(MODEL)) == (1, "faulty")


async def test_engine_whose_count_raises_serves_without_a_count(directory):
    (directory / "nonsense").touch()
    async with opened(start(directory)) as executor:
        assert await ask(executor, WRONG, 1) == rows(WRONG, 1)
        assert (executor.kernel_faults, executor.ready) == (0, True)


@pytest.mark.parametrize("failure", [KeyError("runtime"), OverflowError("infinity")])
async def test_invalid_report_ends_the_worker(failure, directory, monkeypatch):
    monkeypatch.setattr(child_process, "BACK_OFF_S", (0.01,))
    own = ModelReport.from_json

    def fail_once(fields):
        monkeypatch.setattr(ModelReport, "from_json", own)
        raise failure

    async with opened(start(directory)) as executor:
        lost = pid(executor)
        monkeypatch.setattr(ModelReport, "from_json", fail_once)
        await asyncio.gather(ask(executor, WRONG), return_exceptions=True)
        await until(lambda: not alive(lost))
        await until(lambda: executor.ready)

        assert await ask(executor, 1) == rows(1)
