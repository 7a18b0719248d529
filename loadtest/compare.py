"""Compares servers over HTTP: Swiftlet, Swiftlet without a network, and baselines, on several workloads.

    python -m loadtest.compare [--released DIR | --model ARTIFACT ...] [--workloads DIR] [--out DIR] [--quick]

A workload is a file of request bodies: W1.jsonl and so on. Without such files, the default workload of each task is
used. All servers run at once, and only one of them gets requests at a time: a closed loop of `wrk`, which must be
installed, on the same cores. At each concurrency the servers are measured in turn, `--rounds` times. The table shows
the median round, and the lowest and highest rate. A measurement begins when the previous server is idle. It lasts
`--seconds`, or as long as the slowest server needs to answer each caller three times. Long bodies delay short ones, so
a workload with both is also sent by the generator in Python, which measures the short ones apart.

The baselines are `baseline_fastapi_onnx.py`, `baseline_fastapi_openvino.py` if openvino is installed, and for a
`--checkpoint` that classifies `baseline_transformers_pipeline.py`. For one caller, the first two are also measured with
all cores for a call, as Swiftlet answers a lone request.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from loadtest import wrk
from loadtest.generator import closed_loop
from loadtest.report import require_chart
from loadtest.server_process import module_server, resident_kib, serving, wait_until_idle
from loadtest.workload import LONG_BYTES, TASKS, default_workload, read_workload, route_of
from loadtest.wrk import WrkResult
from swiftlet_serve.benchmark.baselines import ENGINES, missing_package
from swiftlet_serve.benchmark.plan import BUNDLED
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.offline.environment import Environment, current_environment, load_warnings
from swiftlet_serve.telemetry.percentile import percentile

WARM_UP_S: Final = 2
MIN_REQUESTS_PER_CALLER: Final = 3
SERVER_OPTIONS: Final = ("--log-level", "error", "--timeout-ms", "60000")
FILE_NAME: Final = "http"
BASELINES: Final = {  # by the engine of `swiftlet bench`: the name that the table shows, and the module
    "ort_stock": ("FastAPI and ORT int8", "loadtest.baseline_fastapi_onnx"),
    "openvino": ("FastAPI and OpenVINO", "loadtest.baseline_fastapi_openvino"),
}
PIPELINE: Final = "transformers pipeline"
HEAD: Final = ("workload", "c", "server", "requests/s", "p50 ms", "p99 ms", "p99 of short ones", "failed")


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    pid: int
    is_lone: bool = False  # all cores answer one call, so only one caller is measured


@dataclass(frozen=True)
class Point:
    """The measurements of a server on a workload at a concurrency."""

    workload: str
    server: str
    callers: int
    rounds: tuple[WrkResult, ...]
    short_p99: float | None  # milliseconds, of the short bodies if there are long ones too

    @property
    def median_round(self) -> WrkResult:
        """The round with the median rate."""
        return sorted(self.rounds, key=lambda result: result.rate)[len(self.rounds) // 2]


@dataclass(frozen=True)
class Comparison:
    setting: Environment
    models: tuple[str, ...]
    seconds: float
    points: tuple[Point, ...]
    resident_mib: dict[str, float]


def workload_files(directory: Path, names: Sequence[str], temporary: Path) -> dict[str, Path]:
    """Returns the workload files by name. Without the directory, writes the default workload of each task."""
    if directory.is_dir():
        files = {path.stem: path for path in sorted(directory.glob("*.jsonl"))}
    else:
        files = {}
        for path in TASKS:
            files[path[1:]] = temporary / f"{path[1:]}.jsonl"
            bodies = [body.data for body in default_workload(400) if body.path == path]
            files[path[1:]].write_bytes(b"\n".join(bodies) + b"\n")
    return {name: file for name, file in files.items() if not names or name in names}


@contextmanager
def baseline(name: str, module: str, *arguments: str) -> Iterator[Server]:
    """Runs a baseline that answers. Its first start may take minutes.

    Raises:
        SystemExit: it does not answer a text.
    """
    with module_server(module, *arguments) as (url, pid):
        body, headers = b'{"inputs": "It works."}', {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/classify", body, headers)  # noqa: S310  # loopback
        try:
            urllib.request.urlopen(request, timeout=60).close()  # noqa: S310  # loopback
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{url}/classify answered {error.code}.") from None
        yield Server(name, url, pid)


async def short_p99(url: str, file: Path, callers: int, seconds: float) -> float | None:
    """Returns the p99 of a file's short bodies, in milliseconds; None if all are short, or none was answered."""
    bodies = read_workload([file])
    if len({len(body.data) > LONG_BYTES for body in bodies}) < 2 or {body.path for body in bodies} != {"/classify"}:
        return None
    client, remaining = Client(url), itertools.cycle(bodies)
    latencies_s: list[float] = []

    async def send(due: float) -> None:
        body = next(remaining)
        response = await client.send(request_bytes(body.path, body.data))
        if response.status == 200 and len(body.data) <= LONG_BYTES:
            latencies_s.append(time.monotonic() - due)

    await closed_loop([send] * callers, seconds)
    client.close()
    return 1e3 * percentile(latencies_s, 0.99) if latencies_s else None


