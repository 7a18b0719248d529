"""The torture cases of the model repository: versions switch at full load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvloop

from loadtest.generator import closed_loop
from loadtest.server_process import ServerProcess, process_tree, serving
from swiftlet_serve.http.gate.api_keys import add_line, make_key
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes
from swiftlet_serve.telemetry.percentile import percentile
from tests.support.repositories import make_version
from tests.torture.outcome import Outcome, scaled

CALLERS: Final = 16
KILL_EVERY: Final = 50  # switches between two kills of the worker process
BLOCK: Final = 20  # switches in a row, between blocks of the same time without any
INTERVAL_S: Final = 0.25  # between two switches of the measurement of latency
CLASSIFY: Final = request_bytes("/classify", json.dumps({"inputs": "a fine day"}).encode())


def switches(_: Path, scale: float) -> list[Outcome]:
    """Switches between two versions as fast as possible, and kills the worker process now and then."""
    count = scaled(1000, scale, 10)
    with _server() as (server, key):
        traffic = Traffic(server)
        made, killed = uvloop.run(_switch(traffic, key, count))
        status = server.stop()
    lost = f"{sum(traffic.faults.values())} lost or wrong, {traffic.answered:,} answered, {killed} kills"
    return [
        Outcome("switches of a model", count, f"{made} made", f"{count} made", made == count),
        Outcome("lost or wrong at switches", count, lost, "0", not traffic.faults and traffic.answered > 0),
        Outcome("exit status after switches", 1, str(status), "0", status == 0),
    ]


def switch_latency(_: Path, scale: float) -> list[Outcome]:
    """Compares the latency at full load with switches and without, in turn."""
    blocks = scaled(50, scale, 2)
    with _server() as (server, key):
        traffic = Traffic(server)
        quiet, switching = uvloop.run(_compare(traffic, key, blocks))
    before, after = (1000 * percentile(sorted(seconds), 0.99) for seconds in (quiet, switching))
    shown = f"{before:.1f} -> {after:.1f} ms"
    return [Outcome("p99 beside switches", blocks * BLOCK, shown, "+ 10 %", after <= 1.1 * before + 0.1)]


@contextmanager
def _server() -> Iterator[tuple[ServerProcess, str]]:
    """Serves two versions of a model. Yields the server, and a key for its admin port."""
    with tempfile.TemporaryDirectory() as directory:
        root, keys = Path(directory, "repository"), Path(directory, "keys")
        for number in (1, 2):
            make_version(root, "flowers", number)
        key, line = make_key("torture")
        add_line(keys, line)
        options = ["--repository", str(root), "--admin-port", "0", "--admin-keys-file", str(keys)]
        with serving([], "onnx_cpu", *options, "--repository-poll-s", "3600") as server:
            yield server, key


class Traffic:
    """Callers that check that every part of an answer is of one version."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.answered = 0
        self.faults: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.client = Client(server.url)

    async def send(self, due: float) -> None:
        """Sends a request, and counts a fault if it is lost or its answer is wrong."""
        try:
            response = await self.client.send(CLASSIFY)
        except ConnectionLost:
            self.faults["connection lost"] += 1
            return
        self.seconds.append(time.monotonic() - due)
        if response.status != 200:
            self.faults[f"status {response.status}"] += 1
            return
        version = response.headers["x-model-version"]
        if all(one["label"].startswith(f"v{version}-") for one in json.loads(response.body)[0]):
            self.answered += 1
        else:
            self.faults["mixed versions"] += 1


async def _load_version(client: Client, key: str, version: int) -> bool:
    body = json.dumps({"parameters": {"version": version}}).encode()
    path = "/v2/repository/models/flowers/load"
    response = await client.send(request_bytes(path, body, {"x-api-key": key}))
    return response.status == 200


async def _switch(traffic: Traffic, key: str, count: int) -> tuple[int, int]:
    stopped, admin = asyncio.Event(), Client(f"http://127.0.0.1:{traffic.server.admin_port}")
    load = asyncio.create_task(closed_loop([traffic.send] * CALLERS, stopped=stopped))
    made = killed = 0
    for number in range(count):
        if number % KILL_EVERY == KILL_EVERY // 2:
            os.kill(process_tree(traffic.server.pid)[1], signal.SIGKILL)  # the oldest worker process
            killed += 1
        while not await _load_version(admin, key, 1 + number % 2):  # it may fail while the process is replaced
            await asyncio.sleep(0.1)
        made += 1
    stopped.set()
    await load
    admin.close()
    traffic.client.close()
    return made, killed


async def _compare(traffic: Traffic, key: str, blocks: int) -> tuple[list[float], list[float]]:
    quiet: list[float] = []
    switching: list[float] = []
    admin = Client(f"http://127.0.0.1:{traffic.server.admin_port}")
    for block in range(-1, 2 * blocks):  # the first is a warm-up
        stopped = asyncio.Event()
        traffic.seconds = []
        load = asyncio.create_task(closed_loop([traffic.send] * CALLERS, stopped=stopped))
        for number in range(BLOCK):
            if block % 2:
                await _load_version(admin, key, 1 + number % 2)
            await asyncio.sleep(INTERVAL_S)
        stopped.set()
        await load
        if block >= 0:
            (switching if block % 2 else quiet).extend(traffic.seconds)
    admin.close()
    traffic.client.close()
    return quiet, switching
