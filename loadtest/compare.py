"""The price of HTTP, tokenising and batching: workloads to Swiftlet, to Swiftlet without a network, and to peers.

    python loadtest/compare.py [--released DIR | --model ARTIFACT ...] [--workloads DIR] [--out DIR] [--quick]

The workloads are files of request bodies, W1.jsonl and so on, or texts of our own where there are none. All servers run
at once, and only one of them has requests at a time: a closed loop of `wrk`, which must be installed, on the same
cores. At every concurrency the servers take turns, `--rounds` times; told is the median round, and the lowest and
highest rate. A turn begins when the server before has nothing left to do, and takes `--seconds`, or as long as the
slowest server needs to answer every caller three times. Long bodies make short ones wait, so what short ones wait where
there are both is measured once more, by the generator in Python, which can tell them apart.

Peers are `plain.py`, FastAPI around ONNX Runtime; and `pipeline.py`, transformers' own, of a `--checkpoint` that
classifies.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from loadtest import wrk
from loadtest.generator import Client, closed_loop, payload
from loadtest.released_mobilebert import VOCABULARY, make
from loadtest.server_process import announced, resident_kib, serving, settle
from loadtest.workload import TASKS, mix, read, route
from loadtest.wrk import Result
from swiftlet_serve.service.benchmark.bench import EMBEDDED
from swiftlet_serve.service.offline.environment import Setting, other_work, setting
from swiftlet_serve.service.percentile import percentile

HERE: Final = Path(__file__).parent
LONG_BYTES: Final = 400  # of a body that is called long
WARM_S: Final = 2
TURNS: Final = 3  # that every caller has, at least, while a server is measured
QUIET: Final = ("--log-level", "error", "--timeout-ms", "60000")
NAME: Final = "http"  # of the files


@dataclass(frozen=True)
class Server:
    name: str
    port: int
    pid: int


@dataclass(frozen=True)
class Point:
    """A server at a workload and a concurrency."""

    workload: str
    server: str
    callers: int
    rounds: tuple[Result, ...]
    short_p99: float | None  # milliseconds, of the short bodies where there are long ones too

    @property
    def middle(self) -> Result:
        """The round whose rate is the median."""
        return sorted(self.rounds, key=lambda result: result.rate)[len(self.rounds) // 2]


@dataclass(frozen=True)
class Compared:
    setting: Setting
    models: tuple[str, ...]
    seconds: float
    points: tuple[Point, ...]
    resident_mib: dict[str, float]


def workloads(directory: Path, names: Sequence[str], to: Path) -> dict[str, Path]:
    """Files of bodies by name; of texts of our own, one for each task, where there is no such directory."""
    if directory.is_dir():
        files = {path.stem: path for path in sorted(directory.glob("*.jsonl"))}
    else:
        files = {}
        for path in TASKS:
            files[path[1:]] = to / f"{path[1:]}.jsonl"
            bodies = [body.data for body in mix(400) if body.path == path]
            files[path[1:]].write_bytes(b"\n".join(bodies) + b"\n")
    return {name: file for name, file in files.items() if not names or name in names}


@contextmanager
def peer(name: str, script: str, *arguments: str) -> Iterator[Server]:
    """A peer that answers; it may take minutes to start the first time."""
    with announced(script, *arguments) as (address, pid):
        _check(f"{address}/classify")
        yield Server(name, int(address.rpartition(":")[2]), pid)


def _check(url: str) -> None:
    """Ends the comparison where a text is not answered."""
    request = urllib.request.Request(url, b'{"inputs": "It works."}', {"Content-Type": "application/json"})  # noqa: S310  # loopback
    try:
        urllib.request.urlopen(request, timeout=60).close()  # noqa: S310  # loopback
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url} answered {error.code}") from None


async def short_p99(port: int, file: Path, callers: int, seconds: float) -> float | None:
    """What 99 % of the short bodies of a file wait at most, in milliseconds; None where all are short, or none came."""
    bodies = read([file])
    if len({len(body.data) > LONG_BYTES for body in bodies}) < 2 or {body.path for body in bodies} != {"/classify"}:
        return None
    client, turn, took = Client(port), itertools.cycle(bodies), []

    async def ask(now: float) -> None:
        body = next(turn)
        answer = await client.ask(payload(body.path, body.data))
        if answer.status == 200 and len(body.data) <= LONG_BYTES:
            took.append(time.monotonic() - now)

    await closed_loop(callers, seconds, ask)
    client.close()
    return 1e3 * percentile(took, 0.99) if took else None


def compare(
    servers: Sequence[Server], files: dict[str, Path], concurrency: Sequence[int], seconds: float, rounds: int
) -> Iterator[Point]:
    """Lets the servers take turns."""
    for name, file in files.items():
        path = route(file.read_bytes().split(b"\n", 1)[0])
        able = [server for server in servers if server.name != PIPELINE or path == "/classify"]
        slowest = min(_turn(server, path, file, 8, WARM_S).rate for server in able)
        for callers in concurrency:
            results: dict[str, list[Result]] = {server.name: [] for server in able}
            turn_s = max(seconds, TURNS * callers / max(slowest, 1.0))
            for _ in range(rounds):
                for server in able:
                    results[server.name].append(_turn(server, path, file, callers, turn_s))
            for server in able:
                short = asyncio.run(short_p99(server.port, file, callers, turn_s))
                settle(server.pid)
                yield Point(name, server.name, callers, tuple(results[server.name]), short)


def _turn(server: Server, path: str, file: Path, callers: int, seconds: float) -> Result:
    result = wrk.run(f"http://127.0.0.1:{server.port}{path}", file, callers, seconds)
    settle(server.pid)
    return result


HEAD: Final = ("workload", "c", "server", "requests/s", "p50 ms", "p99 ms", "p99 of short ones", "failed")
PIPELINE: Final = "transformers pipeline"


def row(point: Point) -> str:
    rates, middle = [result.rate for result in point.rounds], point.middle
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


def about(compared: Compared) -> str:
    memory = ", ".join(f"{name} {mib:.0f}" for name, mib in compared.resident_mib.items())
    lines = [
        compared.setting.told(),
        f"Models: {', '.join(compared.models)}. Closed loop, median of {len(compared.points[0].rounds)} rounds of "
        f"{compared.seconds:g} s or more, and the lowest and highest rate.",
        f"Resident afterwards, MiB, of all processes: {memory}.",
    ]
    return "\n".join([*lines, *other_work(compared.setting.load, compared.setting.cores)])


def write(compared: Compared, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    table = "\n".join([head(), *map(row, compared.points)])
    (directory / f"{NAME}.md").write_text(f"# Over HTTP\n\n{about(compared)}\n\n{table}\n", "utf-8")
    data = json.dumps(asdict(compared), indent=1, ensure_ascii=False)
    (directory / f"{NAME}.json").write_text(data + "\n", "utf-8")
    draw(compared, directory / f"{NAME}.png")


def draw(compared: Compared, path: Path) -> None:
    """A PNG with a panel for each workload: requests a second over how many ask at a time."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.workload for point in compared.points))
    figure = Figure(figsize=(3.2 * len(names), 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for server in dict.fromkeys(point.server for point in compared.points):
            points = [point for point in compared.points if (point.workload, point.server) == (name, server)]
            x = [point.callers for point in points]
            axes.plot(x, [point.middle.rate for point in points], marker="o", label=server)
        axes.set(title=name, xscale="log", yscale="log", xlabel="callers", ylabel="requests/s")
        axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.suptitle(f"{compared.setting.date}, {compared.setting.commit}, {compared.setting.machine}", fontsize=8)
    figure.savefig(path, dpi=110, format="png")


def _models(arguments: Any) -> tuple[str, ...]:
    if arguments.released is not None:
        return tuple(str(make(task, arguments.released, VOCABULARY)) for task in ("classify", "qa", "fill-mask"))
    return tuple(arguments.model or EMBEDDED)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="artifact or embedded model; one for each task")
    parser.add_argument("--released", type=Path, help="serve MobileBERT as released, made in this directory if need be")
    parser.add_argument("--checkpoint", help="for the pipeline: what transformers loads, a classifier")
    parser.add_argument("--workloads", type=Path, default=Path("../shared/workloads"))
    parser.add_argument("--only", nargs="+", default=[], metavar="WORKLOAD")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of two seconds, at 1 and 32")
    parser.add_argument("--out", type=Path, help="directory to write table, data and picture to")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.concurrency, arguments.seconds, arguments.rounds = [1, 32], 2, 1
    return arguments


def main() -> None:
    arguments = _parse()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed")
    models = _models(arguments)
    where = setting("tokenizers", "torch", *(["transformers"] if arguments.checkpoint else []))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files = workloads(arguments.workloads, arguments.only, temporary)
        if not files:
            raise SystemExit("there is no such workload")
        servers = []
        for name, engine in {"swiftlet": "native", "swiftlet, no network": "echo"}.items():
            served = stack.enter_context(serving(models, engine, *QUIET))
            servers.append(Server(name, served.port, served.process.pid))
        servers.append(stack.enter_context(peer("FastAPI and ORT int8", "loadtest.baseline_fastapi_onnx", *models)))
        if arguments.checkpoint:
            servers.append(
                stack.enter_context(peer(PIPELINE, "loadtest.baseline_transformers_pipeline", arguments.checkpoint))
            )
        points = []
        print(head())
        for point in compare(servers, files, arguments.concurrency, arguments.seconds, arguments.rounds):
            print(row(point), flush=True)
            points.append(point)
        resident = {server.name: resident_kib(server.pid) / 1024 for server in servers}
    named = tuple(Path(model).name for model in models)  # where they lie is this machine's affair
    compared = Compared(where, named, arguments.seconds, tuple(points), resident)
    print(f"\n{about(compared)}")
    if arguments.out is not None:
        write(compared, arguments.out)


if __name__ == "__main__":
    main()
