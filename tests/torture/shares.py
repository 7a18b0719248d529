"""The torture cases of shares: bodies that hold the event loop, and a client that floods the queue."""

from __future__ import annotations

import asyncio
import gc
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import uvloop

from loadtest.server_process import serving
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http_client import request_bytes
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.hostile_dialects import models
from tests.support.large_bodies import LargeBody, large_bodies, loop_seconds
from tests.torture.outcome import Outcome

MOST_MS: Final = 20.0  # of the event loop, for any body
COUNTS: Final = (4000, 8000, 16_000)
REPEATED: Final = 20  # worst bodies that are measured again: a pause of the machine counts once only
MODEL: Final = "mobilebert-sst2"
FLOODING: Final = 50  # connections
FLOOD: Final = json.dumps({"inputs": ["The river was low that summer, and the boats lay on their sides. " * 30] * 16})
SHORT: Final = json.dumps({"inputs": "A warm, funny and clever film."})


def stalls(_: Path, scale: float) -> list[Outcome]:
    """Answers large bodies of every route and dialect, and measures the CPU time of the event loop's thread."""
    return asyncio.run(_stalls(scale))


async def _stalls(scale: float) -> list[Outcome]:
    with tempfile.TemporaryDirectory() as directory:
        runtime = LocalRuntime.load(Settings(models=models(Path(directory)), engine="echo", log_level="error"))
        app = create_app(runtime)
        await runtime.open()
        gc.freeze()
        found: list[tuple[float, LargeBody]] = []
        count = 0
        for one in large_bodies(scale / 4, COUNTS):
            seconds, _ = await loop_seconds(app, one)
            found = sorted([*found, (seconds, one)], key=lambda pair: -pair[0])[:REPEATED]
            count += 1
        again = [(min([(await loop_seconds(app, one))[0] for _ in range(3)]), one) for _, one in found]
        await runtime.close()
    worst_s, worst = max(again, key=lambda pair: pair[0])
    shown = f"{1000 * worst_s:.1f} ms ({worst.path}, {worst.title})"
    return [Outcome("largest hold of the event loop", count, shown, f"<= {MOST_MS:g} ms", 1000 * worst_s <= MOST_MS)]


def shares(_: Path, scale: float) -> list[Outcome]:
    """One client floods the server over 50 connections with long texts, another sends one short request at a time."""
    seconds = max(3.0, 30 * scale)
    with serving(locate([MODEL]), "native", "--log-level", "error") as server:
        host, port = server.url.removeprefix("http://").split(":")
        statuses = uvloop.run(_share(host, int(port), seconds))
    total, answered = statuses.total(), statuses[200]
    share = answered / max(1, total)
    return [Outcome("answered beside a flooding client", total, f"{share:.0%}", ">= 95 %", share >= 0.95)]


async def _share(host: str, port: int, seconds: float) -> Counter[int]:
    until = time.monotonic() + seconds
    flood = [asyncio.ensure_future(_ask("127.0.0.2", host, port, FLOOD, until)) for _ in range(FLOODING)]
    await asyncio.sleep(seconds / 10)
    statuses = await _ask("127.0.0.3", host, port, SHORT, until)
    for one in flood:
        one.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    return statuses


async def _ask(address: str, host: str, port: int, body: str, until: float) -> Counter[int]:
    """Sends a request again and again from an address of this machine. Returns the statuses."""
    statuses: Counter[int] = Counter()
    request = request_bytes("/classify", body.encode())
    reader, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
    while time.monotonic() < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(size.split(b":")[1]))
        status = int(head.split()[1])
        statuses[status] += 1
        await asyncio.sleep(0.2 if status == 503 else 0.02)
    writer.close()
    return statuses