def compare(
    servers: Sequence[Server], files: dict[str, Path], concurrencies: Sequence[int], seconds: float, rounds: int
) -> Iterator[Point]:
    """Measures the servers in turn, at each workload and concurrency."""
    for name, file in files.items():
        path = route_of(file.read_bytes().split(b"\n", 1)[0])
        able = [server for server in servers if server.name != PIPELINE or path == "/classify"]
        several = [server for server in able if not server.is_lone]
        slowest = min(_measure(server, path, file, 8, WARM_UP_S).rate for server in several)
        for callers in concurrencies:
            turns = able if callers == 1 else several
            results: dict[str, list[WrkResult]] = {server.name: [] for server in turns}
            duration_s = max(seconds, MIN_REQUESTS_PER_CALLER * callers / max(slowest, 1.0))
            for _ in range(rounds):
                for server in turns:
                    results[server.name].append(_measure(server, path, file, callers, duration_s))
            for server in turns:
                short = asyncio.run(short_p99(server.url, file, callers, duration_s))
                wait_until_idle(server.pid)
                yield Point(name, server.name, callers, tuple(results[server.name]), short)


def _measure(server: Server, path: str, file: Path, callers: int, seconds: float) -> WrkResult:
    result = wrk.run(f"{server.url}{path}", file, callers, seconds)
    wait_until_idle(server.pid)
    return result


def row(point: Point) -> str:
    rates, middle = [result.rate for result in point.rounds], point.median_round
    short = "–" if point.short_p99 is None else f"{point.short_p99:.0f}"
    cells = [
        point.workload,
        str(point.callers),
        point.server,
        f"{median(rates):,.1f} ({min(rates):,.1f} to {max(rates):,.1f})",
        f"{middle.p50:.1f}",
        f"{middle.p99:.1f}",
        short,
        str(sum(result.failed for result in point.rounds)),
    ]
    return f"| {' | '.join(cells)} |"


def head() -> str:
    return f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"


def introduction(comparison: Comparison) -> str:
    """Returns the setting of the measurement."""
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in comparison.resident_mib.items())
    where, rounds = comparison.setting, len(comparison.points[0].rounds)
    lines = [
        where.description(),
        f"Models: {', '.join(comparison.models)}. Closed loop, median of {rounds} rounds of "
        f"{comparison.seconds:g} s or more, and the lowest and highest rate.",
        f"Resident memory of all processes afterwards, MiB: {memory}.",
    ]
    return "\n".join([*lines, *load_warnings(where.load, where.cores)])


def write(comparison: Comparison, directory: Path) -> None:
    """Writes the table, the data and the picture."""
    directory.mkdir(parents=True, exist_ok=True)
    table = "\n".join([head(), *map(row, comparison.points)])
    text = f"# Over HTTP\n\n{introduction(comparison)}\n\n{table}\n"
    (directory / f"{FILE_NAME}.md").write_text(text, "utf-8")
    data = json.dumps(asdict(comparison), indent=1, ensure_ascii=False)
    (directory / f"{FILE_NAME}.json").write_text(data + "\n", "utf-8")
    draw(comparison, directory / f"{FILE_NAME}.png")


