"""Measures the CPU time of requests with 1, 8 and 32 questions about a text, by the processes of a server.

    python -m loadtest.decision_cost [--model MODEL] [--requests N] [--rate R --seconds S]

Every request has another text of some 60 tokens. Each question has four options. They are the same in all requests,
whose rows the server keeps, or others in each one. CPU time is told, so that other work on the machine matters little.
With --rate, requests with one question arrive at random times, R a second, and the latencies are told instead.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from loadtest.arrivals import poisson
from loadtest.generator import open_loop, send_all
from loadtest.server_process import ServerProcess, cpu_by_role, serving
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.telemetry.percentile import percentile

COUNTS: Final = (1, 8, 32)
WARM_UP: Final = 5
ROUNDS: Final = 3
STATE: Final = (
    "Ticket {}. I was charged twice for my March invoice, and the refund that I was promised last week has not "
    "arrived. I have written three emails. Please fix this today, or I will dispute the charge with my bank and tell "
    "all my friends about it."
)
OPTIONS: Final = {
    "billing": "payments, invoices and refunds",
    "technical": "bugs, outages and integrations",
    "sales": "prices, upgrades and new contracts",
    "other": "anything else",
}


def requests(model: str, count: int, *, new: bool) -> Iterator[bytes]:
    """Yields requests with `count` questions without end. `new` questions differ from those of all other requests."""
    for number in itertools.count():
        questions: list[dict[str, Any]] = [
            {
                "type": "choice",
                "instructions": f"Which team should handle case {i}{f' of day {number}' if new else ''}?",
                "choices": [{"value": value, "description": text} for value, text in OPTIONS.items()],
            }
            for i in range(count)
        ]
        body = {"model": model, "input": STATE.format(number), "questions": questions}
        yield request_bytes("/v1/decisions", json.dumps(body).encode())


async def send(server: ServerProcess, bodies: Iterator[bytes], count: int) -> None:
    """Sends requests one after the other.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client = Client(server.url)

    async def send_one(_: int) -> None:
        response = await client.send(next(bodies))
        if response.status != 200:
            raise SystemExit(f"A request was answered with {response.status}: {response.body.decode()}")

    await send_all(range(count), send_one, 1)
    client.close()


def cost_ms(server: ServerProcess, bodies: Iterator[bytes], count: int) -> tuple[float, float]:
    """Returns the milliseconds of CPU time for each request, in all processes and in the engine's alone."""
    before = cpu_by_role(server.pid)
    asyncio.run(send(server, bodies, count))
    after = cpu_by_role(server.pid)
    spent = {role: 1000 * (after[role] - before[role]) / count for role in after}
    return sum(spent.values()), spent["engine"]


async def latencies_ms(server: ServerProcess, bodies: Iterator[bytes], rate: float, seconds: float) -> list[float]:
    """Sends requests at random times, and returns their latencies, from the time when each was due.

    Raises:
        SystemExit: a request was not answered with 200.
    """
    client, found = Client(server.url), list[float]()

    async def send_one(due: float) -> None:
        response = await client.send(next(bodies))
        found.append(1000 * (time.monotonic() - due))
        if response.status != 200:
            raise SystemExit(f"A request was answered with {response.status}: {response.body.decode()}")

    await open_loop(poisson(rate, seconds, random.Random(0)), send_one)
    client.close()
    return sorted(found)


def measure_latency(model: str, name: str, rate: float, seconds: float) -> None:
    """Prints the latencies of requests with one question, with all cores."""
    print("| Options | Requests | Requests/s | p50 | p99 | max |\n|---|---|---|---|---|---|")
    with serving([model], "native", "--spare-engine", "false") as server:
        for new in (False, True):
            bodies = requests(name, 1, new=new)
            asyncio.run(send(server, bodies, WARM_UP))
            found = asyncio.run(latencies_ms(server, bodies, rate, seconds))
            p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
            kind = "new" if new else "known"
            print(
                f"| {kind} | {len(found)} | {rate:g} | {p50:.1f} ms | {p99:.1f} ms | {found[-1]:.1f} ms |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilebert-embed", help="model to serve and to ask")
    parser.add_argument("--requests", type=int, default=40, help="requests of a round")
    parser.add_argument("--rate", type=float, help="requests a second, whose latencies are measured")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of each measurement with --rate")
    arguments = parser.parse_args()
    name = arguments.model.rstrip("/").rpartition("/")[2]
    if arguments.rate:
        measure_latency(arguments.model, name, arguments.rate, arguments.seconds)
        return
    print("| Questions | Options | CPU time | of the engine | beside one question |\n|---|---|---|---|---|")
    with serving([arguments.model], "native", "--cores", "1", "--spare-engine", "false") as server:
        for new in (False, True):
            of_one = 0.0
            for count in COUNTS:
                bodies = requests(name, count, new=new)
                asyncio.run(send(server, bodies, WARM_UP))
                rounds = [cost_ms(server, bodies, arguments.requests) for _ in range(ROUNDS)]
                whole, engine = (median(values) for values in zip(*rounds, strict=True))
                of_one = of_one or whole
                kind = "new" if new else "known"
                print(f"| {count} | {kind} | {whole:.1f} ms | {engine:.1f} ms | {whole / of_one:.1f} × |", flush=True)


if __name__ == "__main__":
    main()
