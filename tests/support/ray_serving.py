"""A Ray cluster that serves under load while replicas are killed, replaced and added.

As a program it prints the outcomes as JSON: `python -m tests.support.ray_serving MODEL ROUNDS`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray import serve
from ray.serve._private.common import ReplicaState

from swiftlet_serve.ray_serve import application
from tests.support.processes import Tally, load

PATIENCE_S: Final = 120.0
CLIENTS: Final = 16
INTERVAL_S: Final = 0.1  # between two requests of a client
NAME: Final = "swiftlet"
LOGGING: Final[Any] = {"enable_access_log": False, "log_level": "ERROR"}


async def measure(model: str, rounds: int) -> dict[str, Any]:
    """Returns the outcomes of requests beside killed engines, killed replicas, updates, and more and fewer replicas.

    A single round is one of killed engines only.
    """
    port = _free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config=LOGGING)
    options = {"models": model, "engine": "echo", "spare_engine": True}

    async def deploy(**more: Any) -> None:
        built = application(options | more)
        await asyncio.to_thread(serve.run, built, name=NAME, route_prefix="/", logging_config=LOGGING)

    await deploy(min_replicas=2, max_replicas=2)
    found = {}
    found["engines"] = await _beside(port, rounds, lambda _: _kill_engine())
    if rounds > 1:  # these take minutes
        found["replicas"] = await _beside(port, rounds, lambda _: _kill_replica())
        found["updates"] = await _beside(
            port, rounds, lambda n: deploy(min_replicas=2, max_replicas=2, timeout_ms=9000 + n)
        )
        scale = {"max_replicas": 2, "interval_s": 1, "upscale_delay_s": 0, "downscale_delay_s": 1}
        found["scaling"] = await _beside(port, 1, lambda _: _scale(lambda **more: deploy(**scale, **more)))
    serve.shutdown()  # type: ignore[no-untyped-call]
    return found


async def _scale(deploy: Callable[..., Awaitable[None]]) -> None:
    """Makes the replicas that run look overloaded, and then idle."""
    await deploy(min_replicas=1, target_utilization=1e-6)
    await _until(lambda: len(_replicas()) == 2)
    await deploy(min_replicas=1, target_utilization=0.99, target_wait_ms=10_000)
    await _until(lambda: len(_replicas()) == 1)


async def _beside(port: int, rounds: int, change: Callable[[int], Awaitable[None]]) -> dict[str, Any]:
    """Returns the outcomes of the requests that clients send while `change` is called."""
    stopped, tally = asyncio.Event(), Tally()
    loading = asyncio.create_task(load(port, CLIENTS, INTERVAL_S, stopped, tally=tally))
    started = time.monotonic()
    for number in range(rounds):
        answered = tally.answered
        await change(number)
        await _until(partial(_has_answered, tally, answered + 2 * CLIENTS))
    stopped.set()
    await loading
    seconds = time.monotonic() - started
    return {
        "rounds": rounds,
        "answered": tally.answered,
        "refused": tally.refused,
        "lost": tally.lost,
        "seconds": round(seconds, 1),
    }


def _has_answered(tally: Tally, count: int) -> bool:
    return tally.answered >= count


async def _kill_engine() -> None:
    """Kills an engine process, and waits until its replica has another."""
    victim = next(iter(_engines()))
    os.kill(victim, signal.SIGKILL)
    await _until(lambda: victim not in _engines())


async def _kill_replica() -> None:
    """Kills a replica, and waits until Ray has started another."""
    before = _replicas()
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    await _until(lambda: victim not in _replicas() and len(_replicas()) == len(before))


def _replicas() -> set[int]:
    """Returns the processes of the replicas, or none while some of them start or stop."""
    found = {pid for pid, words in _processes() if words[0].startswith(f"ray::ServeReplica:{NAME}")}
    application = serve.status().applications.get(NAME)
    deployments = {} if application is None else application.deployments
    running = sum(one.replica_states.get(ReplicaState.RUNNING, 0) for one in deployments.values())
    return found if running == len(found) else set()


def _engines() -> set[int]:
    """Returns the engine processes of all replicas: two each, of which one serves."""
    replicas = _replicas()
    return {pid for pid, words in _processes() if "worker_main" in " ".join(words) and _parent(pid) in replicas}


def _processes() -> Iterable[tuple[int, list[str]]]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                yield int(path.name), (path / "cmdline").read_text("utf-8", "replace").split("\0")


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[1])
    except OSError:
        return 0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    model, rounds = sys.argv[1:]
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    print(json.dumps(asyncio.run(measure(model, int(rounds)))))
    ray.shutdown()


if __name__ == "__main__":
    main()
