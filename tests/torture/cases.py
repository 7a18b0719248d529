"""The torture cases. A case gets the artifacts and the scale, and returns what it measured beside each goal."""

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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import uvloop

import swiftlet_serve.engines
from loadtest.arrivals import poisson
from loadtest.generator import open_loop, send_all
from loadtest.overload import run as run_overload
from loadtest.server_process import STAND_IN, ServerProcess, resident_kib, serving
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes
from swiftlet_serve.inference.loading import load_model, locate
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.percentile import percentile
from swiftlet_serve.types import Batch
from tests.support.hostile import CANARY, TASKS, Attack, attacks, complaint
from tests.support.restarts import peak, roll
from tests.torture.artifacts import hostile_artifacts
from tests.torture.dialects import hostile_dialects
from tests.torture.handshakes import handshakes
from tests.torture.outcome import Outcome, scaled
from tests.torture.ray_cluster import killed_node
from tests.torture.ray_serving import changed_replicas
from tests.torture.scoring import killed_jobs
from tests.torture.shares import shares, stalls
from tests.torture.switches import switch_latency, switches

ENGINES: Final = [*swiftlet_serve.engines.__path__, str(STAND_IN / "engines")]
with mock.patch.object(swiftlet_serve.engines, "__path__", ENGINES):
    from swiftlet_serve.engines import stand_in  # type: ignore[attr-defined]  # found by the patched path

PATIENCE_S: Final = 60.0
FAULT_SHARE: Final = 0.01  # of the sequences
CANCELLED_SHARE: Final = 0.05  # of the requests
SLOW_CLIENTS_PER_S: Final = 200  # as slowhttptest opens them
LATENCY_MODEL: Final = "mobilebert-sst2"


Case = Callable[[Path, float], list[Outcome]]


def _models(artifact_dir: Path) -> list[Path]:
    return [artifact_dir / f"tiny-{task}" for task in TASKS]


# Hostile requests


