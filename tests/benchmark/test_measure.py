"""Measurements: rounds, threads, and intervals."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial

import numpy as np
import pytest

from swiftlet_models.operations import Operations
from swiftlet_serve.benchmark import measure as module
from swiftlet_serve.benchmark.baselines import LoadedEngine
from swiftlet_serve.benchmark.measure import MIN_ROUNDS, Interval, measure, passes_per_s
from swiftlet_serve.benchmark.networks import batch_of
from swiftlet_serve.benchmark.plan import Case

OPERATIONS = Operations(1, 1, 1, 1, 1, 1)


@pytest.mark.parametrize(
    ("n", "first", "last"), [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (20, 6, 15), (100, 40, 61)]
)
def test_interval_agrees_with_the_tables_for_a_median(n, first, last):
    """The tables of the sign test list the order statistics that cover the median with 95 %."""
    interval = Interval.of([float(value) for value in range(n, 0, -1)])

    assert (interval.value, interval.low, interval.high) == ((n + 1) / 2, first, last)


class FakeEngines:
    """Engines that return constant rows and record their calls."""

    def __init__(self, **constants: float) -> None:
        self.calls = []
        self.loaded = {name: LoadedEngine(name, partial(self.call, name)) for name in constants}
        self._constants = constants

    def call(self, name, batch):
        self.calls.append((name, batch))
        return [np.full((len(batch), 2), self._constants[name], np.float32)]


@pytest.fixture(autouse=True)
def _one_pass_a_round(monkeypatch):
    monkeypatch.setattr(module, "ROUND_S", 0.0)


def test_measure_runs_every_engine_on_every_batch_in_every_round():
    engines = FakeEngines(a=1.0, b=1.0)
    batches = [batch_of(1, 3), batch_of(2, 5)]
    ended_rounds = []
    found = measure(Case("case", None, batches), engines.loaded, OPERATIONS, 0, lambda: ended_rounds.append(1))
    results = {result.engine: result for result in found}

    assert list(results) == ["a", "b"]
    for result in results.values():
        assert len(result.rounds) == len(ended_rounds) == MIN_ROUNDS
        assert result.rows == 3
        assert result.multiply_adds == sum(OPERATIONS.count([n] * k, [1] * k) for k, n in ((1, 3), (2, 5)))
    for name in engines.loaded:
        assert {id(batch) for engine, batch in engines.calls if engine == name} == {id(batch) for batch in batches}


def test_measure_compares_rows_with_those_of_torch():
    engines = FakeEngines(a=3.9, torch=4.0)
    results = measure(Case("case", None, [batch_of(2, 3)]), engines.loaded, OPERATIONS, 0)

    assert [result.error for result in results] == pytest.approx([0.025, 0.0], abs=1e-6)


def test_passes_per_s_warms_up_every_thread():
    callers = []
    rate = passes_per_s(lambda _: callers.append(threading.current_thread()), [batch_of(1, 2)], 3, 0.0)

    assert rate > 0
    assert sorted(Counter(callers).values()) == [2, 2, 2]
