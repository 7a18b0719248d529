"""Load on the real scheduler and a synthetic engine, in virtual time: what comes in, what comes back, and when.

`python tests/support/simulation.py` prints the tables by which the rules were chosen.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import DeadlineExceeded, Unavailable
from swiftlet_serve.service.percentile import percentile
from swiftlet_serve.service.scheduling.batcher import Batcher, Dispatcher
from swiftlet_serve.service.types import BatchResult, Cost, Priority, Scheduler, TimedCall
from tests.support import virtual

ROW = np.zeros((1, 2), np.float32)
SHORT, LONG = 25, 300
CLASSES: dict[int, float] = {SHORT: 0.9, LONG: 0.1}  # lengths and their shares of the requests


@dataclass
class Executor:
    """Cores with a known pace: that of MobileBERT in int8, about."""

    size: int = 2
    fixed_s: float = 2.4e-3
    token_s: float = 1e-4
    square_s: float = 1e-7
    noise: float = 0.1
    slower: Callable[[float], float] = lambda now: 1.0
    seed: int = 1
    ready: bool = True
    golden: Sequence[int] = ()  # lengths of what ran while it was loaded
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def cost(self, model: str) -> Cost:
        return Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return [TimedCall(tokens, self.takes_s([tokens])) for tokens in self.golden]

    async def open(self) -> None:
        pass

    def takes_s(self, lengths: Sequence[int]) -> float:
        tokens = len(lengths) * max(lengths)
        return self.fixed_s + tokens * self.token_s + tokens * max(lengths) * self.square_s

    async def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> BatchResult:
        seconds = self.takes_s([len(one.input_ids) for one in encodings])
        seconds *= self.slower(asyncio.get_running_loop().time()) * math.exp(self._random.gauss(0, self.noise))
        self.busy_s += seconds
        await asyncio.sleep(seconds)
        return BatchResult([ROW for _ in encodings], seconds)

    async def close(self, grace_s: float) -> bool:
        return True


@dataclass
class Result:
    """What became of one request."""

    arrived: float
    length: int
    priority: Priority
    outcome: str = "lost"  # ok, refused or late
    seconds: float = math.nan
    retry_s: float = 0.0


@dataclass
class Client:
    """Who sends requests: `rate(now)` a second in all, of lengths as in `classes`, in an open loop."""

    rate: Callable[[float], float]
    classes: dict[int, float] = field(default_factory=lambda: CLASSES)
    priority: Priority = "interactive"
    timeout_s: float = 1.0
    retries: int = 0  # at once, after a refusal or a late answer
    encodings: int = 1
    seed: int = 1


def encoding(length: int) -> Encoding:
    zeros = np.zeros(length, np.int64)
    return Encoding(zeros, zeros, zeros[:1])


ENCODINGS = {length: encoding(length) for length in range(1, 513)}


async def ask(batcher: Batcher, result: Result, client: Client) -> None:
    """One request, answered at its deadline at the latest, as a pipeline does it."""
    loop = asyncio.get_running_loop()
    work = [ENCODINGS[result.length]] * client.encodings
    try:
        async with asyncio.timeout(client.timeout_s):
            await asyncio.gather(*batcher.submit(work, result.arrived + client.timeout_s, client.priority))
        result.outcome = "ok"
    except Unavailable as refusal:
        result.outcome, result.retry_s = "refused", refusal.retry_after or 0.0
    except (DeadlineExceeded, TimeoutError):
        result.outcome = "late"
    result.seconds = loop.time() - result.arrived


async def _send(batcher: Batcher, client: Client, until: float, results: list[Result]) -> None:
    loop, rng, tasks = asyncio.get_running_loop(), random.Random(client.seed), set()

    async def persist(length: int) -> None:
        for _ in range(1 + client.retries):
            result = Result(loop.time(), length, client.priority)
            results.append(result)
            await ask(batcher, result, client)
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
    clients: Sequence[Client], until: float, executor: Executor | None = None, scheduler: Scheduler = "deadlines"
) -> list[Result]:
    """The requests of all clients until then, in the order of their arrival."""

    async def main() -> list[Result]:
        loop = asyncio.get_running_loop()
        pool = Dispatcher(executor or Executor(), 1 << 17, clock=loop.time, scheduler=scheduler)
        batcher = Batcher("model", pool)
        results: list[Result] = []
        await asyncio.gather(*(_send(batcher, client, until, results) for client in clients))
        assert pool.waiting_tokens == 0
        return results

    return virtual.run(main())


def capacity(executor: Executor, classes: dict[int, float] = CLASSES) -> float:
    """Requests a second, where every batch is as full as it may be."""
    cost = executor.cost("model")

    def one_s(length: int) -> float:
        rows = min(cost.max_rows, max(1, cost.max_tokens // length))
        return executor.takes_s([length] * rows) / rows

    return executor.size / sum(share * one_s(length) for length, share in classes.items())


def summary(results: Sequence[Result], until: float) -> dict[str, float]:
    good = [one for one in results if one.outcome == "ok"]
    by = {n: [one for one in results if one.length == n] for n in {one.length for one in results}}
    accepted = {n: sum(one.outcome == "ok" for one in rs) / len(rs) for n, rs in by.items()}
    return {
        "goodput": len(good) / until,
        "tokens": sum(one.length for one in good) / until,
        "late": sum(one.outcome == "late" for one in results) / len(results),
        "refused": sum(one.outcome == "refused" for one in results) / len(results),
        "p99": percentile([one.seconds for one in good], 0.99),
        "ratio": accepted[max(accepted)] / (accepted[min(accepted)] or math.nan),
    }


def main() -> None:
    until, names = 20.0, ("deadlines", "fifo")
    print("| load | scheduler | goodput, of capacity | tokens/s | late | refused | p99 of answers, s | long/short |")
    print("|---|---|---|---|---|---|---|---|")
    for load in (0.5, 1, 1.5, 3, 10):
        rate = load * capacity(Executor())
        for name in names:
            figures = summary(simulate([Client(lambda _, rate=rate: rate)], until, Executor(), name), until)
            cells = [figures["goodput"] * load / rate, *list(figures.values())[1:]]
            print(f"| {load} | {name} | " + " | ".join(f"{cell:.3g}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