def hostile_requests(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Sends attacks over HTTP. The large ones have a connection of their own."""
    count = scaled(100_000, scale, 300)
    with serving(_models(artifact_dir), "echo", "--log-level", "debug") as server:
        complaints = uvloop.run(_attack(server.url, count))
        alive = server.process.poll() is None
        status = server.stop()
        echoes = len(CANARY.findall(server.logged()))
    shown = "; ".join(f"{text}: {times}" for text, times in complaints.items()) or "0 x 5xx, 0 echoes"
    crashed = not alive or status != 0
    return [
        Outcome("hostile requests", count, shown, "0 x 5xx, 0 echoes", not complaints.total()),
        Outcome("hostile requests: crashes", count, str(int(crashed)), "0", not crashed),
        Outcome("hostile requests: echoes in the log", count, str(echoes), "0", not echoes),
    ]


async def _attack(url: str, count: int) -> Counter[str]:
    complaints: Counter[str] = Counter()
    client = Client(url)

    async def send(attack: Attack) -> None:
        try:
            response = await asyncio.wait_for(client.send(_request(attack)), PATIENCE_S)
        except ConnectionLost:
            complaints["no response"] += 1
            return
        status, body = response.status, response.body
        from_http_layer = "x-request-id" not in response.headers  # the application did not see the request
        if from_http_layer and status in (400, 408, 413, 414, 431) and CANARY.search(body.decode()) is None:
            return
        head = "\r\n".join([response.reason, *(f"{name}: {value}" for name, value in response.headers.items())])
        found = complaint(attack, status, head, body)
        if found is not None:
            complaints[found] += 1

    flood = attacks(seed=count, count=count)
    while wave := list(islice(flood, 16)):  # in waves, so that many arrive at once
        await asyncio.gather(*map(send, wave))
    client.close()
    return complaints


def _request(attack: Attack) -> bytes:
    path = attack.path.encode("ascii", "replace").decode()
    return request_bytes(path, attack.body, attack.headers, attack.method, close=len(attack.body) > 1 << 20)


# Deliveries


def deliveries(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Sends interleaved requests with distinct texts through pipelines of this process. HTTP would take an hour.

    The engines run in a worker process, which is killed after half of the requests.
    """
    count = scaled(1_000_000, scale, 3000)
    wrong, seen = uvloop.run(_deliver(artifact_dir, count))
    shown = f"{wrong} ({seen['answered']:,} answered, {seen['failed']:,} faulty, {seen['cancelled']:,} cancelled"
    return [
        Outcome("wrong deliveries", count, shown + f", {seen['refused']:,} refused)", "0", wrong == 0),
        Outcome("wrong deliveries: faults met", count, str(seen["failed"]), "> 0", seen["failed"] > 0),
        Outcome("wrong deliveries: engines killed", count, str(seen["killed"]), "1", seen["killed"] == 1),
    ]


async def _deliver(artifact_dir: Path, count: int) -> tuple[int, Counter[str]]:
    models = tuple(map(str, _models(artifact_dir)))
    faults = mock.patch.dict(os.environ, {"STAND_IN_FAULTS": str(FAULT_SHARE)})
    with faults, mock.patch.object(sys, "path", [str(STAND_IN), *sys.path]):  # worker processes inherit both
        runtime = LocalRuntime.start(Settings(models=models, engine="stand_in", cores=2, log_level="error"))
        await runtime.open()
        try:
            return await _interleave(runtime, count)
        finally:
            await runtime.close()


async def _interleave(runtime: LocalRuntime, count: int) -> tuple[int, Counter[str]]:
    draw, seen = random.Random(3), Counter[str]()
    wrong = 0

    async def send(number: int) -> None:
        nonlocal wrong
        if number == count // 2:
            os.kill(runtime._executor.supervisor.serving.pid, signal.SIGKILL)
            seen["killed"] += 1
        task = TASKS[number % 3]
        model = runtime.pipelines[f"tiny-{task}"].model
        request = model.task.Request.model_validate({"inputs": _inputs(task, number)})
        pipeline = runtime.catalog.pipeline(task, None)
        work = asyncio.ensure_future(pipeline.answer(request, time.monotonic() + PATIENCE_S))
        if draw.random() < CANCELLED_SHARE:
            for _ in range(draw.randrange(6)):
                await asyncio.sleep(0)
            work.cancel()
        try:
            result: Any = await work
        except asyncio.CancelledError:
            seen["cancelled"] += 1
            return
        except Exception as error:
            result = getattr(error, "code", type(error).__name__)
        expected = _expected(model, request)
        if result == "overloaded":
            seen["refused"] += 1
        elif result != expected and not (isinstance(expected, set) and result in expected):
            wrong += 1
        else:
            seen["failed" if isinstance(expected, set) else "answered"] += 1

    await send_all(range(count), send, concurrency=96)
    return wrong, seen


def _inputs(task: str, number: int) -> Any:
    filler = " ".join("abcdefgh"[: 1 + number % 8])
    if task == "qa":
        return {"question": f"which {number}?", "context": f"it is {number} {filler}. " * (1 + number % 4)}
    return f"[MASK] {number} {filler}" if task == "fill-mask" else f"{number} {filler}"


def _expected(model: Any, request: Any) -> Any:
    """Returns the right response, or the set of error codes that a faulty engine may cause."""
    encodings = model.task.encode(request)
    faults = {stand_in.fault(encoding, FAULT_SHARE) for encoding in encodings} - {None}
    if faults:
        return {{"raises": "internal", "nan": "invalid_engine_output"}[str(fault)] for fault in faults}
    return model.task.decode(request, encodings, Echo(model.manifest.width).run(Batch.of(encodings)))


# Restarts


def restarts(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Replaces servers behind a load balancer, one after the other, at 70 % of the load that two servers take."""
    rounds = scaled(20, scale, 2)
    rate = 0.7 * asyncio.run(peak(artifact_dir))
    tally, statuses = asyncio.run(roll(artifact_dir, rounds, rate))
    lost, failed_exits = len(tally.lost) + tally.refused, sum(status != 0 for status in statuses)
    shown = f"{lost} lost, {tally.answered} answered at {rate:.0f} requests/s"
    return [
        Outcome("lost at SIGTERM", rounds, shown, "0", lost == 0 and tally.answered > 0),
        Outcome("exit status after SIGTERM", rounds, f"{failed_exits} not 0", "0", failed_exits == 0),
    ]


# Slow clients


def slow_clients(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Opens connections that send a byte now and then, in head or body, beside ordinary callers.

    The same connections first go to a socket that is never read: their clients run on this machine, and their CPU time
    must not count against the server.
    """
    count, seconds = scaled(2000, scale, 100), max(3.0, 20 * scale)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=2 * count) as sink,
        serving(_models(artifact_dir), "echo", "--log-level", "error") as server,
    ):
        before_s, during_s, failed = uvloop.run(_slow(server, sink.getsockname()[1], count, seconds))
    more = during_s / before_s - 1
    passed = more <= 0.1 or during_s - before_s <= 0.0001  # a tenth of a millisecond is noise
    shown = f"{1000 * before_s:.1f} -> {1000 * during_s:.1f} ms"
    return [
        Outcome("p99 beside slow clients", count, shown, "+ 10 %", passed),
        Outcome("failures beside slow clients", count, str(failed), "0", failed == 0),
    ]


