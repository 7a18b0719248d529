"""A simulation of load on the real scheduler and a synthetic engine, in virtual time.

`python -m tests.support.simulation` prints the tables that the admission rules were chosen by.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import DeadlineExceeded, Unavailable
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.load import AdmissionPolicy
from swiftlet_serve.telemetry.percentile import percentile
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import BatchResult, Cost, Priority, TimedCall
from tests.support import virtual
from tests.support.fakes import Scheduler

ROW = np.zeros((1, 2), np.float32)
SHORT, LONG = 25, 300
CLASSES: dict[int, float] = {SHORT: 0.9, LONG: 0.1}  # lengths, with their shares of the requests


@dataclass
class Executor:
    """Cores with a known latency, which is roughly that of MobileBERT int8."""

    size: int = 2
    fixed_s: float = 2.4e-3
    token_s: float = 1e-4
    square_s: float = 1e-7
    noise: float = 0.1
    slowdown: Callable[[float], float] = lambda now: 1.0
    seed: int = 1
    ready: bool = True
    restarts: int = 0
    kernel_faults: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    golden: Sequence[int] = ()  # lengths of the calls that were timed while the engine was loaded
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def cost(self, model: str) -> Cost:
        return Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return [TimedCall(tokens, self.call_s([tokens])) for tokens in self.golden]

    def runtime(self, model: str) -> str:
        return "simulation"

    async def open(self) -> None:
        pass

    def call_s(self, lengths: Sequence[int]) -> float:
        """Returns the seconds of a call, without noise."""
        tokens = len(lengths) * max(lengths)
        return self.fixed_s + tokens * self.token_s + tokens * max(lengths) * self.square_s

    async def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        seconds = self.call_s([len(one.input_ids) for one in encodings])
        seconds *= self.slowdown(asyncio.get_running_loop().time()) * math.exp(self._random.gauss(0, self.noise))
        self.busy_s += seconds
        await asyncio.sleep(seconds)
        return BatchResult([ROW for _ in encodings], seconds)

    async def add_model(self, model: str, path: Path) -> None:
        raise NotImplementedError

    async def remove_model(self, model: str) -> None:
        raise NotImplementedError

    async def close(self, grace_s: float) -> bool:
        return True


@dataclass
class Result:
    """The result of one request."""

    arrived: float
    length: int
    priority: Priority
    client: str = ""
    outcome: str = "lost"  # or ok, refused, late
    seconds: float = math.nan
    retry_s: float = 0.0


@dataclass
class Client:
    """Sends requests in an open loop, `rate(now)` per second on average, with lengths drawn from `classes`."""

    rate: Callable[[float], float]
    classes: dict[int, float] = field(default_factory=lambda: CLASSES)
    priority: Priority = "interactive"
    timeout_s: float = 1.0
    retries: int = 0  # without a pause, after a refusal or a late answer
    sequences: int = 1  # of each request
    seed: int = 1
    name: str = ""


def encoding(length: int) -> Encoding:
    """Returns a sequence of this length."""
    zeros = np.zeros(length, np.int64)
    return Encoding(zeros, zeros, zeros[:1])


ENCODINGS = {length: encoding(length) for length in range(1, 513)}


async def ask(scheduler: Scheduler, result: Result, client: Client) -> None:
    """Sends one request and waits until its deadline at most, as a pipeline does."""
    loop = asyncio.get_running_loop()
    sequences = [ENCODINGS[result.length]] * client.sequences
    try:
        async with asyncio.timeout(client.timeout_s):
            deadline, record = result.arrived + client.timeout_s, RequestRecord(account=client.name)
            await asyncio.gather(*scheduler.submit(sequences, deadline, client.priority, record))
        result.outcome = "ok"
    except Unavailable as refusal:
        result.outcome, result.retry_s = "refused", refusal.retry_after or 0.0
    except (DeadlineExceeded, TimeoutError):
        result.outcome = "late"
    result.seconds = loop.time() - result.arrived


async def _send(scheduler: Scheduler, client: Client, until: float, results: list[Result]) -> None:
    loop, rng, tasks = asyncio.get_running_loop(), random.Random(client.seed), set()

    async def persist(length: int) -> None:
        for _ in range(1 + client.retries):
            result = Result(loop.time(), length, client.priority, client.name)
            results.append(result)
            await ask(scheduler, result, client)
            if result.outcome == "ok":
                return

    while (now := loop.time()) < until:
        rate = client.rate(now)
        await asyncio.sleep(rng.expovariate(rate) if rate else 0.1)
        if rate:
            (length,) = rng.choices(list(client.classes), list(client.classes.values()))
            tasks.add(asyncio.ensure_future(persist(length)))
    await asyncio.gather(*tasks)


def simulate(
    clients: Sequence[Client], until: float, executor: Executor | None = None, policy: AdmissionPolicy = "deadline"
) -> list[Result]:
    """Runs all clients for `until` seconds and returns their requests in the order of arrival."""

    async def main() -> list[Result]:
        dispatcher = Dispatcher(executor or Executor(), clock=asyncio.get_running_loop().time)
        dispatcher.policy = policy
        scheduler = Scheduler(dispatcher, max_queued_tokens=1 << 17)
        results: list[Result] = []
        await asyncio.gather(*(_send(scheduler, client, until, results) for client in clients))
        assert dispatcher.queued_tokens == 0
        return results

    return virtual.run(main())


def capacity(executor: Executor, classes: dict[int, float] = CLASSES) -> float:
    """Returns the requests per second that the executor can do with batches as full as the limits allow."""
    cost = executor.cost("model")

    def one_s(length: int) -> float:
        rows = min(cost.max_rows, max(1, cost.max_tokens // length))
        return executor.call_s([length] * rows) / rows

    return executor.size / sum(share * one_s(length) for length, share in classes.items())


def summary(results: Sequence[Result], until: float) -> dict[str, float]:
    """Returns the goodput and other figures of a simulation of `until` seconds."""
    good = [one for one in results if one.outcome == "ok"]
    by_length = {n: [one for one in results if one.length == n] for n in {one.length for one in results}}
    answered = {n: sum(one.outcome == "ok" for one in ones) / len(ones) for n, ones in by_length.items()}
    return {
        "goodput": len(good) / until,
        "tokens": sum(one.length for one in good) / until,
        "late": sum(one.outcome == "late" for one in results) / len(results),
        "refused": sum(one.outcome == "refused" for one in results) / len(results),
        "p99": percentile([one.seconds for one in good], 0.99),
        "ratio": answered[max(answered)] / (answered[min(answered)] or math.nan),
    }


def _constant(rate: float, _: float) -> float:
    return rate


def main() -> None:
    until = 20.0
    print("| load | policy | goodput / capacity | tokens/s | late | refused | p99 of answers (s) | long / short |")
    print("|---|---|---|---|---|---|---|---|")
    for load in (0.5, 1, 1.5, 3, 10):
        rate = load * capacity(Executor())
        for policy in get_args(AdmissionPolicy):
            client = Client(partial(_constant, rate))
            figures = summary(simulate([client], until, Executor(), policy), until)
            cells = [figures["goodput"] * load / rate, *list(figures.values())[1:]]
            print(f"| {load} | {policy} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
