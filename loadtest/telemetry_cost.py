"""What it costs to keep the stats: the same requests to servers that keep them and to servers that do not, in turns.

    python loadtest/telemetry_cost.py [ROUNDS]

The engine does nothing, so that there is little else to be measured. All servers run at the same time and are asked in
turns, over kept connections; the system says how much processor time each HTTP process took. That tells a difference of
a percent, which requests a second do not; and as even that takes a quiet machine, the stats are also timed alone.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from loadtest.generator import Connection, payload
from loadtest.server_process import Served, serving
from swiftlet_serve.service.telemetry.request_record import STAGES, RequestRecord
from swiftlet_serve.service.telemetry.request_stats import RequestStats

CLIENTS, WARM, REQUESTS = 8, 800, 400
TIMES = 2_000
REQUEST = payload("/classify", json.dumps({"inputs": "A warm, funny and clever film."}).encode())
WAYS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "without": ({"CLOSED_BOOKS": "1"}, ()),
    "with": ({}, ()),
    "access log": ({}, ("--access-log", "true", "--log-format", "json")),
}


def processor_s(server: Served) -> float:
    """That the threads of the HTTP process have taken so far."""
    threads = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(1e-9 * int(thread.read_text().split()[0]) for thread in threads)


async def send(port: int, requests: int) -> None:
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(CLIENTS)]

    async def client(connection: Connection) -> None:
        for _ in range(requests // CLIENTS):
            answer = await connection.ask(REQUEST)
            if answer.status != 200:
                raise SystemExit(f"it was answered {answer.status}")

    await asyncio.gather(*(client(connection) for _, connection in made))
    for _, connection in made:
        connection.close()


def measure(server: Served) -> float:
    """Microseconds of processor time for each request."""
    before = processor_s(server)
    asyncio.run(send(server.port, REQUESTS))
    return 1e6 * (processor_s(server) - before) / REQUESTS


def booking_us() -> float:
    """Microseconds of processor time that the stats themselves take for a request with all stages, and its call."""
    stats, record = RequestStats({"model": "classify"}), RequestRecord(model="model")
    for stage in STAGES:
        record.add_stage(stage, 0.0, 0.001)
    record.accepted, record.status, record.ended = True, 200, record.started + 0.005
    took = []
    for _ in range(20):
        before = time.thread_time()
        for _ in range(TIMES):
            stats.accept(record)
            stats.finish(record)
            stats.add_batch("model", 1, 8, 0)
        took.append(1e6 * (time.thread_time() - before) / TIMES)
    return min(took)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving([], "echo", *options, environment=environment))
            for name, (environment, options) in WAYS.items()
        }
        for server in servers.values():
            asyncio.run(send(server.port, WARM))
        for _ in range(rounds):
            for name, server in servers.items():
                took[name].append(measure(server))
    print("| the stats are kept | microseconds of a core for each request | more than without, median (quartiles) |")
    print("|---|---|---|")
    for name, times in took.items():
        more = [100 * (one / other - 1) for one, other in zip(times, took["without"], strict=True)]
        low, middle, high = statistics.quantiles(more, n=4)
        print(f"| {name} | {statistics.median(times):.0f} | {middle:+.1f} % ({low:+.1f} to {high:+.1f}) |")
    alone = booking_us()
    print(f"\nBy themselves the stats take {alone:.1f} us: {100 * alone / statistics.median(took['without']):.1f} %.")


if __name__ == "__main__":
    main()