async def _slow(server: ServerProcess, sink: int, count: int, seconds: float) -> tuple[float, float, int]:
    client = Client(server.url)
    request = request_bytes("/classify", b'{"inputs": "fine"}')

    async def quick() -> tuple[float, int]:
        """Returns the p99 of ordinary callers in seconds, and the number of failures."""
        latencies_s: list[float] = []
        failed = 0

        async def send(due: float) -> None:
            nonlocal failed
            try:
                failed += (await client.send(request)).status != 200
            except (ConnectionLost, OSError):
                failed += 1
            latencies_s.append(time.monotonic() - due)

        await open_loop(poisson(100, seconds, random.Random(5)), send)
        return percentile(latencies_s, 0.99), failed

    draw, opened = random.Random(17), asyncio.Semaphore(0)

    async def crawl(port: int, number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        text = b"POST /classify HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n"
        writer.write(text[:20] if number % 2 else text + b"\r\n{")
        try:
            while not reader.at_eof():
                await asyncio.sleep(draw.uniform(1, 2))  # at random, so that the bytes do not arrive in bursts
                writer.write(b"X" if number % 2 else b" ")
                await writer.drain()
        finally:
            writer.close()

    async def slow(port: int, number: int) -> None:
        await asyncio.sleep(number / SLOW_CLIENTS_PER_S)
        opened.release()
        while True:  # a closed connection is opened again
            try:
                await crawl(port, number)
            except OSError:
                await asyncio.sleep(1)  # without a pause, refused connections would be a flood

    latencies_s, failed = [], 0
    for port in (sink, server.port):
        crawling = [asyncio.ensure_future(slow(port, number)) for number in range(count)]
        for _ in crawling:
            await opened.acquire()
        p99_s, lost = await quick()
        latencies_s.append(p99_s)
        failed += lost
        for one in crawling:
            one.cancel()
        await asyncio.gather(*crawling, return_exceptions=True)
    client.close()
    before_s, during_s = latencies_s
    return before_s, during_s, failed


# Starvation


def starvation(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Sends ordinary requests beside connections that pipeline requests for a page without an end, and without a key.

    The large body at the start blocks reads for a moment: the order of reads must recover from it.
    """
    count, seconds = 64, max(5.0, 20 * scale)
    outcomes = []
    for name, trigger in (("", b""), (", after a large body", b'{"inputs": [' + b'"a", ' * 200_000 + b'"a"]}')):
        with serving(_models(artifact_dir), "echo", "--log-level", "warning") as server:
            alone_s, beside_s, failed = uvloop.run(_starve(server, count, seconds, trigger))
            logged = server.logged().count("Pages and pipelined requests")
        shown = f"{1000 * alone_s:.1f} -> {1000 * beside_s:.1f} ms"
        passed = beside_s <= max(3 * alone_s, 0.005)  # some milliseconds are noise
        outcomes += [
            Outcome(f"p99 beside pipelining{name}", count, shown, "<= 3 x", passed),
            Outcome(f"failures beside pipelining{name}", count, str(failed), "0", failed == 0),
            Outcome(f"lines of log about it{name}", count, str(logged), "1 a minute", logged == 1),
        ]
    return outcomes


async def _starve(server: ServerProcess, count: int, seconds: float, trigger: bytes) -> tuple[float, float, int]:
    """Returns the p99 of requests alone and beside the attack in seconds, and the number of failures."""
    client = Client(server.url)
    request, failed = request_bytes("/classify", b'{"inputs": "fine"}'), 0

    async def quick() -> float:
        latencies_s: list[float] = []

        async def send(due: float) -> None:
            nonlocal failed
            try:
                failed += (await client.send(request)).status != 200
            except (ConnectionLost, OSError):
                failed += 1
            latencies_s.append(time.monotonic() - due)

        await open_loop(poisson(50, seconds, random.Random(7)), send)
        return percentile(latencies_s, 0.99)

    alone_s = await quick()
    program = [sys.executable, "-c", PIPELINER, str(server.port), str(count)]
    attack = await asyncio.create_subprocess_exec(*program)  # on a core of its own, if there is one
    try:
        await asyncio.sleep(1.5)  # longer than a crowd must last before the log tells of it
        if trigger:
            await client.send(request_bytes("/classify", trigger))
        beside_s = await quick()
    finally:
        attack.kill()
        await attack.wait()
    client.close()
    return alone_s, beside_s, failed


PIPELINER: Final = """
import selectors, socket, sys, time
port, count = map(int, sys.argv[1:])
selector = selectors.DefaultSelector()
for _ in range(count):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
requests = b"GET /health/live HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n" * 200
while True:
    for key, events in selector.select(1):
        try:
            if events & selectors.EVENT_READ:
                key.fileobj.recv(1 << 16)
            if events & selectors.EVENT_WRITE:
                key.fileobj.send(requests)
        except OSError:
            pass
    time.sleep(0.002)
"""


# Memory


def memory(artifact_dir: Path, scale: float) -> list[Outcome]:
    """Measures resident memory over mixed requests after a warm-up. A third are attacks, and some are abandoned."""
    count = scaled(1_000_000, scale, 4000)
    faults = {"STAND_IN_FAULTS": str(FAULT_SHARE)}
    with serving(_models(artifact_dir), "stand_in", "--log-level", "error", environment=faults) as server:
        samples = uvloop.run(_mixed_requests(server, count))
    halves = np.array_split(np.array(samples, float), 2)
    growth = float(np.median(halves[1]) / np.median(halves[0]) - 1)
    # A scaled run has a short warm-up, and the allocator's reserve still grows after it.
    goal = 0.01 if scale >= 1 else 0.05
    shown = f"{growth:+.2%} ({samples[0] / 1024:.0f} -> {samples[-1] / 1024:.0f} MiB)"
    return [Outcome("growth of resident memory", count, shown, f"< {goal:.0%}", growth < goal)]


async def _mixed_requests(server: ServerProcess, count: int) -> list[int]:
    """Returns samples of the server's resident memory, in KiB."""
    client, draw = Client(server.url), random.Random(11)
    flood = attacks(seed=13, count=10**9)
    samples: list[int] = []

    async def send(number: int) -> None:
        task = TASKS[number % 3]
        request = request_bytes(f"/{task}", json.dumps({"inputs": _inputs(task, number)}).encode())
        if number % 3 == 2 and number % 2:
            attack = next(flood)
            request = _request(attack) if len(attack.body) <= 10_000 else b""
        if request:
            with suppress(ConnectionLost, OSError, TimeoutError):
                patience_s = 0.001 if draw.random() < CANCELLED_SHARE else PATIENCE_S
                await asyncio.wait_for(client.send(request), patience_s)
        if number >= count // 5 and number % max(1, count // 100) == 0:
            samples.append(resident_kib(server.pid))

    await send_all(range(count), send, concurrency=16)
    client.close()
    return samples


# Latency


def latency(artifact_dir: Path, scale: float) -> list[Outcome]:  # the signature of a case
    """Sends one request at a time, in turn with a bare engine call, and compares both."""
    count = scaled(2000, scale, 100)
    body = {"inputs": "A warm, funny and clever film that never takes itself too seriously."}
    (path,) = locate([LATENCY_MODEL])
    model = load_model(path, "native")
    batch = Batch.of(model.task.encode(model.task.Request.model_validate(body)))
    with serving([path], "native", "--log-level", "error") as server:
        request = request_bytes("/classify", json.dumps(body).encode())
        served_s, bare_s = uvloop.run(_in_turn(server.url, request, count, lambda: model.engine.run(batch)))
    added_ms = 1000 * (percentile(served_s, 0.5) - percentile(bare_s, 0.5))
    shown = f"{added_ms:.2f} ms (bare call {1000 * percentile(bare_s, 0.5):.2f} ms)"
    return [Outcome("added latency, p50, alone", count, shown, "<= 1 ms", added_ms <= 1.0)]


async def _in_turn(
    url: str, request: bytes, count: int, call: Callable[[], object], warm_up: int = 20
) -> tuple[list[float], list[float]]:
    client = Client(url)
    served_s, bare_s = [], []
    for _ in range(warm_up + count):
        served_s.append(await _timed(client.send(request)))
        started = time.perf_counter()
        call()
        bare_s.append(time.perf_counter() - started)
    client.close()
    return served_s[warm_up:], bare_s[warm_up:]


async def _timed(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


# Overload


def overload(artifact_dir: Path, scale: float) -> list[Outcome]:  # the signature of a case
    """Sends three and ten times the capacity of an engine with a known rate, and a burst with retries."""
    seconds = max(3.0, 30 * scale)
    report = run_overload("stand_in", 1000, seconds, (1.0, 3.0, 10.0))
    outcomes = []
    for level in report.levels[1:]:
        share, goal = level.goodput / report.peak, 0.95 if level.multiple == 3 else 0.9
        name, n = f"goodput at {level.multiple:g}x", sum(level.statuses.values())
        outcomes.append(Outcome(name, n, f"{share:.0%} of peak", f">= {goal:.0%}", share >= goal))
    three = report.levels[1]
    accepted_ms, refused_ms = three.p99_accepted_ms, three.p99_refused_ms
    answered, refused = (three.statuses.get(status, 0) for status in (200, 503))
    shown, refused_in_time = f"{refused_ms:.1f} ms", not math.isnan(refused_ms) and refused_ms <= 20
    return [
        *outcomes,
        Outcome("p99 of accepted at 3x", answered, f"{accepted_ms:.0f} ms", "<= 1000 ms", accepted_ms <= 1000),
        Outcome("p99 of 503s at 3x", refused, shown, "<= 20 ms", refused_in_time),
        Outcome("recovery after a burst", 1, f"{report.recovery_s:.1f} s", "<= 2 s", report.recovery_s <= 2),
    ]


CASES: Final[dict[str, Case]] = {
    "hostile": hostile_requests,
    "hostile-dialects": hostile_dialects,
    "hostile-artifacts": hostile_artifacts,
    "deliveries": deliveries,
    "restarts": restarts,
    "slow-clients": slow_clients,
    "starvation": starvation,
    "handshakes": handshakes,
    "memory": memory,
    "latency": latency,
    "overload": overload,
    "ray-data": killed_node,
    "ray-serve": changed_replicas,
    "scoring": killed_jobs,
    "stalls": stalls,
    "shares": shares,
    "switches": switches,
    "switch-latency": switch_latency,
}


def table(outcomes: list[Outcome]) -> str:
    """Returns all outcomes in Markdown."""
    lines = ["| case | n | result | goal | pass |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.case} | {one.n:,} | {one.result} | {one.goal} | {'yes' if one.passed else 'NO'} |" for one in outcomes
    ]
    return "\n".join(lines)
