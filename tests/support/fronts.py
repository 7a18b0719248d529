"""Servers with several fronts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from loadtest.server_process import process_tree
from tests.support.metrics import Series, scrape, total
from tests.support.processes import Process, Response, ask

CONNECTIONS = 24  # so many that all fronts get some: the chance that one gets none is 1 in 8 million


def processes(server: Process, module: str) -> list[int]:
    """Returns the ids of the server's processes that run a module, oldest first."""
    pids = process_tree(server.process.pid)
    return [pid for pid in pids if module in _command(pid)]


def _command(pid: int) -> str:
    """Returns the command line of a process, or an empty text if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def ask_all(server: Process, *args: object, **kwargs: object) -> list[Response]:
    """Sends a request on each of many connections, one after the other, so that all fronts answer some."""
    return [await ask(server.port, *args, **kwargs) for _ in range(CONNECTIONS)]  # type: ignore[arg-type]


async def until_metrics(server: Process, holds: Callable[[Series], bool]) -> Series:
    """Waits until the metrics hold what a test expects."""
    while not holds(series := await scrape(server.port)):
        await asyncio.sleep(0)
    return series


async def until_replaced(server: Process) -> Series:
    """Waits until two fronts answer and one of them is new."""

    def holds(series: Series) -> bool:
        return (total(series, "swiftlet_fronts"), total(series, "swiftlet_front_restarts_total")) == (2, 1)

    return await until_metrics(server, holds)
