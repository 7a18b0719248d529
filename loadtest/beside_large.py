"""Measures what the largest request of each route does to short ones: their p99 with it and without it.

    python -m loadtest.beside_large BODIES [--only PATH ...] [--engine echo] [--rate R] [--seconds S]

BODIES is what `python -m loadtest.stalls --bodies` wrote: for each route, the request that keeps the event loop busy
for longest. It is sent once a second, from a process of its own. Short requests to `/classify` arrive at random times:
by default 30 % of the rate that eight callers reach. Each route is measured for S seconds, in turn with nothing beside
the short requests, and latency counts from the time when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Final

from loadtest.arrivals import poisson
from loadtest.generator import closed_loop, open_loop
from loadtest.request_cost import make_small
from loadtest.server_process import serving
from loadtest.stalls import MODELS
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.telemetry.percentile import percentile

SHORT: Final = json.dumps({"model": "albert-sst2", "inputs": "A warm, funny and clever film."}).encode()
CALLERS: Final = 8
SHARE: Final = 0.3
CALIBRATION_S: Final = 3.0
GOAL_MS: Final = 10.0
SENDER: Final = """
import sys, time, urllib.error, urllib.request
url, body = sys.argv[1], sys.stdin.buffer.read()
while True:
    due = time.monotonic() + 1
    try:
        urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).read()
    except urllib.error.HTTPError:
        pass
    time.sleep(max(0, due - time.monotonic()))
"""  # a request that a rate limit or a deadline refuses counts as well


async def highest_rate(url: str) -> float:
    """Returns the requests a second of a closed loop."""
    client, count = Client(url), 0

    async def send(_: float) -> None:
        nonlocal count
        await client.send(request_bytes("/classify", SHORT))
        count += 1

    await closed_loop([send] * CALLERS, CALIBRATION_S)
    client.close()
    return count / CALIBRATION_S


async def p99_ms(url: str, rate: float, seconds: float) -> float:
    """Returns the 99th percentile of the latency of short requests, in milliseconds.

    Raises:
        SystemExit: a short request was not answered with 200.
    """
    client, found = Client(url), list[float]()

    async def send(due: float) -> None:
        response = await client.send(request_bytes("/classify", SHORT))
        found.append(1000 * (time.monotonic() - due))
        if response.status != 200:
            raise SystemExit(f"A short request was answered with {response.status}: {response.body.decode()}")

    await open_loop(poisson(rate, seconds, random.Random(0)), send)
    client.close()
    return percentile(found, 0.99)


def beside(url: str, path: str, body: bytes, rate: float, seconds: float) -> float:
    """Returns the p99 of short requests while a large one is sent once a second."""
    with subprocess.Popen([sys.executable, "-c", SENDER, url + path], stdin=subprocess.PIPE) as sender:
        assert sender.stdin is not None  # noqa: S101  # for the type checker
        sender.stdin.write(body)
        sender.stdin.close()
        try:
            return asyncio.run(p99_ms(url, rate, seconds))
        finally:
            sender.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bodies", type=Path)
    parser.add_argument("--only", nargs="+", metavar="PATH")
    parser.add_argument("--engine", default="echo")
    parser.add_argument("--rate", type=float, help="short requests a second")
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    bodies = json.loads(arguments.bodies.read_bytes())
    paths = arguments.only or list(bodies)
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        small = [make_small(task, made) for task in ("entities", "score") if f"/{task}" in paths]
        server = stack.enter_context(serving([*MODELS, *small], arguments.engine, "--spare-engine", "false"))
        rate = arguments.rate or SHARE * asyncio.run(highest_rate(server.url))
        print(f"{current_environment('tokenizers').description()} Engine {arguments.engine}, {rate:.0f} requests/s.\n")
        print("| Route, once a second | Bytes | p99 without it | p99 with it | More |\n|---|---:|---:|---:|---:|")
        without = [asyncio.run(p99_ms(server.url, rate, arguments.seconds))]
        for path in paths:
            body = json.dumps(bodies[path], ensure_ascii=False).encode()
            found = beside(server.url, path, body, rate, arguments.seconds)
            without.append(asyncio.run(p99_ms(server.url, rate, arguments.seconds)))
            alone = median(without[-2:])
            more = found - alone
            mark = "" if more <= GOAL_MS else " (above the goal)"
            print(f"| `{path}` | {len(body)} | {alone:.1f} ms | {found:.1f} ms | {more:.1f} ms{mark} |", flush=True)


if __name__ == "__main__":
    main()
