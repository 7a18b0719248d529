"""Worker processes with the faulty engine, and what tests ask of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

from swiftlet_serve.service.errors import Internal
from swiftlet_serve.service.scheduling.dispatcher import Dispatcher
from swiftlet_serve.service.workers.process_executor import ProcessExecutor
from tests.support.fakes import PATIENCE_S, Scheduler, encoding, row_of, submit

MODEL = "tiny-qa"  # its rows have two columns, like those of the faulty engine


def start(directory: Path, size: int = 2, spare: bool = False) -> ProcessExecutor:
    executor = ProcessExecutor(
        "faulty", [directory / MODEL], size, spare=spare, worker_module="tests.support.worker_main"
    )
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
    """Waits for an event outside of this process."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


def far_deadline() -> float:
    return time.monotonic() + PATIENCE_S


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the process ended before or during the read
        return False


def pid(executor: ProcessExecutor) -> int:
    return executor.supervisor.serving.pid


async def ask(executor: ProcessExecutor, *tags: int, timeout_s: float = PATIENCE_S) -> list:
    outcomes, _ = await executor.run(MODEL, [encoding(tag) for tag in tags], timeout_s)
    return [one.code if isinstance(one, Internal) else one.tolist() for one in outcomes]


def rows(*tags: int) -> list:
    return [row_of(tag).tolist() for tag in tags]


async def outcomes_of(executor: ProcessExecutor, tags: list[int], timeout_s: float = PATIENCE_S) -> list:
    scheduler = Scheduler(Dispatcher(executor, timeout_s), MODEL)
    found = await asyncio.gather(
        *(submit(scheduler, encoding(tag), far_deadline()) for tag in tags), return_exceptions=True
    )
    return [one.code if isinstance(one, Internal) else one.tolist() for one in found]
