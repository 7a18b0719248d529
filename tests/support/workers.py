"""Worker processes with the faulty engine, and what tests ask of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from swiftlet_serve.errors import Internal
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.types import Row
from swiftlet_serve.workers.process_executor import ProcessExecutor
from tests.support.fakes import PATIENCE_S, Scheduler, encoding, row_of, submit

MODEL = "tiny-qa"  # its rows have two columns, like those of the faulty engine


def start(directory: Path, size: int = 2, spare: bool = False) -> ProcessExecutor:
    executor = ProcessExecutor(
        "faulty", [[directory / MODEL]], size, spare=spare, worker_module="tests.support.worker_main"
    )
    executor.load()
    return executor


@asynccontextmanager
async def opened(executor: ProcessExecutor) -> AsyncIterator[ProcessExecutor]:
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
    serving = executor.supervisor.serving
    assert serving is not None
    return serving.pid


async def ask(executor: ProcessExecutor, *tags: int, timeout_s: float = PATIENCE_S) -> list[Any]:
    result = await executor.run(MODEL, [encoding(tag) for tag in tags], timeout_s)
    return [_answer(one) for one in result.outcomes]


def rows(*tags: int) -> list[Any]:
    return [row_of(tag).tolist() for tag in tags]


async def outcomes_of(executor: ProcessExecutor, tags: list[int], timeout_s: float = PATIENCE_S) -> list[Any]:
    scheduler = Scheduler(Dispatcher(executor, timeout_s), MODEL)
    found = await asyncio.gather(
        *(submit(scheduler, encoding(tag), far_deadline()) for tag in tags), return_exceptions=True
    )
    return [_answer(one) for one in found]


def _answer(outcome: Row | BaseException) -> Any:
    if isinstance(outcome, Internal):
        return outcome.code
    assert not isinstance(outcome, BaseException)
    return outcome.tolist()
