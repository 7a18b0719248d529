"""What happens when more comes than can be done: goodput at 0.5 to 10 times capacity, open loop, per length class.

    python loadtest/overload.py [--engine stand_in|native|onnx_cpu] [--seconds 20] [--released DIR]
        [--out loadtest/results]

The engine `stand_in` takes a known time and no core; `native` and `onnx_cpu` run the real network: a small embedded
one and, with `--released`, MobileBERT in its released shape, which is made in that directory. Capacity is measured
first, in the same run, by a closed loop of callers with all the time in the world. Goodput counts the 200s that came
within the client's deadline from when the request was due. At the end comes a burst of three times capacity whose
clients send again at once whatever failed, and how long after it requests still fail. Where Swiftlet has a setting
`scheduler`, the same load goes to its bounded first-come-first-served queue too.

The server has half of the cores, and the generator the others: what it costs to ask takes nothing from what answers.
What both manage where nothing has to be done is measured first, and how late the generator ever was is in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from loadtest.arrivals import poisson
from loadtest.generator import Client, Lost, closed_loop, open_loop, payload
from loadtest.server_process import Served, serving
from swiftlet_serve.service.offline.environment import setting
from swiftlet_serve.service.percentile import percentile
from swiftlet_serve.service.settings import Settings

MODEL: Final = "mobilebert-sst2"
CLASSES: Final = {"short": 8, "medium": 48, "long": 250}  # words, which are as many tokens, and two more
SHARES: Final = {"short": 0.7, "medium": 0.25, "long": 0.05}
MULTIPLES: Final = (0.5, 1.0, 1.5, 3.0, 10.0)
CALLERS: Final = 48  # of the closed loop: more than any batch of these texts holds
STAND_IN: Final = {"STAND_IN_FIXED_MS": "10", "STAND_IN_TOKEN_US": "400"}
BASE, BURST, RETRIES = 0.8, 3.0, 3
PATIENCE: Final = 1.5  # deadlines after which a client hangs up
GRACE_S: Final = 0.05  # what an answer may take to travel beyond its deadline on a busy machine


@dataclass(frozen=True, slots=True)
class Result:
    """One request, as its client saw it."""

    length: str
    due: float
    seconds: float
    status: int  # 0 where the connection was lost, or the client hung up


@dataclass(frozen=True)
class Level:
    """What became of one rate of requests."""

    multiple: float
    offered: float  # requests a second
    goodput: float  # requests a second, answered in time
    tokens: float  # a second, of those
    p99_accepted_ms: float
    p99_refused_ms: float
    statuses: dict[int, int]
    accepted: dict[str, float]  # share answered in time, by length class
    late_ms: float  # the most that the generator was behind


@dataclass
class Report:
    """One version of the server on one engine with one model."""

    version: str
    engine: str
    model: str
    deadline_ms: int
    capacity: float
    levels: list[Level] = field(default_factory=list)
    recovery_s: float = float("nan")

    @property
    def peak(self) -> float:
        return max([self.capacity, *(level.goodput for level in self.levels)])


class Load:
    """Requests of mixed lengths to one server, each with a deadline."""

    def __init__(self, port: int, deadline_ms: int, seed: int = 1) -> None:
        self.client = Client(port)
        self.deadline_s = deadline_ms / 1000
        self.results: list[Result] = []
        self._pick = random.Random(seed)
        self._requests = {
            (name, timeout): payload(
                "/classify",
                json.dumps({"inputs": "film " * words}).encode(),
                {"x-request-timeout-ms": str(timeout)},
            )
            for name, words in CLASSES.items()
            for timeout in (deadline_ms, 60_000)
        }

    async def send(self, due: float, timeout_ms: int | None = None, retries: int = 0) -> None:
        (length,) = self._pick.choices(list(SHARES), list(SHARES.values()))
        request = self._requests[length, timeout_ms or round(1000 * self.deadline_s)]
        for _ in range(1 + retries):
            started = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE * (timeout_ms or 1000 * self.deadline_s) / 1000):
                    status = (await self.client.ask(request)).status
            except (Lost, OSError, TimeoutError):
                status = 0
            if status == 200:
                break
        # A client that sends again counts from its latest try for the 503s, and from the first for its answer.
        self.results.append(Result(length, due, time.monotonic() - (due if status == 200 else started), status))

    def good(self, result: Result) -> bool:
        return result.status == 200 and result.seconds <= self.deadline_s + GRACE_S

    def take(self) -> list[Result]:
        """The results since the last time."""
        results, self.results = self.results, []
        return results


async def capacity(load: Load, seconds: float) -> float:
    """Requests a second of a closed loop, after a warm-up of a fifth of the time."""
    await closed_loop(CALLERS, seconds / 5, lambda due: load.send(due, 60_000))
    load.take()
    started = time.monotonic()
    await closed_loop(CALLERS, seconds, lambda due: load.send(due, 60_000))
    took = time.monotonic() - started
    return sum(result.status == 200 for result in load.take()) / took


async def level(load: Load, multiple: float, rate: float, seconds: float) -> Level:
    """Poisson arrivals of this rate, and what became of them."""
    times = poisson(rate, seconds, random.Random(round(10 * multiple)))
    late = await open_loop(times, load.send)
    results = load.take()
    good = [result for result in results if load.good(result)]
    statuses = {status: sum(r.status == status for r in results) for status in sorted({r.status for r in results})}
    return Level(
        multiple,
        len(times) / seconds,
        len(good) / seconds,
        sum(CLASSES[result.length] + 2 for result in good) / seconds,
        1000 * percentile([result.seconds for result in results if result.status == 200], 0.99),
        1000 * percentile([result.seconds for result in results if result.status == 503], 0.99),
        statuses,
        {
            name: sum(r.length == name for r in good) / max(1, sum(r.length == name for r in results))
            for name in CLASSES
        },
        1000 * late,
    )


async def recovery(load: Load, rate: float, seconds: float) -> float:
    """Seconds after the end of a burst until the last request was due that was not answered in time.

    Infinite where a tenth of those of the last second still failed.
    """
    before, after = seconds / 2, seconds
    pick = random.Random(7)
    calm = poisson(BASE * rate, before + seconds + after, pick)
    storm = [before + time for time in poisson((BURST - BASE) * rate, seconds, pick)]
    started = time.monotonic()
    await open_loop(sorted(calm + storm), lambda due: load.send(due, retries=RETRIES))
    ends = started + before + seconds
    results = [result for result in load.take() if result.due > ends]
    bad = [result.due - ends for result in results if not load.good(result)]
    last = [result for result in results if result.due > ends + after - 1]
    if sum(not load.good(result) for result in last) > len(last) / 10:
        return float("inf")
    # Chance alone fails a request now and then at 0.8 of capacity: what counts is when failing has become rare.
    return next((end for end in sorted([0.0, *bad]) if sum(end < time <= end + 1 for time in bad) <= rate / 100), 0.0)


async def measure(port: int, report: Report, seconds: float, multiples: Sequence[float]) -> None:
    """Fills in a report."""
    load = Load(port, report.deadline_ms)
    report.capacity = await capacity(load, seconds / 2)
    for multiple in multiples:
        report.levels.append(await level(load, multiple, multiple * report.capacity, seconds))
    report.recovery_s = await recovery(load, report.capacity, min(10.0, seconds))
    load.client.close()


def run(
    engine: str,
    deadline_ms: int,
    seconds: float,
    multiples: Sequence[float] = MULTIPLES,
    scheduler: str | None = None,
    model: str | Path = MODEL,
) -> Report:
    """Serves, measures and stops."""
    options = [] if scheduler is None else ["--scheduler", scheduler]
    report = Report(scheduler or "deadlines", engine, Path(model).name, deadline_ms, 0.0)
    with apart(engine, *options, model=model) as server:
        uvloop.run(measure(server.port, report, seconds, multiples))
        server.stop()
    return report


@contextmanager
def apart(engine: str, *options: str, model: str | Path = MODEL) -> Iterator[Served]:
    """A server on half of the cores; this process has the others as long, where there are two and Linux deals them."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    half = len(cores) // 2
    if half:
        os.sched_setaffinity(0, cores[:half])  # which what is started now inherits
    try:
        with serving([model], engine, "--log-level", "error", *options, environment=STAND_IN) as server:
            if half:
                os.sched_setaffinity(0, cores[half:])
            yield server
    finally:
        if half:
            os.sched_setaffinity(0, cores)


