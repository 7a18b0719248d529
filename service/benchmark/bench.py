"""Engines side by side on one core, in one run: what `swiftlet bench` measures.

A case is a network and batches: one batch of random ids in a released shape, or real texts, one by one and together.
In every round each contender has a turn, in an order drawn anew, so that a busy machine is unfair to all alike. A turn
is as many passes over the batches as take a twentieth of a second, one at least; what it gives is the mean pass, in
seconds of the processor, which what else runs lengthens least. Contenders are compared round by round: the ratio is
the median of the rounds' ratios, with the interval that order statistics give it.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_serve.models.artifact import TOKENIZER
from swiftlet_serve.models.tokenizer import Encoding, Tokenizer
from swiftlet_serve.models.work import Work
from swiftlet_serve.service.benchmark.baselines import (
    CONTENDERS,
    Call,
    Loaded,
    Network,
    Unfit,
    batch_of,
    loading_bytes,
    missing,
    opened,
    released,
)
from swiftlet_serve.service.engines import native
from swiftlet_serve.service.loading import ServedModel, locate, open_model
from swiftlet_serve.service.offline import environment
from swiftlet_serve.service.offline.environment import Setting
from swiftlet_serve.service.offline.evaluate import encodings
from swiftlet_serve.service.offline.release import golden_encodings
from swiftlet_serve.service.types import Batch

SHAPES: Final[Mapping[str, Sequence[tuple[int, int]]]] = {  # rows and tokens
    "mobilebert": ((1, 16), (1, 32), (1, 128), (8, 32), (8, 128), (1, 384)),
    "albert": ((1, 16), (1, 128), (8, 128)),
}
SCALED: Final = ((1, 16), (8, 32))  # shapes that are also measured on two cores
EMBEDDED: Final = ("mobilebert-sst2", "mobilebert-qa", "mobilebert-fill-mask")
DATA: Final = {
    "classify": "sst2/dev.tsv",
    "qa": "squad/squad-v1.1.eval.json",
    "fill-mask": "corpora/enwiki2015_cap8k.txt.xz",
}
TEXTS: Final = {"classify": 32, "qa": 10, "fill-mask": 16}  # requests of a data file
TOGETHER: Final = 512  # tokens of a batch of texts of like length, padding counted: what ONNX Runtime does best at
EXACT: Final = "torch"  # the contender that the answers of the others are compared with
TURN_S: Final = 0.05
LEAST_ROUNDS: Final = 6  # of fewer, the whole range is no 95 % interval
PEAK_ROUNDS: Final = 1_000_000  # some milliseconds
CONFIDENCE: Final = 0.95

Report = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is to be measured, and for how long."""

    contenders: Sequence[str] = tuple(CONTENDERS)
    shapes: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=lambda: SHAPES)
    models: Sequence[str] = EMBEDDED
    data: Path = Path("../shared/data")
    runs: Path = Path("runs/bench")
    seconds: float = 20.0  # for each case, if its rounds are not longer
    memory: bool = True

    def quick(self) -> Plan:
        """The same in a minute or two, once the networks are exported: fewer cases, and wide intervals."""
        shapes = {name: shapes[:2] for name, shapes in self.shapes.items()}
        return replace(self, shapes=shapes, models=self.models[:1], seconds=min(self.seconds, 3.0), memory=False)


