"""Measures an overload: goodput at 0.5 to 10 times capacity, in an open loop, by length class.

    python -m loadtest.overload [--engine stand_in|native|onnx_cpu] [--seconds 20] [--released DIR]
        [--out loadtest/results]

The engine `stand_in` takes a known time and no CPU. `native` and `onnx_cpu` run a real network: a small bundled one
and, with `--released`, MobileBERT in its released shape, which is made in that directory. A closed loop of patient
callers measures the capacity first, in the same run. Goodput counts the responses with status 200 that came within the
client's deadline, from when the request was due. The last load is a burst of three times capacity whose clients retry
failed requests at once. It shows how long requests fail after the burst. The same loads also go to a
bounded first-come-first-served queue that ignores deadlines: the admission policy `fifo`.

The server gets half of the cores and the generator the others, so that the generator takes nothing from the server. The
rate that both reach without any work is measured first. The table shows the generator's largest lateness.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, get_args

import uvloop

from loadtest.arrivals import poisson
from loadtest.generator import closed_loop, open_loop
from loadtest.report import require_chart
from loadtest.server_process import ServerProcess, serving
from swiftlet_serve.http_client import Client, ConnectionLost, request_bytes
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.scheduling.load import AdmissionPolicy
from swiftlet_serve.telemetry.percentile import percentile

MODEL: Final = "mobilebert-sst2"
WORDS: Final = {"short": 8, "medium": 48, "long": 250}  # by length class; a word is one token, and two tokens are added
CLASS_SHARES: Final = {"short": 0.7, "medium": 0.25, "long": 0.05}
MULTIPLES: Final = (0.5, 1.0, 1.5, 3.0, 10.0)
CALLERS: Final = 48  # of the closed loop: more than any batch of these texts holds
PATIENT_MS: Final = 60_000
STAND_IN: Final = {"STAND_IN_FIXED_MS": "10", "STAND_IN_TOKEN_US": "400"}
BASE, BURST, BURST_RETRIES = 0.8, 3.0, 3
PATIENCE: Final = 1.5  # deadlines after which a client closes its connection
GRACE_S: Final = 0.05  # for the way of a response on a busy machine


@dataclass(frozen=True, slots=True)
class Result:
    """One request, as its client saw it."""

    length_class: str
    due: float
    seconds: float
    status: int  # 0 if the connection was lost or the client gave up


@dataclass(frozen=True)
class Level:
    """The results of one offered rate. Rates are per second."""

    multiple: float  # of the capacity
    offered: float
    goodput: float
    goodput_tokens: float
    p99_accepted_ms: float
    p99_refused_ms: float
    statuses: dict[int, int]
    in_time: dict[str, float]  # share answered in time, by length class
    lateness_ms: float  # the generator's largest


@dataclass
class OverloadReport:
    """The results of one admission policy on one engine with one model."""

    policy: AdmissionPolicy
    engine: str
    model: str
    deadline_ms: int
    capacity: float
    levels: list[Level] = field(default_factory=list)
    recovery_s: float = math.nan

    @property
    def peak(self) -> float:
        return max([self.capacity, *(level.goodput for level in self.levels)])


class MixedLoad:
    """Requests of mixed lengths to one server, each with a deadline."""

    def __init__(self, url: str, deadline_ms: int, seed: int = 1) -> None:
        self.client = Client(url)
        self.deadline_ms = deadline_ms
        self._results: list[Result] = []
        self._draw = random.Random(seed)
        self._requests = {
            (name, timeout_ms): request_bytes(
                "/classify",
                json.dumps({"inputs": "film " * words}).encode(),
                {"x-request-timeout-ms": str(timeout_ms)},
            )
            for name, words in WORDS.items()
            for timeout_ms in (deadline_ms, PATIENT_MS)
        }

    async def send(self, due: float, patient: bool = False, retries: int = 0) -> None:
        """Sends one request. A retry follows a failure at once."""
        (length_class,) = self._draw.choices(list(CLASS_SHARES), list(CLASS_SHARES.values()))
        timeout_ms = PATIENT_MS if patient else self.deadline_ms
        request = self._requests[length_class, timeout_ms]
        for _ in range(1 + retries):
            started = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE * timeout_ms / 1000):
                    status = (await self.client.send(request)).status
            except (ConnectionLost, OSError, TimeoutError):
                status = 0
            if status == 200:
                break
        # A success is timed from when the request was due, and a failure from its last attempt.
        seconds = time.monotonic() - (due if status == 200 else started)
        self._results.append(Result(length_class, due, seconds, status))

    async def send_patiently(self, due: float) -> None:
        await self.send(due, patient=True)

    async def send_with_retries(self, due: float) -> None:
        await self.send(due, retries=BURST_RETRIES)

    def is_good(self, result: Result) -> bool:
        return result.status == 200 and result.seconds <= self.deadline_ms / 1000 + GRACE_S

    def take_results(self) -> list[Result]:
        """Returns the results since the last call."""
        results, self._results = self._results, []
        return results


async def measure_capacity(load: MixedLoad, seconds: float) -> float:
    """Returns the requests per second of a closed loop, after a warm-up of a fifth of the time."""
    await closed_loop([load.send_patiently] * CALLERS, seconds / 5)
    load.take_results()
    started = time.monotonic()
    await closed_loop([load.send_patiently] * CALLERS, seconds)
    elapsed_s = time.monotonic() - started
    return sum(result.status == 200 for result in load.take_results()) / elapsed_s


async def measure_level(load: MixedLoad, multiple: float, rate: float, seconds: float) -> Level:
    """Sends Poisson arrivals of one rate."""
    times = poisson(rate, seconds, random.Random(round(10 * multiple)))
    lateness_s = await open_loop(times, load.send)
    results = load.take_results()
    good = [result for result in results if load.is_good(result)]
    statuses = [result.status for result in results]
    requests_by_class = {name: sum(result.length_class == name for result in results) for name in WORDS}
    return Level(
        multiple=multiple,
        offered=len(times) / seconds,
        goodput=len(good) / seconds,
        goodput_tokens=sum(WORDS[result.length_class] + 2 for result in good) / seconds,
        p99_accepted_ms=1000 * percentile((result.seconds for result in results if result.status == 200), 0.99),
        p99_refused_ms=1000 * percentile((result.seconds for result in results if result.status == 503), 0.99),
        statuses={status: statuses.count(status) for status in sorted(set(statuses))},
        in_time={
            name: sum(result.length_class == name for result in good) / max(1, requests)
            for name, requests in requests_by_class.items()
        },
        lateness_ms=1000 * lateness_s,
    )


async def measure_recovery(load: MixedLoad, rate: float, seconds: float) -> float:
    """Returns the seconds from the end of a burst until failures are rare again.

    The result is infinite if a tenth of the last second's requests failed.
    """
    before, after = seconds / 2, seconds
    draw = random.Random(7)
    base = poisson(BASE * rate, before + seconds + after, draw)
    burst = [before + time for time in poisson((BURST - BASE) * rate, seconds, draw)]
    started = time.monotonic()
    await open_loop(sorted(base + burst), load.send_with_retries)
    ended = started + before + seconds
    results = [result for result in load.take_results() if result.due > ended]
    bad = [result.due - ended for result in results if not load.is_good(result)]
    last = [result for result in results if result.due > ended + after - 1]
    if sum(not load.is_good(result) for result in last) > len(last) / 10:
        return math.inf
    # At 0.8 of the capacity a request fails by chance now and then, so a few failures in a second are ignored.
    ends = sorted([0.0, *bad])
    return next((end for end in ends if sum(end < time <= end + 1 for time in bad) <= rate / 100), 0.0)


async def measure(url: str, report: OverloadReport, seconds: float, multiples: Sequence[float]) -> None:
    """Fills in a report."""
    load = MixedLoad(url, report.deadline_ms)
    report.capacity = await measure_capacity(load, seconds / 2)
    for multiple in multiples:
        report.levels.append(await measure_level(load, multiple, multiple * report.capacity, seconds))
    report.recovery_s = await measure_recovery(load, report.capacity, min(10.0, seconds))
    load.client.close()


def run(
    engine: str,
    deadline_ms: int,
    seconds: float,
    multiples: Sequence[float] = MULTIPLES,
    policy: AdmissionPolicy = "deadline",
    model: str | Path = MODEL,
) -> OverloadReport:
    """Serves a model, measures each load and stops the server."""
    report = OverloadReport(policy, engine, Path(model).name, deadline_ms, 0.0)
    with serving_on_half_of_the_cores(engine, model, policy) as server:
        uvloop.run(measure(server.url, report, seconds, multiples))
        server.stop()
    return report


@contextmanager
def serving_on_half_of_the_cores(
    engine: str, model: str | Path = MODEL, policy: AdmissionPolicy = "deadline"
) -> Iterator[ServerProcess]:
    """Serves on half of the cores and leaves the others to this process. Needs Linux and two cores; else all share."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    half = len(cores) // 2
    environment = STAND_IN | {"STAND_IN_ADMISSION_POLICY": policy}  # which `stand_in/sitecustomize.py` reads
    if half:
        os.sched_setaffinity(0, cores[:half])  # the server inherits it
    try:
        with serving([model], engine, "--log-level", "error", environment=environment) as server:
            if half:
                os.sched_setaffinity(0, cores[half:])
            yield server
    finally:
        if half:
            os.sched_setaffinity(0, cores)


