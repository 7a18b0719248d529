"""The cases. Each takes the scale, 1 for the whole of it, and gives what it counted or measured beside the goal."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import uvloop

import swiftlet_serve.service.engines
from loadtest.arrivals import poisson
from loadtest.generator import Client, Lost, open_loop, payload
from loadtest.overload import run as overload
from loadtest.server_process import STAND_IN, Served, serving
from swiftlet_serve.service.engines.echo import Echo
from swiftlet_serve.service.loading import load_model, locate
from swiftlet_serve.service.percentile import percentile
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.types import Batch
from tests.support.hostile import CANARY, TASKS, Attack, attacks, complaint
from tests.support.restarts import peak, roll

COMING: Final = 200  # slow clients a second, as slowhttptest has it
ENGINES: Final = [*swiftlet_serve.service.engines.__path__, str(STAND_IN / "engines")]
with mock.patch.object(
    swiftlet_serve.service.engines, "__path__", ENGINES
):  # for a moment: it is none of the service's own
    from swiftlet_serve.service.engines import stand_in  # type: ignore[attr-defined]  # a type checker knows no such moment

PATIENCE_S: Final = 60.0
FAULTS: Final = 0.01  # of the encodings
CANCELS: Final = 0.05  # of the requests
REAL: Final = "mobilebert-sst2"


@dataclass(frozen=True)
class Outcome:
    """One line of the table."""

    case: str
    n: int
    result: str
    goal: str
    passed: bool


Case = Callable[[Path, float], list[Outcome]]


def _models(artifact_dir: Path) -> list[Path]:
    return [artifact_dir / f"tiny-{task}" for task in TASKS]


def _count(whole: int, scale: float, least: int) -> int:
    return max(least, round(whole * scale))


# Hostile requests


def hostile(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Attacks over HTTP, some of them alone on their connection."""
    count = _count(100_000, scale, 300)
    with serving(_models(artifact_dir), "echo", "--log-level", "debug") as server:
        wrong = uvloop.run(_attack(server.port, count))
        alive = server.process.poll() is None
        status = server.stop()
        logged = len(CANARY.findall(server.said()))
    faults = sum(wrong.values())
    shown = "; ".join(f"{what}: {times}" for what, times in wrong.items())
    return [
        Outcome("hostile requests", count, shown or "0 x 5xx, 0 echoes", "0 x 5xx, 0 echoes", not faults),
        Outcome("hostile requests: crashes", count, str(int(not alive or status != 0)), "0", alive and status == 0),
        Outcome("hostile requests: echoes in the log", count, str(logged), "0", not logged),
    ]


async def _attack(port: int, count: int) -> Counter[str]:
    wrong: Counter[str] = Counter()
    flood = attacks(seed=count, count=count)
    client = Client(port)

    async def send(attack: Attack) -> None:
        try:
            answer = await asyncio.wait_for(client.ask(_bytes(attack)), PATIENCE_S)
        except Lost:
            wrong["no answer"] += 1
            return
        below = not answer.head.lower().count(b"x-request-id")  # answered before the application was asked
        status = answer.status
        if below and status in (400, 408, 413, 414, 431) and CANARY.search(answer.body.decode()) is None:
            return
        found = complaint(attack, status, answer.head.decode("latin-1"), answer.body)
        if found is not None:
            wrong[found] += 1

    while wave := list(islice(flood, 16)):
        await asyncio.gather(*map(send, wave))
    return wrong


def _bytes(attack: Attack) -> bytes:
    path = attack.path.encode("ascii", "replace").decode()
    return payload(path, attack.body, attack.headers, attack.method, close=len(attack.body) > 1 << 20)


# Canaries


