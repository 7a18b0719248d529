"""Measures a server of the torch engine on a GPU, in steps. It writes each result to the file at once.

    python -m loadtest.gpu_server [--out FILE] [--steps fronts load switches memory] [--workloads DIR] [--device cpu]

    fronts      requests/s of a closed loop with each number of fronts, and where the CPU time of a request goes
    load        p50 and p99 of an open loop at 30 % and 90 % of the best rate, and the joules of a request
    switches    a model's versions switch under load: lost requests, and the p99 beside
    memory      another process takes all memory of the GPU: no answer may be wrong, and the server must recover

All servers start at once, and get requests in turn. `wrk` sends the closed loops if it is installed. The open loops
come from `--generators` processes, and the table shows how late they were. Joules come from NVML's counter for the
GPU: the CPU's are not among them. `--workloads` adds files of bodies, such as W1.jsonl, to the step `load`; questions
and masks need a `--model` for their tasks. A switch loads a version twice, in the spare process and in the one that
serves, with its CUDA graphs: `--switch-s` limits the time for all of them.

With `--device cpu` all steps are tried on few requests. The figures then say nothing. The exit status is 1 if a step
failed or began too late, a request was lost at a switch, or an answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, TypeAlias

import uvloop

from loadtest import wrk
from loadtest.arrivals import poisson
from loadtest.generator import closed_loop
from loadtest.load import Load
from loadtest.measurement import Measurement, RequestResult, summarize
from loadtest.server_process import ServerProcess, cpu_by_role, roles, serving
from loadtest.workload import LONG_BYTES, Body, default_workload, read_workload
from swiftlet_models.artifact import open_artifact, seal
from swiftlet_serve.http.gate.api_keys import add_line, make_key
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.machine.devices import find_devices
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.telemetry.percentile import percentile

ENGINE: Final = "torch"
Capacities: TypeAlias = dict[str, dict[int, float]]  # requests/s by workload and number of fronts
STEPS: Final = ("fronts", "load", "switches", "memory")
OPTIONS: Final = ("--log-level", "warning", "--timeout-ms", "60000", "--max-queued-tokens", str(1 << 20))
OWN: Final = ("short", "128 tokens")  # workloads
REPOSITORY: Final = 0  # in place of a number of fronts
ONE_SENTENCE: Final = 120  # bytes of a short body, at most
WORDS: Final = 126  # of one token each, between [CLS] and [SEP]
LONGEST: Final = 510  # words
UTILISATIONS: Final = (0.3, 0.9)
LEAD_S: Final = 2.0  # for the start of the generators
IDLE_S: Final = 1.5
CALLERS: Final = 64  # at most, beside switches and while the memory is taken
MODEL: Final = "switched"
TOLERANCE: Final = 0.1  # of a probability: a batch of other sizes rounds otherwise in bf16
MOST_MEMORY: Final = 1 << 30  # of an allocation, in bytes
LEAST_MEMORY: Final = 1 << 21
HOLD_POLL_S: Final = 0.02
HOLDER_S: Final = 60.0  # within which it must have started
SWITCH_S: Final = 20.0  # within which a switch must end
TIMEOUT: Final = {"x-request-timeout-ms": "10000"}
RECOVERY_S: Final = 40.0
MOST_LOGGED: Final = 3000  # characters of a log that are shown
CONNECTION_LOST: Final = "connection lost"


@dataclass(frozen=True)
class Setting:
    """What the options say."""

    device: str
    models: Sequence[str]
    fronts: Sequence[int]
    connections: int
    seconds: float
    generators: int
    switches: int
    switch_s: float
    ends: float  # of `time.monotonic()`; no step and no switch begins later
    workloads: Mapping[str, Sequence[Body]]
    out: Path | None
    faults: list[str] = field(default_factory=list)

    @property
    def callers(self) -> int:
        return min(CALLERS, self.connections)

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}

    def say(self, text: str = "", end: str = "\n") -> None:
        """Prints a text and adds it to the file."""
        print(text, end=end, flush=True)
        if self.out is not None:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(text + end)

    def check(self, holds: bool, text: str) -> None:
        """Says a result, and remembers it if it is a fault."""
        self.say(f"{text}: {'passed' if holds else 'FAILED'}")
        if not holds:
            self.faults.append(text)


@dataclass(frozen=True)
class Share:
    """What one generator process sends: an open loop at a rate, or a closed loop of callers."""

    url: str
    bodies: Sequence[Body]
    starts: float  # of `time.monotonic()`, which all processes share
    seconds: float
    rate: float
    callers: int
    seed: int


@dataclass(frozen=True)
class Sent:
    """What all generator processes sent."""

    measurement: Measurement
    joules: float | None  # in the time of the load
    short_p99_ms: float | None  # of the short bodies, if there are long ones too


def send_share(share: Share) -> tuple[list[list[RequestResult]], float]:
    """Returns the results, apart for short and long bodies of an open loop, and the share of a core that it took."""
    draw = random.Random(share.seed)
    bodies = draw.sample(share.bodies, len(share.bodies))
    groups = [[body for body in bodies if (len(body.data) > LONG_BYTES) == is_long] for is_long in (False, True)]
    loads = [Load(share.url, group, retries=0) for group in (groups if share.rate else [bodies]) if group]

    async def run() -> None:
        if not share.rate:
            await loads[0].run_closed(share.callers, share.seconds)
            return
        rates = [share.rate * len(load.bodies) / len(bodies) for load in loads]
        times = [poisson(rate, share.seconds, draw) for rate in rates]
        await asyncio.gather(*(load.run_open(some) for load, some in zip(loads, times, strict=True)))

    time.sleep(max(0.0, share.starts - time.monotonic()))
    cpu = time.process_time()
    uvloop.run(run())
    return [load.results for load in loads], (time.process_time() - cpu) / (time.monotonic() - share.starts)


class Meter:
    """NVML's energy counter of the GPU."""

    def __init__(self) -> None:
        """Raises an exception if the package or the driver is missing, or if the GPU has no counter."""
        import pynvml  # of the package nvidia-ml-py

        (device, *_) = find_devices(ENGINE, (), os.environ)
        pynvml.nvmlInit()
        by_index = pynvml.nvmlDeviceGetHandleByIndex
        self._handle = by_index(int(device)) if device.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(device)
        self._nvml: Any = pynvml
        self._read_j()

    @property
    def name(self) -> str:
        return str(self._nvml.nvmlDeviceGetName(self._handle))

    def used_j(self, starts: float, seconds: float) -> float:
        """Returns the energy of a time that begins at `starts`, of `time.monotonic()`, when it is over."""
        time.sleep(max(0.0, starts - time.monotonic()))
        before = self._read_j()
        time.sleep(max(0.0, starts + seconds - time.monotonic()))
        return self._read_j() - before

    def _read_j(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1000


class Generators:
    """Processes that send a load together."""

    def __init__(self, pool: ProcessPoolExecutor, count: int, meter: Meter | None) -> None:
        self._pool, self._count, self._meter = pool, count, meter

    def send(self, url: str, bodies: Sequence[Body], seconds: float, rate: float = 0.0, callers: int = 0) -> Sent:
        """Sends an open loop at a rate, or a closed loop of callers.

        Raises:
            SystemExit: nothing was sent.
        """
        starts, count = time.monotonic() + LEAD_S, self._count if rate else min(self._count, callers)
        shares = [Share(url, bodies, starts, seconds, rate / count, callers // count, seed) for seed in range(count)]
        parts = [self._pool.submit(send_share, share) for share in shares]
        joules = self._meter.used_j(starts, seconds) if self._meter is not None else None
        sent = [part.result() for part in parts]
        results = [result for groups, _ in sent for group in groups for result in group]
        if not results:
            raise SystemExit(f"The load of {rate:.1f}/s is too small.")
        rate = rate or sum(result.status == 200 for result in results) / seconds
        measurement = summarize(results, starts, seconds, rate, 1000.0, max(cpu for _, cpu in sent))
        short = [result.latency_s for groups, _ in sent if len(groups) > 1 for result in groups[0]]
        return Sent(measurement, joules, 1000 * percentile(short, 0.99) if short else None)


def meter_of(setting: Setting) -> Meter | None:
    """Returns the meter, or the reason why it is missing."""
    if setting.device == "cpu":
        setting.say("Joules are left out: there is no GPU.\n")
        return None
    try:
        meter = Meter()
    except Exception as error:  # the package or the driver is missing, or the device has no counter
        setting.say(f"Joules are left out: {type(error).__name__}: {error}\n")
        return None
    idle_w = meter.used_j(time.monotonic(), IDLE_S) / IDLE_S
    setting.say(f"{meter.name}: {idle_w:.0f} W with the servers loaded, without requests.\n")
    return meter


def closed(setting: Setting, generators: Generators, server: ServerProcess, bodies: Sequence[Body]) -> wrk.WrkResult:
    """Sends a closed loop, after a shorter one that warms the server up."""
    if shutil.which("wrk") is None:
        generators.send(server.url, bodies, setting.seconds / 4, callers=setting.connections)
        measurement = generators.send(server.url, bodies, setting.seconds, callers=setting.connections).measurement
        return wrk.WrkResult(measurement.rate, measurement.p50_ms, measurement.p99_ms, measurement.failed)
    with tempfile.NamedTemporaryFile("wb") as file:
        file.writelines(b"%b %b\n" % (body.path.encode(), body.data) for body in bodies)
        file.flush()
        wrk.run(server.url, Path(file.name), setting.connections, 1)
        return wrk.run(server.url, Path(file.name), setting.connections, setting.seconds)


def measure_fronts(setting: Setting, generators: Generators, servers: Mapping[int, ServerProcess]) -> Capacities:
    """Measures the own workloads with each number of fronts."""
    capacities: Capacities = {}
    setting.say("| workload | fronts | requests/s | p50 / p99 ms | failed | CPU us: server | fronts | engine |")
    setting.say("|---|---|---|---|---|---|---|---|")
    for name, (fronts, server) in itertools.product(OWN, servers.items()):
        before, started = cpu_by_role(server.pid), time.monotonic()
        result = closed(setting, generators, server, setting.workloads[name])
        sending_s = time.monotonic() - started - (0 if shutil.which("wrk") else 2 * LEAD_S)
        answered = max(1.0, result.rate * sending_s)  # the warm-up's rate is about the same
        costs = [f"{1e6 * (cpu - before[role]) / answered:.0f}" for role, cpu in cpu_by_role(server.pid).items()]
        capacities.setdefault(name, {})[fronts] = result.rate
        latency = f"{result.p50:.1f} / {result.p99:.1f}"
        setting.say(f"| {name} | {fronts} | {result.rate:,.0f} | {latency} | {result.failed} | {' | '.join(costs)} |")
    return capacities


def measure_load(
    setting: Setting, generators: Generators, servers: Mapping[int, ServerProcess], capacities: Capacities
) -> None:
    """Sends each workload at shares of its capacity, to the server with the fronts that answered the most."""
    rates = capacities.get(OWN[0], {})
    fronts = max(servers, key=lambda fronts: rates.get(fronts, 0.0))
    setting.say(f"Open loop, {fronts} fronts\n")
    setting.say(
        "| workload | of capacity | requests/s | p50 ms | p99 ms | of short ones | failed | late p99 ms | core ", ""
    )
    setting.say("| joules | W |\n|---|---|---|---|---|---|---|---|---|---|---|")
    for name, bodies in setting.workloads.items():
        known = capacities.get(name, {}).get(fronts)
        capacity = known or closed(setting, generators, servers[fronts], bodies).rate
        for share in UTILISATIONS:
            sent = generators.send(servers[fronts].url, bodies, setting.seconds, rate=share * capacity)
            measurement, joules = sent.measurement, sent.joules
            cells = [
                name,
                f"{share:.0%} of {capacity:,.0f}",
                f"{measurement.offered_rate:,.0f}",
                f"{measurement.p50_ms:.1f}",
                f"{measurement.p99_ms:.1f}",
                "–" if sent.short_p99_ms is None else f"{sent.short_p99_ms:.1f}",
                str(measurement.failed),
                f"{measurement.lateness_p99_ms:.1f}",
                f"{measurement.generator_cpu_share:.2f}",
                "–" if joules is None else f"{joules / (measurement.offered_rate * setting.seconds):.5f}",
                "–" if joules is None else f"{joules / setting.seconds:.0f}",
            ]
            setting.say(f"| {' | '.join(cells)} |")


class Traffic:
    """Callers that know the right answers, and count what they get."""

    def __init__(self, url: str, bodies: Sequence[Body], callers: int) -> None:
        self.callers = callers
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.client = Client(url)
        self._requests = [request_bytes(body.path, body.data, TIMEOUT) for body in bodies]
        self._next = itertools.cycle(range(len(bodies)))
        self._right: list[dict[str, float]] = []

    async def learn(self) -> None:
        """Asks for the right answers, one by one."""
        for request in self._requests:
            response = await self.client.send(request)
            self._right.append(scores(response.body, response.headers["x-model-version"]))

    async def send(self, due: float) -> None:
        number = next(self._next)
        try:
            response = await self.client.send(self._requests[number])
        except (ConnectionLost, OSError):
            self.counts[CONNECTION_LOST] += 1
            return
        self.seconds.append(time.monotonic() - due)
        if response.status != 200:
            self.counts[f"status {response.status}"] += 1
            return
        scored, right = scores(response.body, response.headers["x-model-version"]), self._right[number]
        same = scored.keys() == right.keys() and all(abs(scored[label] - right[label]) < TOLERANCE for label in right)
        self.counts["right" if same else "wrong"] += 1

    async def run(self, seconds: float) -> tuple[Counter[str], float]:
        """Returns the counts of a closed loop, and its p99 in milliseconds."""
        self.counts, self.seconds = Counter(), []
        await closed_loop([self.send] * self.callers, seconds)
        return self.counts, 1000 * percentile(self.seconds, 0.99)


def scores(answer: bytes, version: str) -> dict[str, float]:
    """Returns the scores by label. A label of another version than the answer's stays as it is, and counts as wrong."""
    return {entry["label"].removeprefix(f"v{version}-"): entry["score"] for entry in json.loads(answer)[0]}


def add_version(root: Path, model: str, number: int) -> None:
    """Adds a version of a model to a repository. Its labels begin with `v` and the number of the version."""
    (source,) = locate([model])
    path = Path(shutil.copytree(source, root / MODEL / str(number)))
    manifest = open_artifact(path).manifest
    seal(path, replace(manifest, name=MODEL, labels=tuple(f"v{number}-{label}" for label in manifest.labels)))


@dataclass(frozen=True)
class Repository:
    """A server of two versions of a model."""

    server: ServerProcess
    key: str

    async def load(self, version: int) -> int:
        """Switches to a version. Returns the status of the answer, or 0 without an answer in time."""
        client, body = Client(f"http://127.0.0.1:{self.server.admin_port}"), {"parameters": {"version": version}}
        request = request_bytes(
            f"/v2/repository/models/{MODEL}/load", json.dumps(body).encode(), {"x-api-key": self.key}
        )
        try:
            async with asyncio.timeout(SWITCH_S):
                return (await client.send(request)).status
        except (ConnectionLost, OSError, TimeoutError):
            return 0
        finally:
            client.close()


async def measure_switches(setting: Setting, repository: Repository) -> None:
    """Switches between the versions under load, and compares the p99 with that before."""
    traffic = Traffic(repository.server.url, setting.workloads[OWN[0]][: setting.callers], setting.callers)
    await traffic.learn()
    await traffic.run(setting.seconds / 2)
    _, before_ms = await traffic.run(setting.seconds)
    traffic.counts, traffic.seconds = Counter(), []
    stopped, started, statuses = asyncio.Event(), time.monotonic(), Counter[int]()
    load = asyncio.create_task(closed_loop([traffic.send] * traffic.callers, stopped=stopped))
    while statuses.total() < setting.switches and time.monotonic() < min(started + setting.switch_s, setting.ends):
        statuses[await repository.load(1 + (statuses.total() + 1) % 2)] += 1
    each_s = (time.monotonic() - started) / statuses.total()
    stopped.set()
    await load
    traffic.client.close()
    setting.say(
        f"{statuses.total()} of {setting.switches} switches in the time for them, {each_s:.2f} s each; "
        f"p99 {before_ms:.1f} ms before, {1000 * percentile(traffic.seconds, 0.99):.1f} ms beside"
    )
    setting.check(statuses.keys() == {200}, f"Switches by status: {dict(statuses)}")
    setting.check(traffic.counts.keys() == {"right"}, f"Answers beside switches: {dict(traffic.counts)}")


def hold_memory(device: str, taken: Synchronized[int], held: Event, released: Event) -> None:
    """Takes the memory that a GPU has free, and what becomes free later, until told to release it. Not from a CPU."""
    if device == "cpu":
        held.set()
        released.wait()
        return
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor is an allocation of its own
    import torch

    tensors, size = [], MOST_MEMORY
    while not released.is_set():
        try:
            tensors.append(torch.empty(size, dtype=torch.uint8, device=device))
            taken.value += size
        except RuntimeError:  # there is no more
            size //= 2
        if size < LEAST_MEMORY:
            held.set()
            size = MOST_MEMORY
            time.sleep(HOLD_POLL_S)  # a GPU sends no event when memory becomes free


async def measure_memory(setting: Setting, repository: Repository) -> None:
    """Sends short texts and the longest ones while another process holds the GPU's memory, and afterwards."""
    server, context = repository.server, multiprocessing.get_context("spawn")
    long = Body("/classify", json.dumps({"inputs": " ".join(["film"] * LONGEST)}).encode())
    traffic = Traffic(
        server.url, [*setting.workloads[OWN[0]][: setting.callers], *[long] * setting.callers], setting.callers
    )
    await traffic.learn()
    engines = roles(server.pid)["engine"]
    taken, held, released = context.Value("q", 0), context.Event(), context.Event()
    holder = context.Process(target=hold_memory, args=(setting.device, taken, held, released), daemon=True)
    holder.start()
    try:
        started = time.monotonic()
        while not held.is_set() and holder.is_alive() and time.monotonic() < started + HOLDER_S:
            await asyncio.sleep(HOLD_POLL_S)
        if not held.is_set() or (setting.device == "cuda" and not taken.value):
            raise SystemExit("The other process could not take memory.")
        during, p99_ms = await traffic.run(setting.seconds)
        status = await repository.load(1)
        more, more_p99_ms = await traffic.run(setting.seconds)
    finally:
        released.set()
        holder.join()
    setting.say(f"{taken.value / 2**30:.1f} GiB taken: {dict(during)}, p99 {p99_ms:.1f} ms; a switch got status ", "")
    setting.say(f"{status}; then {dict(more)}, p99 {more_p99_ms:.1f} ms")
    bad = (during + more).keys() & {"wrong", CONNECTION_LOST}
    setting.check(not bad and server.process.poll() is None, "Right answers or errors while the memory is taken")
    started, after = time.monotonic(), Counter[str]()
    while after.keys() != {"right"} and time.monotonic() < started + RECOVERY_S:
        statuses = [await repository.load(version) for version in (2, 1)]
        after, p99_ms = await traffic.run(setting.seconds / 2)
    traffic.client.close()
    kept = len(set(engines) & set(roles(server.pid)["engine"]))
    setting.say(f"{kept} of {len(engines)} worker processes are still the same", "; ")
    setting.say(f"right answers {time.monotonic() - started:.1f} s after the release, p99 {p99_ms:.1f} ms")
    setting.check(after.keys() == {"right"}, f"Answers afterwards: {dict(after)}")
    setting.check(set(statuses) == {200}, f"Switches afterwards by status: {statuses}")


def run_steps(setting: Setting, steps: Sequence[str], stack: ExitStack) -> None:
    """Starts the servers at once, and runs the steps."""
    root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    key, line = make_key("loadtest")
    add_line(root / "keys", line)
    for number in (1, 2):
        add_version(root / "repository", setting.models[0], number)
    admin = ["--admin-port", "0", "--admin-keys-file", str(root / "keys"), "--repository-poll-s", "3600"]
    wanted: dict[int, tuple[Sequence[str], Sequence[str]]] = {}
    if {"fronts", "load"} & set(steps):
        wanted = {
            fronts: (setting.models, ["--fronts", str(fronts), "--spare-engine", "false"]) for fronts in setting.fronts
        }
    if {"switches", "memory"} & set(steps):
        wanted[REPOSITORY] = [], ["--repository", str(root / "repository"), *admin]

    def start(number: int) -> ServerProcess | None:
        models, options = wanted[number]
        server = serving(models, ENGINE, *OPTIONS, *options, environment=setting.environment)
        try:
            return stack.enter_context(server)
        except SystemExit as error:
            setting.check(False, f"A server did not start ({' '.join(options)}): {error}")
            return None

    started = time.monotonic()
    with ThreadPoolExecutor(len(wanted)) as threads:
        servers = {number: server for number, server in zip(wanted, threads.map(start, wanted), strict=True) if server}
    setting.say(f"{len(servers)} servers started in {time.monotonic() - started:.1f} s\n")
    repository = Repository(servers.pop(REPOSITORY), key) if REPOSITORY in servers else None
    pool = stack.enter_context(ProcessPoolExecutor(setting.generators, multiprocessing.get_context("spawn")))
    capacities: Capacities = {}
    actions: dict[str, Callable[[], None]] = {}
    if servers:
        generators = Generators(pool, setting.generators, meter_of(setting))
        actions["fronts"] = lambda: capacities.update(measure_fronts(setting, generators, servers))
        actions["load"] = lambda: measure_load(setting, generators, servers, capacities)
    if repository:
        actions["switches"] = lambda: uvloop.run(measure_switches(setting, repository))
        actions["memory"] = lambda: uvloop.run(measure_memory(setting, repository))
    for step in steps:
        started = time.monotonic()
        if step not in actions or started > setting.ends:
            setting.check(False, f"Step {step} is left out: there is no server, or no time is left")
            continue
        try:
            actions[step]()
        except (Exception, SystemExit) as error:  # the time on a GPU is short: later steps run nevertheless
            setting.check(False, f"Step {step}: {type(error).__name__}: {error}")
        setting.say(f"\n({step}: {time.monotonic() - started:.1f} s)\n")
    running = [*servers.values(), *([repository.server] if repository else [])]
    for server in running:
        if text := server.logged()[-MOST_LOGGED:].strip():
            setting.say(f"Log of the server on port {server.port}:\n{text}\n")
    with ThreadPoolExecutor(len(wanted)) as threads:
        statuses = list(threads.map(ServerProcess.stop, running))
    setting.check(not any(statuses), f"Exit statuses of the servers: {statuses}")


def _parse() -> tuple[Setting, Sequence[str]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cuda")
    add("--steps", nargs="+", choices=STEPS, default=STEPS)
    add("--model", action="append", help="Bundled model or artifact. Repeatable; the first one classifies.")
    add("--fronts", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--connections", type=int, default=512)
    add("--seconds", type=float, default=2, help="Duration of a measurement. Default: 2.")
    add("--generators", type=int, default=6, help="Processes that send an open loop. Default: 6.")
    add("--switches", type=int, default=100)
    add("--switch-s", type=float, default=15, help="Seconds of the step after which no switch begins. Default: 15.")
    add("--budget-s", type=float, default=90, help="Seconds after which no step and no switch begins. Default: 90.")
    add("--workloads", type=Path, help="Directory of .jsonl files.")
    add("--only", nargs="+", default=[], metavar="WORKLOAD", help="Names of the files to use. Default: all.")
    add("--out", type=Path, help="File for the results.")
    options = parser.parse_args()
    if options.device == "cpu":
        options.fronts, options.connections, options.seconds, options.generators = [2], 8, 1.0, 1
        options.switches, options.budget_s = 3, math.inf
    classify = default_workload(2000, tasks=["/classify"])
    long = json.dumps({"inputs": " ".join(["film"] * WORDS)}).encode()
    own = [[body for body in classify if len(body.data) <= ONE_SENTENCE], [Body("/classify", long)]]
    files = sorted(options.workloads.glob("*.jsonl")) if options.workloads else []
    files = [file for file in files if not options.only or file.stem in options.only]
    workloads = dict(zip(OWN, own, strict=True)) | {file.stem: read_workload([file]) for file in files}
    names = ("device", "fronts", "connections", "seconds", "generators", "switches", "switch_s")
    values = {name: getattr(options, name) for name in names}
    models = options.model or ["mobilebert-sst2"]
    ends = time.monotonic() + options.budget_s
    return Setting(models=models, workloads=workloads, ends=ends, out=options.out, **values), options.steps


def main() -> None:
    setting, steps = _parse()
    if setting.device == "cuda" and not find_devices(ENGINE, (), os.environ):
        raise SystemExit("There is no GPU, or no driver or nvidia-ml-py. Try --device cpu.")
    if setting.out is not None:
        setting.out.write_text("", "utf-8")
    sender = "wrk" if shutil.which("wrk") else "this generator"
    setting.say(f"{current_environment('torch').description()} {', '.join(setting.models)}. ", "")
    setting.say(f"Closed loops of {setting.connections} connections by {sender}.\n")
    with ExitStack() as stack:
        run_steps(setting, steps, stack)
    raise SystemExit(bool(setting.faults))


if __name__ == "__main__":
    main()
