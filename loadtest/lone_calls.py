"""Measures how long one sequence takes on an idle machine of 1, 2, 4, 8 and 16 cores, by engine.

    python -m loadtest.lone_calls [--shapes mobilebert albert] [--cores 1 2 4 8 16] [--tokens 16 128 384]

Each number of cores is a process that may use only so many, with engines that have as many threads. A process runs its
engines in turn, in a random order. The networks have random weights. An engine that is not installed is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark.baselines import ENGINES, LoadedEngine, Unsupported, missing_package
from swiftlet_serve.benchmark.measure import Interval, Result, measure
from swiftlet_serve.benchmark.networks import RELEASED, Network, batch_of, released_network
from swiftlet_serve.benchmark.plan import Case
from swiftlet_serve.offline.environment import current_environment

COMPARED: Final = ("native", "ort_stock", "openvino_int8", "openvino")
SUBJECT: Final = "native"


def run(
    shape: str, network: Network, engines: Sequence[str], cores: int, lengths: Sequence[int], seconds: float
) -> list[Result]:
    """Measures a network in this process, on as many of its cores. Engines that do not support it are left out."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # before the libraries start their threads
    loaded: dict[str, LoadedEngine] = {}
    for name in engines:
        with suppress(Unsupported):
            loaded[name] = ENGINES[name].load(network, cores)
    manifest = network.artifact.manifest
    operations = Operations.of(manifest.architecture, manifest.config, network.shapes(), manifest.embedding)
    cases = [Case(f"{shape} 1×{tokens}", network, [batch_of(1, tokens)]) for tokens in lengths]
    return [result for case in cases for result in measure(case, loaded, operations, seconds, clock=time.perf_counter)]


def row(case: str, cores: int, results: Sequence[Result]) -> str:
    """Returns a row: milliseconds by engine, and how much longer than `native` the fastest other engine takes."""
    times = {result.engine: Interval.of(result.rounds) for result in results if result.case == case}
    cells = [case, str(cores)]
    for name in COMPARED:
        time_s = times.get(name)
        cells.append("–" if time_s is None else f"{1e3 * time_s.value:.2f} ({_range_ms(time_s)})")
    others = [time_s.value for name, time_s in times.items() if name != SUBJECT]
    cells.append(f"{min(others) / times[SUBJECT].value:.2f}" if others and SUBJECT in times else "–")
    return f"| {' | '.join(cells)} |"


def _range_ms(time_s: Interval) -> str:
    return f"{1e3 * time_s.low:.2f} to {1e3 * time_s.high:.2f}"


def in_process(work: Callable[[], list[Result]]) -> list[Result]:
    """Runs work in a process of its own, and returns what it returns."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["mobilebert", "albert"], choices=RELEASED, metavar="SHAPE")
    parser.add_argument("--engines", nargs="+", default=list(COMPARED), choices=COMPARED, metavar="ENGINE")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 384])
    parser.add_argument("--seconds", type=float, default=2.0, help="Time for each row. Default: 2.")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench"), help="Folder for exported graphs.")
    parser.add_argument("--prepare", action="store_true", help="Only export and quantise the networks.")
    arguments = parser.parse_args()
    engines = [name for name in arguments.engines if missing_package(ENGINES[name]) is None]
    progress = partial(print, file=sys.stderr, flush=True)
    networks = {shape: released_network(shape, arguments.runs, progress) for shape in arguments.shapes}
    for network in networks.values():
        for name in engines:
            ENGINES[name].prepare(network)
    if arguments.prepare:
        return

    packages = [package for name in engines for package in ENGINES[name].packages]
    print(f"{current_environment(*packages).description()}\n\nMilliseconds, and their interval.\n")
    titles = ("native", "ONNX Runtime, stock int8", "OpenVINO int8", "OpenVINO", "best other / native")
    print(f"| case | cores | {' | '.join(titles)} |\n|{'---|' * (2 + len(titles))}")
    for shape, network in networks.items():
        for cores in arguments.cores:
            work = partial(run, shape, network, engines, cores, arguments.tokens, arguments.seconds)
            results = in_process(work)
            for case in dict.fromkeys(result.case for result in results):
                print(row(case, cores, results), flush=True)


if __name__ == "__main__":
    main()
