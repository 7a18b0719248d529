"""What it costs to keep the books: the same requests to servers that keep them and to servers that do not, in turns.

    python loadtest/observing.py [ROUNDS]

The engine does nothing, so that there is little else to be measured. Each round starts every server, sends each the
same number of requests over kept connections, and reads from the system how much processor time their HTTP processes
took: that tells a difference of a percent, which requests a second on a machine with other work do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from pathlib import Path

from generator import Connection, payload
from served import Served, serving

CLIENTS, WARM, REQUESTS = 8, 1_000, 4_000
REQUEST = payload("/classify", json.dumps({"inputs": "A warm, funny and clever film."}).encode())
WAYS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "without": ({"CLOSED_BOOKS": "1"}, ()),
    "with": ({}, ()),
    "access log": ({}, ("--access-log", "true", "--log-format", "json")),
}


def processor_s(server: Served) -> float:
    """That the HTTP process has taken so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def measure(name: str) -> float:
    """Microseconds of processor time for each request."""
    environment, options = WAYS[name]
    with serving([], "echo", *options, environment=environment) as server:
        asyncio.run(send(server.port, WARM))
        before = processor_s(server)
        asyncio.run(send(server.port, REQUESTS))
        return 1e6 * (processor_s(server) - before) / REQUESTS


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_ in range(rounds):
        for name in sorted(WAYS, reverse=bool(round_ % 2)):
            took[name].append(measure(name))
    base = took["without"]
    print("| the books are kept | microseconds of a core for each request | more than without, median (quartiles) |")
    print("|---|---|---|")
    for name, times in took.items():
        more = [100 * (one / other - 1) for one, other in zip(times, base, strict=True)]
        low, middle, high = statistics.quantiles(more, n=4) if rounds > 1 else 3 * more
        print(f"| {name} | {statistics.median(times):.0f} | {middle:+.1f} % ({low:+.1f} to {high:+.1f}) |")


if __name__ == "__main__":
    main()
