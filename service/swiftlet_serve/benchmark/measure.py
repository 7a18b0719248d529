"""Measurements of engines: rounds on one core, calls on two cores, and intervals of medians."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark.baselines import Call, LoadedEngine
from swiftlet_serve.benchmark.plan import Case
from swiftlet_serve.types import Batch

REFERENCE: Final = "torch"  # the other engines' rows are compared with its rows
ROUND_S: Final = 0.05
MIN_ROUNDS: Final = 6  # with fewer rounds, the whole range covers less than 95 %
CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Interval:
    """A median, and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Returns the median of independent values and the order statistics around it, for any distribution.

        The k-th lowest and the k-th highest value enclose the median unless fewer than k values lie on one side of it.
        That probability is binomial. With fewer than six values the interval is the range, and covers less than 95 %.
        """
        ordered, n = sorted(values), len(values)
        k, tail = 0, 0.0
        while k < n // 2 and (tail := tail + math.comb(n, k) / 2**n) <= (1 - CONFIDENCE) / 2:
            k += 1
        first = max(k - 1, 0)
        return cls(statistics.median(ordered), ordered[first], ordered[n - 1 - first])


@dataclass(frozen=True)
class Result:
    """The measurement of an engine in a case."""

    case: str
    engine: str
    title: str
    rows: int  # of a pass
    multiply_adds: int  # of a pass
    rounds: tuple[float, ...]  # seconds per pass by the clock of the measurement, one for each round
    call_ms: float  # median wall-clock time of a call: the latency at concurrency 1
    error: float | None  # largest difference from the reference's rows, relative to their largest number


def measure(
    case: Case,
    engines: Mapping[str, LoadedEngine],
    operations: Operations,
    seconds: float,
    after_round: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.process_time,
) -> Iterator[Result]:
    """Runs the engines in turn, in a random order, and yields a result for each.

    `clock` gives the seconds that a round takes: CPU time, or another time where a device computes.
    """
    passes = {name: _warm_up(engine.call, case.batches) for name, engine in engines.items()}
    rounds: dict[str, list[float]] = {name: [] for name in engines}
    calls: dict[str, list[float]] = {name: [] for name in engines}
    order, draw = list(engines), random.Random(0)  # noqa: S311  # not a secret
    ends, done = time.monotonic() + seconds, 0
    while done < MIN_ROUNDS or time.monotonic() < ends:
        draw.shuffle(order)
        for name in order:
            rounds[name].append(_run_round(engines[name].call, case.batches, passes[name], calls[name], clock))
        after_round()
        done += 1
    multiply_adds, errors = case.multiply_adds(operations), _errors(engines, case.batches[0])
    for name, engine in engines.items():
        yield Result(
            case=case.name,
            engine=name,
            title=engine.title,
            rows=case.rows,
            multiply_adds=multiply_adds,
            rounds=tuple(rounds[name]),
            call_ms=1e3 * statistics.median(calls[name]),
            error=errors.get(name),
        )


def _errors(engines: Mapping[str, LoadedEngine], batch: Batch) -> dict[str, float]:
    """Returns each engine's error, or nothing if the reference is not among the engines."""
    if REFERENCE not in engines:
        return {}
    rows = {name: np.concatenate(engine.call(batch)) for name, engine in engines.items()}
    expected = rows[REFERENCE]
    largest = np.abs(expected).max()
    return {name: float(np.abs(actual - expected).max() / largest) for name, actual in rows.items()}


def _warm_up(call: Call, batches: Sequence[Batch]) -> int:
    """Runs two passes. Returns the number of passes in a round."""
    for batch in batches:
        call(batch)
    call_s: list[float] = []
    _run_round(call, batches, 1, call_s)
    return max(1, int(ROUND_S / sum(call_s)))


def _run_round(
    call: Call,
    batches: Sequence[Batch],
    passes: int,
    call_s: list[float],
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Returns the seconds per pass by the clock. Appends the wall-clock seconds of each call."""
    if passes > 1:  # the previous engine has filled the caches
        for batch in batches:
            call(batch)
    started = clock()
    for _ in range(passes):
        for batch in batches:
            began = time.perf_counter()
            call(batch)
            call_s.append(time.perf_counter() - began)
    return (clock() - started) / passes


def scaling(call: Call, batches: Sequence[Batch], seconds: float) -> Interval:
    """Returns the rate of calls of two threads relative to one thread, in alternating rounds."""
    rounds = 2 * MIN_ROUNDS
    slice_s = seconds / (2 * rounds)
    return Interval.of(
        [passes_per_s(call, batches, 2, slice_s) / passes_per_s(call, batches, 1, slice_s) for _ in range(rounds)]
    )


def passes_per_s(call: Call, batches: Sequence[Batch], threads: int, seconds: float) -> float:
    """Returns the passes per second of all threads. Each thread is timed to the end of its own last pass."""
    rates: list[float] = []
    ready = threading.Barrier(threads)

    def work() -> None:
        for batch in batches:
            call(batch)
        ready.wait()
        started, passes = time.perf_counter(), 0
        while (elapsed_s := time.perf_counter() - started) < seconds or not passes:
            for batch in batches:
                call(batch)
            passes += 1
        rates.append(passes / elapsed_s)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rates)
