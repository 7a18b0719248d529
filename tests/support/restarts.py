"""Counts the requests that are lost in rolling restarts under load.

As a program, it restarts twenty times at 70 % of the capacity of two servers behind a load balancer, and prints the
result: `PYTHONPATH=. python tests/support/restarts.py`.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.artifacts import make_artifact
from tests.support.processes import Balancer, Process, Tally, load, serving

CLIENTS = 40
DRAIN_S = 2.0  # 40 polls of the balancer, and longer than a kept connection is idle


async def roll(artifact_dir: Path, restarts: int, rate: float) -> tuple[Tally, list[int]]:
    """Replaces the servers behind a load balancer one after another, at a load of `rate` requests per second.

    Returns the outcomes of the requests, and the exit status of every server.
    """
    statuses = []
    with ExitStack() as stack:

        def start() -> Process:
            return stack.enter_context(serving(artifact_dir, "--drain-s", str(DRAIN_S)))

        balancer, stopped = Balancer(), asyncio.Event()
        port = await balancer.open()
        servers = [await asyncio.to_thread(start) for _ in range(2)]
        for server in servers:
            await balancer.add(server.port)
        loading = asyncio.create_task(load(port, CLIENTS, CLIENTS / rate, stopped))
        for _ in range(restarts):
            new, old = await asyncio.to_thread(start), servers.pop(0)
            await balancer.add(new.port)
            servers.append(new)
            old.stop()
            statuses.append(await asyncio.to_thread(old.wait))
            balancer.remove(old.port)
        stopped.set()
        tally = await loading
        balancer.close()
    return tally, statuses


async def peak(artifact_dir: Path, seconds: float = 3.0) -> float:
    """Returns the capacity of two servers behind the load balancer, in requests per second."""
    balancer, stopped = Balancer(), asyncio.Event()
    with serving(artifact_dir) as one, serving(artifact_dir) as other:
        port = await balancer.open()
        await balancer.add(one.port)
        await balancer.add(other.port)
        asyncio.get_running_loop().call_later(seconds, stopped.set)
        tally = await load(port, CLIENTS, 0, stopped)
        balancer.close()
    return tally.answered / seconds


def main(restarts: int = 20) -> None:
    with tempfile.TemporaryDirectory() as directory:
        artifact_dir = Path(directory)
        make_artifact(artifact_dir, "classify")
        capacity = asyncio.run(peak(artifact_dir))
        started = time.monotonic()
        tally, statuses = asyncio.run(roll(artifact_dir, restarts, 0.7 * capacity))
        seconds = time.monotonic() - started
    print(f"capacity {capacity:.0f} requests/s, load {tally.answered / seconds:.0f} requests/s for {seconds:.0f} s")
    print(f"{restarts} restarts, exit statuses {sorted(set(statuses))}")
    print(f"{tally.answered} answered, {tally.refused} refused, {len(tally.lost)} lost", *tally.lost, sep="\n")
    sys.exit(bool(tally.lost or tally.refused or any(statuses)))


if __name__ == "__main__":
    main()
