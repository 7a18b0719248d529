"""Compares CPU engines side by side, in one run: `swiftlet bench`. Most cases run on one core.

A case is a network and its batches: random ids in one batch or of mixed lengths, or real texts, one by one and in
batches. Every round runs each engine, in a random order: other work on the machine affects all alike. A round
runs as many passes over the batches as fit into a twentieth of a second, and at least one. Its result is the mean CPU
time of a pass, which other work changes least. Engines are compared round by round: the speed-up is the median of the
rounds' ratios, with the interval of its order statistics.

Cases of one sequence run once more with all cores: each engine gets as many threads as there are, and wall-clock time
counts.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark.baselines import (
    ENGINES,
    LoadedEngine,
    Unsupported,
    load_memory_bytes,
    missing_package,
)
from swiftlet_serve.benchmark.measure import Interval, Result, measure, scaling
from swiftlet_serve.benchmark.networks import Network, Progress, batch_of
from swiftlet_serve.benchmark.plan import Case, Plan, cases_by_network
from swiftlet_serve.engines import _kernel_library, _kernel_selection
from swiftlet_serve.offline import environment
from swiftlet_serve.offline.environment import Environment

PEAK_PRODUCTS: Final = 1_000_000  # some milliseconds


@dataclass(frozen=True)
class Memory:
    """The size of a loaded network."""

    network: str
    engine: str
    file_bytes: int  # of the file that is loaded
    resident_bytes: int  # growth of a process that loads it and runs 1 x 128 tokens, without packages


@dataclass(frozen=True)
class Scaling:
    """The calls of two cores relative to those of one, by wall-clock time."""

    case: str
    engine: str
    ratio: Interval


@dataclass(frozen=True)
class Benchmark:
    """All measurements of a run."""

    setting: Environment
    kernel: str | None
    peak: float | None  # multiply-adds per second: the kernel's best in this run
    left_out: Mapping[str, str]  # engines, with the reason
    texts: str
    results: tuple[Result, ...]
    memory: tuple[Memory, ...]
    scaling: tuple[Scaling, ...]
    all_cores: tuple[Result, ...]  # of calls with one sequence, on all cores


def bench(plan: Plan, progress: Progress, advance: Callable[[int, int], None] = lambda *_: None) -> Benchmark:
    """Measures the cases of a plan. `advance` receives the completed and the total cases of each network.

    Raises:
        ArtifactError, SetupError: one of the models cannot be opened.
        DatasetError: a data file holds no texts for its task.
    """
    left_out = {
        name: f"{package} is not installed" for name in plan.engines if (package := missing_package(ENGINES[name]))
    }
    names = [name for name in plan.engines if name not in left_out]
    setting = environment.current_environment(*_packages(names))
    library = _kernel_selection.best() if "native" in names else None
    peaks: list[float] = []
    results: list[Result] = []
    memory: list[Memory] = []
    scalings: list[Scaling] = []
    all_cores: list[Result] = []

    def measure_peak() -> None:
        if library is not None:
            peaks.append(_peak(library))

    for network, cases in cases_by_network(plan, progress):
        engines: dict[str, LoadedEngine] = {}
        for name in names:
            try:
                ENGINES[name].prepare(network)
                if plan.memory and network.artifact.manifest.source == {"weights": "random"}:
                    memory.append(_memory(name, network))
                engines[name] = ENGINES[name].load(network, 1)
            except Unsupported as reason:
                left_out[name] = f"{network.artifact.manifest.name}: {reason}"
        manifest = network.artifact.manifest
        operations = Operations.of(manifest.architecture, manifest.config, network.shapes(), manifest.embedding)
        for done, case in enumerate(cases, 1):
            progress(case.name)
            results += measure(case, engines, operations, plan.seconds, measure_peak)
            advance(done, len(cases))
        if setting.cores >= 2:
            scalings += _scalings(cases, engines, plan.seconds)
            progress("lone sequences on all cores")
            engines = {name: ENGINES[name].load(network, setting.cores) for name in engines}
            for case in cases:
                if all(len(batch) == 1 for batch in case.batches):
                    all_cores += measure(case, engines, operations, plan.seconds, clock=time.perf_counter)
    kernel, peak = (library.kernel, max(peaks)) if library and peaks else (None, None)
    measured = tuple(results), tuple(memory), tuple(scalings), tuple(all_cores)
    return Benchmark(setting, kernel, peak, left_out, plan.text_source, *measured)


def _peak(library: _kernel_library.Library) -> float:
    started = time.thread_time()
    return library.multiply_at_peak(PEAK_PRODUCTS) / (time.thread_time() - started)


def _memory(name: str, network: Network) -> Memory:
    file = ENGINES[name].prepare(network)
    files = {file, file.with_suffix(".bin")}  # OpenVINO has two
    size = sum(part.stat().st_size for part in files if part.exists())
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        growth = process.submit(load_memory_bytes, name, network, batch_of(1, 128)).result()
    return Memory(network.artifact.manifest.name, name, size, growth)


def _scalings(cases: Sequence[Case], engines: Mapping[str, LoadedEngine], seconds: float) -> Iterator[Scaling]:
    for case in cases:
        for name, engine in engines.items():
            if case.scaled and ENGINES[name].serves:
                yield Scaling(case.name, name, scaling(engine.call, case.batches, seconds / 2))


def _packages(names: Iterable[str]) -> list[str]:
    return sorted({package for name in names for package in ENGINES[name].packages} - set(environment.PACKAGES))