@dataclass(frozen=True)
class Interval:
    """A median, and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """The median of independent values and the order statistics around it: no assumption about how they scatter.

        The k-th lowest and highest hold the median unless fewer than k values fall on one side of it, which are coin
        tosses. Of fewer than six values the range is all there is, and it holds less often.
        """
        ordered, n = sorted(values), len(values)
        k, tail = 0, 0.0
        while k < n // 2 and (tail := tail + math.comb(n, k) / 2**n) <= (1 - CONFIDENCE) / 2:
            k += 1
        first = max(k - 1, 0)
        return cls(statistics.median(ordered), ordered[first], ordered[n - 1 - first])


@dataclass(frozen=True)
class Case:
    """What every contender runs."""

    name: str
    network: Network
    batches: Sequence[Batch]

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))

    def needed(self, work: Work) -> int:
        """Multiply-adds of a pass."""
        return sum(work.needed(np.diff(b.offsets).tolist(), np.diff(b.focus_offsets).tolist()) for b in self.batches)


@dataclass(frozen=True)
class Result:
    """How a contender did in a case."""

    case: str
    contender: str
    title: str
    rows: int  # of a pass
    needed: int  # multiply-adds of a pass
    rounds: tuple[float, ...]  # seconds of the processor a pass, one for each round
    call_ms: float  # median of the calls, by the clock: the latency at concurrency 1
    off: float | None  # largest difference from torch's answers to the first batch, as a share of their largest number


@dataclass(frozen=True)
class Memory:
    """What it takes to have loaded a network."""

    network: str
    contender: str
    file_bytes: int  # of the file that is loaded
    resident_bytes: int  # by which a process grows that loads it and answers 1 x 128 tokens, packages apart


@dataclass(frozen=True)
class Scaling:
    """Calls side by side on two cores against calls on one, by the clock."""

    case: str
    contender: str
    times: Interval


@dataclass(frozen=True)
class Found:
    """A run. Nothing in it is computed but medians: what was measured can be judged anew."""

    setting: Setting
    kernel: str | None
    peak: float | None  # multiply-adds a second, the most that the kernel reached in this run
    left_out: Mapping[str, str]
    texts: str
    results: tuple[Result, ...]
    memory: tuple[Memory, ...]
    scaling: tuple[Scaling, ...]


def bench(plan: Plan, report: Report) -> Found:
    """Measures what the plan says.

    Raises:
        ArtifactError, SetupError: one of the models cannot be opened.
        DatasetError: a data file holds no texts for its task.
    """
    left_out = {
        name: f"{package} is not installed" for name in plan.contenders if (package := missing(CONTENDERS[name]))
    }
    fit = [name for name in plan.contenders if name not in left_out]
    setting = environment.setting(*_packages(fit))
    library = native.best() if "native" in fit else None
    peaks: list[float] = []
    results: list[Result] = []
    memory: list[Memory] = []
    scaling: list[Scaling] = []
    for network, cases in _networks(plan, report):
        loaded = {}
        for name in fit:
            try:
                CONTENDERS[name].prepare(network)
                if plan.memory and network.artifact.manifest.source == {"weights": "random"}:
                    memory.append(_memory(name, network))
                loaded[name] = CONTENDERS[name].load(network)
            except Unfit as reason:
                left_out[name] = f"{network.artifact.manifest.name}: {reason}"
        manifest = network.artifact.manifest
        work = Work.of(manifest.architecture, manifest.config, network.shapes())
        for case in cases:
            report(case.name)
            results += measure(
                case, loaded, work, plan.seconds, lambda: peaks.append(_peak(library)) if library else None
            )
        scaling += _scaling(cases, loaded, plan.seconds, setting.cores)
    source = plan.data.name if plan.data.is_dir() else "our own sentences"
    kernel, peak = (library.kernel, max(peaks)) if library and peaks else (None, None)
    return Found(setting, kernel, peak, left_out, source, tuple(results), tuple(memory), tuple(scaling))


def measure(
    case: Case, loaded: Mapping[str, Loaded], work: Work, seconds: float, besides: Callable[[], object] = lambda: None
) -> Iterator[Result]:
    """Lets contenders take turns at a case; `besides` is called once a round."""
    passes = {name: _passes(one.call, case.batches) for name, one in loaded.items()}
    rounds: dict[str, list[float]] = {name: [] for name in loaded}
    calls: dict[str, list[float]] = {name: [] for name in loaded}
    order, draw = list(loaded), random.Random(0)  # noqa: S311  # no secret
    ends = time.monotonic() + seconds
    done = 0
    while done < LEAST_ROUNDS or time.monotonic() < ends:
        draw.shuffle(order)
        for name in order:
            rounds[name].append(_turn(loaded[name].call, case.batches, passes[name], calls[name]))
        besides()
        done += 1
    needed, off = case.needed(work), _deviations(loaded, case.batches[0])
    for name, one in loaded.items():
        middle = 1e3 * statistics.median(calls[name])
        yield Result(case.name, name, one.title, case.rows, needed, tuple(rounds[name]), middle, off.get(name))


def _deviations(loaded: Mapping[str, Loaded], batch: Batch) -> dict[str, float]:
    """How far each contender is off torch's answers; nothing where torch is none of them."""
    if EXACT not in loaded:
        return {}
    answers = {name: np.concatenate(one.call(batch)) for name, one in loaded.items()}
    right = answers[EXACT]
    largest = np.abs(right).max()
    return {name: float(np.abs(answer - right).max() / largest) for name, answer in answers.items()}