def title(report: OverloadReport) -> str:
    return f"{report.policy}, {report.engine}{'' if report.model == MODEL else f', {report.model}'}"


def table(report: OverloadReport) -> str:
    """Returns a report in Markdown."""
    lines = [
        f"## {title(report)}",
        "",
        f"Capacity {report.capacity:.0f} requests/s, deadline {report.deadline_ms} ms, recovery after the burst "
        f"{report.recovery_s:.1f} s.",
        "",
        "| × capacity | offered/s | goodput/s | of peak | tokens/s | p99 accepted | p99 of 503s | answered in time: "
        + " | ".join(WORDS)
        + " | statuses | generator late |",
        "|" + "---|" * (9 + len(WORDS)),
    ]
    for level in report.levels:
        classes = " | ".join(f"{level.in_time[name]:.0%}" for name in WORDS)
        statuses = ", ".join(f"{status}: {count}" for status, count in level.statuses.items())
        lines.append(
            f"| {level.multiple:g} | {level.offered:.0f} | {level.goodput:.0f} | {level.goodput / report.peak:.0%} "
            f"| {level.goodput_tokens:.0f} | {level.p99_accepted_ms:.0f} ms | {level.p99_refused_ms:.1f} ms "
            f"| {classes} | {statuses} | {level.lateness_ms:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def draw(reports: Sequence[OverloadReport], path: Path) -> None:
    """Draws goodput over offered load, both as multiples of the capacity."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for report in reports:
        x = [level.multiple for level in report.levels]
        y = [level.goodput / report.capacity for level in report.levels]
        axes.plot(x, y, marker="o", label=title(report))
    axes.set_xscale("log")
    axes.set_xticks(MULTIPLES, [f"{multiple:g}" for multiple in MULTIPLES])
    axes.set(xlabel="offered load / capacity", ylabel="goodput / capacity", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(f"Goodput under overload, open loop ({datetime.now(UTC):%Y-%m-%d})", fontsize=10)
    figure.savefig(path, dpi=120)


async def _highest_rate(url: str) -> float:
    """Returns the requests per second that generator and server reach together on /health/live."""
    client, count, started = Client(url), 0, time.monotonic()
    request = request_bytes("/health/live", method="GET")

    async def send(_: float) -> None:
        nonlocal count
        await client.send(request)
        count += 1

    await closed_loop([send] * 16, 3.0)
    client.close()
    return count / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", help="Repeatable. Default: stand_in and native.")
    parser.add_argument("--seconds", type=float, default=20.0, help="Duration of each load. Default: 20.")
    parser.add_argument("--deadline-ms", type=int, default=1000)
    parser.add_argument("--released", type=Path, help="Also measure MobileBERT as released, made in this directory.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    require_chart()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with serving_on_half_of_the_cores("echo") as server:
        highest = uvloop.run(_highest_rate(server.url))
    where = current_environment().description()
    ceiling = f"Generator and server together: {highest:.0f} requests/s to /health/live."
    head = f"# Overload\n\n{where} {ceiling}\n"
    print(head)
    reports = []
    cases: list[tuple[str, str | Path]] = [(engine, MODEL) for engine in arguments.engine or ["stand_in", "native"]]
    if arguments.released is not None:
        from loadtest.released_shapes import make_artifact  # needs torch

        artifact = make_artifact("classify", arguments.released)
        cases += [(engine, artifact) for engine, _ in cases if engine != "stand_in"]
    for engine, model in cases:
        for policy in get_args(AdmissionPolicy):
            reports.append(run(engine, arguments.deadline_ms, arguments.seconds, policy=policy, model=model))
            print(table(reports[-1]), flush=True)
    (arguments.out / "overload.md").write_text("\n".join([head, *map(table, reports)]), "utf-8")
    data = [asdict(report) for report in reports]
    (arguments.out / "overload.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    draw(reports, arguments.out / "overload.png")


if __name__ == "__main__":
    main()
