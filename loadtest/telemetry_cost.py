"""Measures the cost of request statistics: the same requests to servers with and without them, in turn.

    python -m loadtest.telemetry_cost [ROUNDS]

The engine `echo` does nothing, so that other costs are small. All servers run at once and get requests in turn, over
kept connections. The CPU time of each HTTP process resolves a difference of one percent, which requests per second do
not. The statistics are also timed alone, because even the CPU time needs a quiet machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import ExitStack

from loadtest.generator import send_all
from loadtest.server_process import ServerProcess, cpu_s, serving
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.telemetry.percentile import percentile
from swiftlet_serve.telemetry.request_record import STAGES, RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats

CLIENTS, WARM_UP_REQUESTS, REQUESTS = 8, 800, 400
REPEATS = 2_000
REQUEST = request_bytes("/classify", json.dumps({"inputs": "A warm, funny and clever film."}).encode())
VARIANTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "without": ({"STAND_IN_WITHOUT_STATS": "1"}, ()),
    "with": ({}, ()),
    "with, and access log": ({}, ("--access-log", "true", "--log-format", "json")),
}


async def send(url: str, requests: int) -> None:
    """Sends requests from CLIENTS clients.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client = Client(url)

    async def send_one(_: int) -> None:
        response = await client.send(REQUEST)
        if response.status != 200:
            raise SystemExit(f"A request was answered with {response.status}.")

    await send_all(range(requests), send_one, CLIENTS)
    client.close()


def request_cost_us(server: ServerProcess) -> float:
    """Returns the microseconds of CPU time for each request."""
    before = cpu_s([server.pid])  # of the HTTP process alone
    asyncio.run(send(server.url, REQUESTS))
    return 1e6 * (cpu_s([server.pid]) - before) / REQUESTS


def statistics_cost_us() -> float:
    """Returns the microseconds of CPU time of the statistics alone, for a request with all stages and its batch."""
    stats, record = RequestStats(), RequestRecord(model="model")
    stats.add_model("model", "classify")
    for stage in STAGES:
        record.add_stage(stage, 0.0, 0.001)
    record.accepted, record.status, record.ended = True, 200, record.started + 0.005
    costs = []
    for _ in range(20):
        before = time.thread_time()
        for _ in range(REPEATS):
            stats.accept(record)
            stats.finish(record)
            stats.add_batch("model", 1, 8, 0)
        costs.append(1e6 * (time.thread_time() - before) / REPEATS)
    return min(costs)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    costs: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving([], "echo", *options, environment=environment))
            for name, (environment, options) in VARIANTS.items()
        }
        for server in servers.values():
            asyncio.run(send(server.url, WARM_UP_REQUESTS))
        for _ in range(rounds):
            for name, server in servers.items():
                costs[name].append(request_cost_us(server))
    print("| statistics | microseconds of a core per request | more than without, median (quartiles) |")
    print("|---|---|---|")
    for name, own in costs.items():
        more = [100 * (cost / without - 1) for cost, without in zip(own, costs["without"], strict=True)]
        low, middle, high = (percentile(more, share) for share in (0.25, 0.5, 0.75))
        print(f"| {name} | {statistics.median(own):.0f} | {middle:+.1f} % ({low:+.1f} to {high:+.1f}) |")
    alone, without = statistics_cost_us(), statistics.median(costs["without"])
    print(f"\nThe statistics alone take {alone:.1f} us per request: {100 * alone / without:.1f} %.")


if __name__ == "__main__":
    main()
