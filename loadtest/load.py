"""A load: the requests of a workload to one server, sent like a client that retries.

Locust's users (`locustfile.py`) and the verdict (`slo.py`) both send through it, with the same command-line options.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loadtest.arrivals import SHAPES, read_trace, replayed, shaped
from loadtest.backoff import RETRYABLE, backoff_s
from loadtest.generator import closed_loop, open_loop
from loadtest.measurement import CONNECTION_LOST, WRONG_RESPONSE, RequestResult
from loadtest.workload import OTHERS, TASKS, Body, default_workload, read_workload
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes

SOAK_S: Final = 1800.0


@dataclass
class Load:
    """Sends bodies in turn and records each result. Times are of `time.monotonic()`."""

    url: str
    bodies: Sequence[Body]
    retries: int = 2
    give_up_s: float = 10.0  # for each attempt, and for all attempts of a request together
    headers: Mapping[str, str] = field(default_factory=dict)
    on_result: Callable[[RequestResult], None] = lambda _: None
    results: list[RequestResult] = field(default_factory=list)
    started: float = 0.0

    def __post_init__(self) -> None:
        self._client = Client(self.url)
        self._draw = random.Random(2)
        self._next_body = itertools.cycle(self.bodies)

    def path(self, body: Body) -> str:
        """Returns the path on the server that a body is sent to."""
        return self._client.prefix + body.path

    async def run_open(self, times: Sequence[float]) -> None:
        """Sends a request at each of the times, in seconds from now."""
        self.started = time.monotonic()
        await open_loop(times, self.send)
        self._client.close()

    async def run_closed(self, callers: int, seconds: float) -> None:
        """Lets each caller send its next request when its previous one has ended."""
        self.started = time.monotonic()
        await closed_loop([self.send] * callers, seconds)
        self._client.close()

    async def send(self, due: float) -> None:
        """Sends the next body, and retries it as the options allow."""
        body, sent = next(self._next_body), time.monotonic()
        headers = {"X-Request-Timeout-Ms": str(round(1000 * self.give_up_s))} | dict(self.headers)
        request = request_bytes(self.path(body), body.data, headers, host=self._client.host)
        for attempt in itertools.count():
            status, retry_after_s = await self._try(body, request)
            wait = backoff_s(attempt, retry_after_s, self._draw)
            too_late = time.monotonic() + wait > due + self.give_up_s
            if status not in RETRYABLE or attempt == self.retries or too_late:
                break
            await asyncio.sleep(wait)
        result = RequestResult(body.path, due, sent, time.monotonic(), status, attempt + 1)
        self.results.append(result)
        self.on_result(result)

    async def _try(self, body: Body, request: bytes) -> tuple[int, float]:
        """Returns the status of one attempt, and the seconds of its Retry-After header."""
        try:
            async with asyncio.timeout(self.give_up_s):
                response = await self._client.send(request)
        except (ConnectionLost, OSError, TimeoutError):
            return CONNECTION_LOST, 0.0
        if response.status == 200:
            return (200 if body.is_answered_by(response.body) else WRONG_RESPONSE), 0.0
        return response.status, response.retry_after


def add_options(parser: ArgumentParser) -> None:
    """Adds the options that describe a load."""
    add = parser.add_argument
    add("--rate", type=float, help="Requests per second.")
    add("--shape", choices=SHAPES, default="steady", help="How the rate changes over time. Default: steady.")
    add("--seconds", type=float, help="Duration of a load. Default for a soak: 1800.")
    add("--trace", type=Path, help="File of arrival times in seconds, one on each line, scaled to the rate.")
    add("--bodies", type=Path, action="append", default=[], help="File of JSON bodies, one on each line. Repeatable.")
    routes = [path.removeprefix("/") for path in (*TASKS, *OTHERS)]
    add("--task", choices=routes, action="append", default=[], help="Use only these default bodies. Repeatable.")
    add("--retries", type=int, default=2, help="Retries of a request. Default: 2.")
    add("--give-up-s", type=float, default=10.0, help="Seconds after which a client gives up. Default: 10.")
    add("--header", action="append", default=[], help="Header of every request, as NAME: VALUE. Repeatable.")


def arrival_times(options: Namespace, rate: float, seconds: float, seed: int) -> list[float]:
    """Returns the arrival times that the options describe."""
    if options.trace:
        return replayed(read_trace(options.trace), rate, seconds)
    return shaped(options.shape, rate, seconds, random.Random(seed))


def load_of(options: Namespace, url: str, seed: int | None = None) -> Load:
    """Returns the load that the options describe. With a seed, its bodies are shuffled."""
    headers = {name.strip(): value.strip() for name, _, value in (header.partition(":") for header in options.header)}
    tasks = [f"/{task}" for task in options.task] or list(TASKS)
    bodies = read_workload(options.bodies) if options.bodies else default_workload(1000, tasks=tasks)
    if seed is not None:
        bodies = random.Random(seed).sample(bodies, len(bodies))
    return Load(url, bodies, retries=options.retries, give_up_s=options.give_up_s, headers=headers)


def duration_s(options: Namespace, default: float) -> float:
    """Returns how long a load lasts."""
    return float(options.seconds or (SOAK_S if options.shape == "soak" else default))