def _passes(call: Call, batches: Sequence[Batch]) -> int:
    """Warms up, and says how many passes make a turn."""
    for batch in batches:
        call(batch)
    took: list[float] = []
    _turn(call, batches, 1, took)
    return max(1, int(TURN_S / sum(took)))


def _turn(call: Call, batches: Sequence[Batch], passes: int, calls: list[float]) -> float:
    """Seconds of the processor a pass; adds what each call took by the clock."""
    if passes > 1:  # what ran before has left other things in the caches
        for batch in batches:
            call(batch)
    started = time.process_time()
    for _ in range(passes):
        for batch in batches:
            began = time.perf_counter()
            call(batch)
            calls.append(time.perf_counter() - began)
    return (time.process_time() - started) / passes


def _peak(library: native.Library) -> float:
    started = time.thread_time()
    return library.multiply(PEAK_ROUNDS) / (time.thread_time() - started)


# --- what is measured


def _networks(plan: Plan, report: Report) -> Iterator[tuple[Network, list[Case]]]:
    paths = locate(plan.models) if plan.models else []  # before anything that takes long
    for architecture, shapes in plan.shapes.items():
        network = released(architecture, plan.runs, report)
        yield network, [Case(_name(architecture, *shape), network, [batch_of(*shape)]) for shape in shapes]
    for path in paths:
        model = open_model(path, "native")
        network = opened(model.artifact, plan.runs, report)
        texts = _texts(model, plan.data)
        name, task = model.manifest.name, model.manifest.task
        yield (
            network,
            [
                Case(f"{name}, {task}, one by one", network, [Batch.of([text]) for text in texts]),
                Case(f"{name}, {task}, together", network, [Batch.of(group) for group in together(texts)]),
            ],
        )


def _name(architecture: str, rows: int, tokens: int) -> str:
    return f"{architecture} {rows}×{tokens}"


def _texts(model: ServedModel, data: Path) -> list[Encoding]:
    """Real texts where there are, else sentences of our own; all of their rows, since not every contender ranks."""
    task = model.manifest.task
    if data.is_dir():
        found = encodings(model, data / DATA[task], TEXTS[task])
        return [Encoding(one.input_ids, one.token_type_ids, one.focus) for one in found]
    return golden_encodings(Tokenizer.load(model.artifact.file(TOKENIZER)), model.manifest)


def together(texts: Iterable[Encoding], tokens: int = TOGETHER) -> Iterator[list[Encoding]]:
    """Texts of like length in batches of so many tokens at most, padding counted; a longer one is a batch itself."""
    group: list[Encoding] = []
    for text in sorted(texts, key=lambda text: len(text.input_ids)):
        if group and (len(group) + 1) * len(text.input_ids) > tokens:
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _memory(name: str, network: Network) -> Memory:
    file = CONTENDERS[name].prepare(network)
    size = sum(part.stat().st_size for part in {file, file.with_suffix(".bin")} if part.exists())  # OpenVINO's are two
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        grown = process.submit(loading_bytes, name, network, batch_of(1, 128)).result()
    return Memory(network.artifact.manifest.name, name, size, grown)


def _packages(names: Iterable[str]) -> list[str]:
    return sorted({package for name in names for package in CONTENDERS[name].needs} - set(environment.PACKAGES))


# --- two cores


def _scaling(cases: Sequence[Case], loaded: Mapping[str, Loaded], seconds: float, cores: int) -> Iterator[Scaling]:
    if cores < 2:
        return
    shapes = {_name(architecture, *shape) for architecture in SHAPES for shape in SCALED}
    for case in cases:
        for name, one in loaded.items():
            if case.name in shapes and CONTENDERS[name].serves:
                yield Scaling(case.name, name, scaling(one.call, case.batches, seconds / 2))


def scaling(call: Call, batches: Sequence[Batch], seconds: float) -> Interval:
    """How many times as many calls two threads make as one, in rounds of both."""
    rounds = 2 * LEAST_ROUNDS
    slice_s = seconds / (2 * rounds)
    return Interval.of([_rate(call, batches, 2, slice_s) / _rate(call, batches, 1, slice_s) for _ in range(rounds)])


def _rate(call: Call, batches: Sequence[Batch], threads: int, seconds: float) -> float:
    """Passes a second, of all threads together; each is timed to the end of its own last pass."""
    rates: list[float] = []
    ready = threading.Barrier(threads)

    def work() -> None:
        for batch in batches:
            call(batch)
        ready.wait()
        started, passes = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < seconds or not passes:
            for batch in batches:
                call(batch)
            passes += 1
        rates.append(passes / elapsed)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)