def deliveries(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Interleaved requests, each with a text of its own, over pipelines of this process: HTTP would take an hour.

    The engines are in theirs, which is killed when half of the requests have been made.
    """
    count = _count(1_000_000, scale, 3000)
    wrong, seen = uvloop.run(_deliver(artifact_dir, count))
    bound = f"{wrong} ({seen['answered']:,} answered, {seen['failed']:,} faulty, {seen['cancelled']:,} cancelled"
    return [
        Outcome("wrong deliveries", count, bound + f", {seen['refused']:,} refused)", "0", wrong == 0),
        Outcome("wrong deliveries: faults met", count, str(seen["failed"]), "> 0", seen["failed"] > 0),
        Outcome("wrong deliveries: engines killed", count, str(seen["killed"]), "1", seen["killed"] == 1),
    ]


async def _deliver(artifact_dir: Path, count: int) -> tuple[int, Counter[str]]:
    models = tuple(map(str, _models(artifact_dir)))
    faults = mock.patch.dict(os.environ, {"STAND_IN_FAULTS": str(FAULTS)})
    with faults, mock.patch.object(sys, "path", [str(STAND_IN), *sys.path]):  # for engine processes, a new one too
        runtime = Runtime.start(Settings(models=models, engine="stand_in", cores=2, log_level="error"))
        await runtime.open()
        try:
            return await _interleave(runtime, count)
        finally:
            await runtime.close()


async def _interleave(runtime: Runtime, count: int) -> tuple[int, Counter[str]]:
    pick, seen = random.Random(3), Counter[str]()
    wrong = 0

    async def one(number: int) -> None:
        nonlocal wrong
        if number == count // 2:
            os.kill(runtime._executor.supervisor.serving.pid, signal.SIGKILL)
            seen["killed"] += 1
        task = TASKS[number % 3]
        model = runtime.pipelines[f"tiny-{task}"].model
        request = model.task.Request.model_validate({"inputs": _inputs(task, number)})
        work = asyncio.ensure_future(runtime.pipeline(task, None).answer(request, time.monotonic() + PATIENCE_S))
        if pick.random() < CANCELS:
            for _ in range(pick.randrange(6)):
                await asyncio.sleep(0)
            work.cancel()
        try:
            answer: Any = await work
        except asyncio.CancelledError:
            seen["cancelled"] += 1
            return
        except Exception as error:
            answer = getattr(error, "code", type(error).__name__)
        expected = _expected(model, request)
        if answer == "overloaded":
            seen["refused"] += 1
        elif answer != expected and not (isinstance(expected, set) and answer in expected):
            wrong += 1
        else:
            seen["failed" if isinstance(expected, set) else "answered"] += 1

    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(caller() for _ in range(96)))
    return wrong, seen


def _inputs(task: str, number: int) -> Any:
    filler = " ".join("abcdefgh"[: 1 + number % 8])
    if task == "qa":
        return {"question": f"which {number}?", "context": f"it is {number} {filler}. " * (1 + number % 4)}
    return f"[MASK] {number} {filler}" if task == "fill-mask" else f"{number} {filler}"


def _expected(model: Any, request: Any) -> Any:
    """The one right answer; or, where the engine is at fault, the codes that may tell so."""
    encodings = model.task.encode(request)
    faults = {stand_in.fault(encoding, FAULTS) for encoding in encodings} - {None}
    if faults:
        return {{"raises": "internal", "nan": "invalid_engine_output"}[str(fault)] for fault in faults}
    return model.task.decode(request, encodings, Echo(model.manifest.width).run(Batch.of(encodings)))


# Restarts


def restarts(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Servers behind a balancer, replaced one after the other at 70 % of the load that two of them take."""
    rounds = _count(20, scale, 2)
    rate = 0.7 * asyncio.run(peak(artifact_dir))
    tally, statuses = asyncio.run(roll(artifact_dir, rounds, rate))
    lost, wrong = len(tally.lost) + tally.refused, sum(status != 0 for status in statuses)
    shown = f"{lost} lost, {tally.answered} answered at {rate:.0f} requests/s"
    return [
        Outcome("lost at SIGTERM", rounds, shown, "0", lost == 0 and tally.answered > 0),
        Outcome("exit status after SIGTERM", rounds, f"{wrong} not 0", "0", wrong == 0),
    ]


# Slow clients


def slow_clients(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Connections that send a byte now and then, in their head or their body, beside ordinary callers.

    Before, the same connections go to a socket that nobody reads: they run on this machine, and what they take of it is
    not the server's.
    """
    count, seconds = _count(2000, scale, 100), max(3.0, 20 * scale)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * count) as sink,
        serving(_models(artifact_dir), "echo", "--log-level", "error") as server,
    ):
        before, during, failed = uvloop.run(_slow(server.port, sink.getsockname()[1], count, seconds))
    more = during / before - 1
    good = more <= 0.1 or during - before <= 0.001  # of a millisecond, a tenth is noise
    return [
        Outcome("p99 beside slow clients", count, f"{1000 * before:.1f} -> {1000 * during:.1f} ms", "+ 10 %", good),
        Outcome("failures beside slow clients", count, str(failed), "0", failed == 0),
    ]


async def _slow(port: int, sink: int, count: int, seconds: float) -> tuple[float, float, int]:
    client = Client(port)
    request = payload("/classify", b'{"inputs": "fine"}')

    async def quick() -> tuple[float, int]:
        times, failed = [], 0

        async def send(due: float) -> None:
            nonlocal failed
            try:
                failed += (await client.ask(request)).status != 200
            except (Lost, OSError):
                failed += 1
            times.append(time.monotonic() - due)

        await open_loop(poisson(100, seconds, random.Random(5)), send)
        return percentile(times, 0.99), failed

    pick, here = random.Random(17), asyncio.Semaphore(0)

    async def crawl(to: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", to)
        text = b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n"
        writer.write(text[:20] if number % 2 else text + b"\r\n{")
        try:
            while not reader.at_eof():
                await asyncio.sleep(pick.uniform(1, 2))  # in lockstep they would be a flood, seven times a second
                writer.write(b"X" if number % 2 else b" ")
                await writer.drain()
        finally:
            writer.close()

    async def slow(to: int, number: int) -> None:
        await asyncio.sleep(number / COMING)  # nor do they all come, or run out of time, at once
        here.release()
        while True:  # who is thrown out comes again
            try:
                await crawl(to, number)
            except OSError:
                await asyncio.sleep(1)  # who is not let in, after a while: at once, it would be a flood

    found, failed = [], 0
    for to in (sink, port):
        crawling = [asyncio.ensure_future(slow(to, number)) for number in range(count)]
        for _ in crawling:
            await here.acquire()
        p99, lost = await quick()
        found.append(p99)
        failed += lost
        for one in crawling:
            one.cancel()
        await asyncio.gather(*crawling, return_exceptions=True)
    client.close()
    before, during = found
    return before, during, failed


# Memory


def memory(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Resident memory over mixed requests, a third of them wrong and some given up, after a warm-up."""
    count = _count(1_000_000, scale, 4000)
    with serving(
        _models(artifact_dir), "stand_in", "--log-level", "error", environment={"STAND_IN_FAULTS": "0.01"}
    ) as server:
        samples = uvloop.run(_mix(server, count))
    halves = np.array_split(np.array(samples, float), 2)
    growth = float(np.median(halves[1]) / np.median(halves[0]) - 1)
    # Below the whole count the warm-up is short, and what grows is still the allocator's own reserve.
    goal = 0.01 if scale >= 1 else 0.05
    shown = f"{growth:+.2%} ({samples[0] / 1024:.0f} -> {samples[-1] / 1024:.0f} MiB)"
    return [Outcome("growth of resident memory", count, shown, f"< {goal:.0%}", growth < goal)]


async def _mix(server: Served, count: int) -> list[int]:
    client, pick = Client(server.port), random.Random(11)
    flood = attacks(seed=13, count=10**9)
    samples = []

    async def send(number: int) -> None:
        task = TASKS[number % 3]
        if number % 3 == 2 and number % 2:
            attack = next(flood)
            if len(attack.body) > 10_000:
                return
            request = _bytes(attack)
        else:
            request = payload(f"/{task}", json.dumps({"inputs": _inputs(task, number)}).encode())
        with suppress(Lost, OSError, TimeoutError):
            await asyncio.wait_for(client.ask(request), 0.001 if pick.random() < CANCELS else PATIENCE_S)

    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await send(number)
            if number >= count // 5 and number % max(1, count // 100) == 0:
                samples.append(server.resident_kib())

    await asyncio.gather(*(caller() for _ in range(16)))
    client.close()
    return samples


# Latency


def latency(artifact_dir: Path, scale: float) -> list[Outcome]:  # every case is called so
    """One request after the other: what everything but the engine's call takes, in turn with the bare call."""
    count = _count(2000, scale, 100)
    body = {"inputs": "A warm, funny and clever film that never takes itself too seriously."}
    (path,) = locate([REAL])
    model = load_model(path, "native")
    batch = Batch.of(model.task.encode(model.task.Request.model_validate(body)))
    with serving([path], "native", "--log-level", "error") as server:
        served, bare = uvloop.run(
            _in_turn(server.port, json.dumps(body).encode(), count, lambda: model.engine.run(batch))
        )
    added = 1000 * (percentile(served, 0.5) - percentile(bare, 0.5))
    shown = f"{added:.2f} ms (bare call {1000 * percentile(bare, 0.5):.2f} ms)"
    return [Outcome("added latency, p50, alone", count, shown, "<= 1 ms", added <= 1.0)]


async def _in_turn(port: int, body: bytes, count: int, call: Callable[[], object]) -> tuple[list[float], list[float]]:
    client, request = Client(port), payload("/classify", body)
    served, bare = [], []
    for turn in range(count + 20):
        started = time.perf_counter()
        await client.ask(request)
        between = time.perf_counter()
        call()
        if turn >= 20:
            served.append(between - started)
            bare.append(time.perf_counter() - between)
    client.close()
    return served, bare


# Overload


def overloaded(artifact_dir: Path, scale: float) -> list[Outcome]:  # every case is called so
    """Three and ten times the capacity of an engine with a known rate, and a burst whose clients send again."""
    seconds = max(3.0, 30 * scale)
    report = overload("stand_in", 1000, seconds, (1.0, 3.0, 10.0))
    outcomes = []
    for level in report.levels[1:]:
        share, goal = level.goodput / report.peak, 0.95 if level.multiple == 3 else 0.9
        name, n = f"goodput at {level.multiple:g}x", sum(level.statuses.values())
        outcomes.append(Outcome(name, n, f"{share:.0%} of peak", f">= {goal:.0%}", share >= goal))
    three = report.levels[1]
    refused = three.p99_refused_ms
    outcomes += [
        Outcome("p99 of accepted at 3x", three.statuses.get(200, 0), f"{three.p99_accepted_ms:.0f} ms", "<= 1000 ms",
                three.p99_accepted_ms <= 1000),
        Outcome("p99 of 503s at 3x", three.statuses.get(503, 0), f"{refused:.1f} ms", "<= 20 ms",
                not math.isnan(refused) and refused <= 20),
        Outcome("recovery after a burst", 1, f"{report.recovery_s:.1f} s", "<= 2 s", report.recovery_s <= 2),
    ]  # fmt: skip
    return outcomes


CASES: Final[dict[str, Case]] = {
    "hostile": hostile,
    "deliveries": deliveries,
    "restarts": restarts,
    "slow-clients": slow_clients,
    "memory": memory,
    "latency": latency,
    "overload": overloaded,
}


def table(outcomes: list[Outcome]) -> str:
    """All lines, in markdown."""
    lines = ["| case | n | result | goal | pass |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.case} | {one.n:,} | {one.result} | {one.goal} | {'yes' if one.passed else 'NO'} |" for one in outcomes
    ]
    return "\n".join(lines)
