"""The simulation of the coordinator."""

from __future__ import annotations

import pytest

from loadtest.coordinator_simulation import Costs, simulate

COSTS = Costs(50e-6, 10e-6, 30e-6, 40e-6)
ENGINE = {"calls": 16, "call_s": 1e-3, "row_s": 20e-6}


def test_idle_coordinator_answers_at_once():
    found = simulate(COSTS, 4, 100, seconds=5, **ENGINE)

    assert found.rate == pytest.approx(100, rel=0.15)
    assert found.p50_s == pytest.approx(150e-6 + 50e-6 * 2 + 1.02e-3 + 40e-6 + 40e-6, rel=0.1)
    assert found.per_call == pytest.approx(1, rel=0.05)


def test_batches_grow_with_the_load_up_to_the_limit_of_the_coordinator():
    low, high, excess = (simulate(COSTS, 32, rate, **ENGINE) for rate in (2_000, 15_000, 100_000))

    assert low.per_call < high.per_call < excess.per_call <= 64
    assert low.busy < high.busy <= 1
    assert low.p99_s < high.p99_s < excess.p99_s
    assert excess.rate < 1 / COSTS.request


def test_cheaper_requests_raise_the_limit():
    slow, fast = (simulate(COSTS._replace(request=cost), 64, 100_000, **ENGINE).rate for cost in (30e-6, 5e-6))

    assert fast > 2 * slow