def draw(comparison: Comparison, path: Path) -> None:
    """Draws a panel for each workload: requests per second over concurrency."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.workload for point in comparison.points))
    figure = Figure(figsize=(3.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for server in dict.fromkeys(point.server for point in comparison.points):
            points = [point for point in comparison.points if (point.workload, point.server) == (name, server)]
            x = [point.callers for point in points]
            axes.plot(x, [point.median_round.rate for point in points], marker="o", label=server)
        axes.set(title=name, xscale="log", yscale="log", xlabel="callers", ylabel="requests/s")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    where = comparison.setting
    figure.suptitle(f"{where.date}, {where.commit}, {where.machine}", fontsize=8)
    figure.savefig(path, dpi=110, format="png")


def _models(arguments: argparse.Namespace) -> tuple[str, ...]:
    if arguments.released is not None:
        from loadtest.released_shapes import LABELS, make_artifact  # needs torch

        return tuple(str(make_artifact(task, arguments.released)) for task in LABELS)
    return tuple(arguments.model or BUNDLED)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", action="append", help="Artifact or bundled model. Repeat for each task.")
    add("--released", type=Path, help="Serve MobileBERT as released, made in this directory if needed.")
    add("--checkpoint", help="Classifier that transformers loads, for the pipeline.")
    add("--workloads", type=Path, default=Path("../shared/workloads"), help="Directory of .jsonl files.")
    add("--only", nargs="+", default=[], metavar="WORKLOAD")
    add("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128])
    add("--seconds", type=int, default=3, help="Duration of a measurement. Default: 3.")
    add("--rounds", type=int, default=3, help="Measurements of each server. Default: 3.")
    add("--quick", action="store_true", help="One round of two seconds, at concurrencies 1 and 32.")
    add("--out", type=Path, help="Directory for the table, the data and the picture.")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.concurrency, arguments.seconds, arguments.rounds = [1, 32], 2, 1
    return arguments


def main() -> None:
    arguments = _parse()
    require_chart()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed.")
    models = _models(arguments)
    left_out = {engine: package for engine in BASELINES if (package := missing_package(ENGINES[engine]))}
    baselines = [engine for engine in BASELINES if engine not in left_out]
    packages = dict.fromkeys(package for engine in baselines for package in ENGINES[engine].packages)
    where = current_environment("tokenizers", "torch", *packages, *(["transformers"] if arguments.checkpoint else []))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = workload_files(arguments.workloads, arguments.only, temporary)
        if not files:
            raise SystemExit("No workload has that name.")
        servers = []
        for name, engine in {"swiftlet": "native", "swiftlet, no network": "echo"}.items():
            server = stack.enter_context(serving(models, engine, *SERVER_OPTIONS))
            servers.append(Server(name, server.url, server.pid))
        for engine, package in left_out.items():
            print(f"{BASELINES[engine][0]} is left out: {package} is not installed.")
        servers += [stack.enter_context(baseline(*BASELINES[engine], *models)) for engine in baselines]
        if where.cores > 1 and 1 in arguments.concurrency:
            for name, module in (BASELINES[engine] for engine in baselines):
                lone = baseline(f"{name}, a call on all cores", module, "--threads", str(where.cores), *models)
                servers.append(replace(stack.enter_context(lone), is_lone=True))
        if arguments.checkpoint:
            pipeline = baseline(PIPELINE, "loadtest.baseline_transformers_pipeline", arguments.checkpoint)
            servers.append(stack.enter_context(pipeline))
        points = []
        print(head())
        for point in compare(servers, files, arguments.concurrency, arguments.seconds, arguments.rounds):
            print(row(point), flush=True)
            points.append(point)
        resident_mib = {server.name: resident_kib(server.pid) / 1024 for server in servers}
    names = tuple(Path(model).name for model in models)  # their directories belong to this machine
    comparison = Comparison(where, names, arguments.seconds, tuple(points), resident_mib)
    print(f"\n{introduction(comparison)}")
    if arguments.out is not None:
        write(comparison, arguments.out)


if __name__ == "__main__":
    main()