def title(report: Report) -> str:
    return f"{report.version}, {report.engine}{'' if report.model == MODEL else f', {report.model}'}"


def table(report: Report) -> str:
    """A report in markdown."""
    lines = [
        f"### {title(report)}",
        "",
        f"Capacity {report.capacity:.0f} requests/s, deadline {report.deadline_ms} ms, recovery after the burst "
        f"{report.recovery_s:.1f} s.",
        "",
        "| × capacity | offered/s | goodput/s | of peak | tokens/s | p99 accepted | p99 of 503s | answered in time: "
        + " | ".join(CLASSES)
        + " | statuses | generator late |",
        "|" + "---|" * (9 + len(CLASSES)),
    ]
    for one in report.levels:
        classes = " | ".join(f"{one.accepted[name]:.0%}" for name in CLASSES)
        statuses = ", ".join(f"{status}: {count}" for status, count in one.statuses.items())
        lines.append(
            f"| {one.multiple:g} | {one.offered:.0f} | {one.goodput:.0f} | {one.goodput / report.peak:.0%} "
            f"| {one.tokens:.0f} | {one.p99_accepted_ms:.0f} ms | {one.p99_refused_ms:.1f} ms | {classes} "
            f"| {statuses} | {one.late_ms:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def plot(reports: Sequence[Report], path: Path) -> None:
    """Goodput over offered load, both of capacity."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for report in reports:
        x = [one.multiple for one in report.levels]
        y = [one.goodput / report.capacity for one in report.levels]
        axes.plot(x, y, marker="o", label=title(report))
    axes.set_xscale("log")
    axes.set_xticks(MULTIPLES, [f"{one:g}" for one in MULTIPLES])
    axes.set(xlabel="offered load, of capacity", ylabel="goodput, of capacity", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    axes.set_title(f"Goodput under overload, open loop ({datetime.now(UTC):%Y-%m-%d})", fontsize=10)
    figure.savefig(path, dpi=120)


async def _ceiling(port: int) -> float:
    """Requests a second that the generator and the server manage together where nothing has to be done."""
    client, count, started = Client(port), 0, time.monotonic()

    async def send(_: float) -> None:
        nonlocal count
        await client.ask(payload("/health/live", b"", method="GET"))
        count += 1

    await closed_loop(16, 3.0, send)
    return count / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", help="may be repeated; stand_in and native if left out")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each load")
    parser.add_argument("--deadline-ms", type=int, default=1000)
    parser.add_argument("--released", type=Path, help="measure MobileBERT as released too, made here if need be")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    schedulers: list[str | None] = [None, "fifo"] if "scheduler" in Settings.model_fields else [None]
    arguments.out.mkdir(parents=True, exist_ok=True)
    with apart("echo") as server:
        ceiling = uvloop.run(_ceiling(server.port))
    head = f"{setting().told()} Generator and server together: {ceiling:.0f} requests/s where nothing has to be done.\n"
    print(head)
    reports = []
    cases: list[tuple[str, str | Path]] = [(engine, MODEL) for engine in arguments.engine or ["stand_in", "native"]]
    if arguments.released is not None:
        from loadtest.released_mobilebert import VOCABULARY, make  # needs torch

        cases += [
            (engine, make("classify", arguments.released, VOCABULARY)) for engine, _ in cases if engine != "stand_in"
        ]
    for engine, model in cases:
        for scheduler in schedulers:
            reports.append(run(engine, arguments.deadline_ms, arguments.seconds, scheduler=scheduler, model=model))
            print(table(reports[-1]), flush=True)
    (arguments.out / "overload.md").write_text("\n".join([head, *map(table, reports)]), "utf-8")
    data: list[dict[str, Any]] = [asdict(report) for report in reports]
    (arguments.out / "overload.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    plot(reports, arguments.out / "overload.png")


if __name__ == "__main__":
    main()
