"""`plan` chooses valid and efficient batches for every queue."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.scheduling.batch_planner import plan
from swiftlet_serve.scheduling.latency_model import LatencyModel
from swiftlet_serve.types import Cost

COSTS = st.builds(
    Cost,
    padded=st.booleans(),
    call_tokens=st.integers(0, 64),
    max_tokens=st.integers(1, 1024),
    max_rows=st.integers(1, 64),
    padded_attention=st.booleans(),
)

BUDGETS = st.integers(1, 4096)


def charge(lengths: list[int], cost: Cost) -> int:
    return len(lengths) * max(lengths) if cost.padded else sum(lengths)


def plan_of(lengths: list[int], cost: Cost, budget: int) -> list[int]:
    """Plans without deadlines and with an untrained latency model."""
    return plan(lengths, [math.inf] * len(lengths), LatencyModel(cost), budget)


@st.composite
def queues(draw) -> tuple[list[int], list[float]]:
    """Draws a queue: the lengths of its sequences and the seconds to their deadlines."""
    queue = draw(st.lists(st.tuples(st.integers(1, 512), st.floats(0, 1)), min_size=1, max_size=60))
    return [length for length, _ in queue], [left for _, left in queue]


@st.composite
def latency_models(draw) -> LatencyModel:
    """Draws a latency model that has observed some calls."""
    latency = LatencyModel(draw(COSTS))
    for length, seconds in draw(st.lists(st.tuples(st.integers(1, 512), st.floats(1e-6, 10)), max_size=20)):
        latency.learn([length], seconds)
    return latency


@given(queues(), latency_models(), BUDGETS)
def test_plan_has_the_oldest_first_and_no_duplicates(queue, latency, budget):
    batch = plan(*queue, latency, budget)

    assert batch[0] == 0
    assert len(set(batch)) == len(batch)
    assert set(batch) <= set(range(len(queue[0])))


@given(queues(), latency_models(), BUDGETS)
def test_plan_of_several_respects_every_limit(queue, latency, budget):
    batch = [queue[0][i] for i in plan(*queue, latency, budget)]

    assert len(batch) <= latency.cost.max_rows
    if len(batch) > 1:
        assert charge(batch, latency.cost) <= latency.cost.max_tokens
        assert sum(batch) <= budget


@given(queues(), latency_models(), BUDGETS)
def test_plan_takes_no_longer_than_separate_calls(queue, latency, budget):
    batch = [queue[0][i] for i in plan(*queue, latency, budget)]

    assert latency.batch_s(batch) <= sum(latency.single_s(length) for length in batch) * (1 + 1e-9)


@given(queues(), latency_models(), BUDGETS)
def test_plan_makes_no_sequence_late(queue, latency, budget):
    batch = plan(*queue, latency, budget)

    if len(batch) > 1:
        assert latency.batch_s([queue[0][i] for i in batch]) <= min(queue[1][i] for i in batch) * (1 + 1e-9)


@given(st.integers(1, 64), st.integers(1, 200), COSTS, BUDGETS)
def test_plan_of_equal_lengths_fills_the_batch_to_the_first_limit(length, n, cost, budget):
    expected = min(n, cost.max_rows, cost.max_tokens // length, budget // length)

    assert len(plan_of([length] * n, cost, budget)) == max(1, expected)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 8))
def test_plan_shares_the_queue_evenly_between_idle_cores(length, n, idle):
    unlimited = Cost(padded=True, call_tokens=0, max_tokens=1 << 30, max_rows=1 << 30)
    sizes = []
    for cores in range(min(idle, n), 0, -1):
        left = n - sum(sizes)
        sizes.append(len(plan_of([length] * left, unlimited, math.ceil(left * length / cores))))

    assert sum(sizes) == n
    assert max(sizes) - min(sizes) <= 1


def test_plan_adds_a_row_if_padding_costs_less_than_a_call():
    cost = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    costly, cheap = LatencyModel(cost), LatencyModel(cost)
    for length in [10, 100, 200, 400] * 100:  # calls with a fixed cost of 50 ms, and of 10 µs
        costly.learn([length], 50e-3 + 1e-5 * length)
        cheap.learn([length], 1e-5 + 1e-4 * length)

    assert plan([60, 20], [math.inf] * 2, costly, 1000) == [0, 1]
    assert plan([60, 20], [math.inf] * 2, cheap, 1000) == [0]


def test_plan_prefers_similar_lengths_to_older_sequences():
    cost = Cost(padded=True, call_tokens=64, max_tokens=512, max_rows=64)

    assert plan_of([20, 300, 22, 40, 18], cost, 1000) == [0, 2, 4, 3]


def test_plan_keeps_the_order_of_an_engine_that_does_not_pad():
    cost = Cost(padded=False, call_tokens=64, max_tokens=100, max_rows=64)

    assert plan_of([20, 70, 22, 40, 10], cost, 1000) == [0, 1, 4]


def test_plan_prefers_the_older_of_equal_lengths():
    cost = Cost(padded=True, call_tokens=0, max_tokens=60, max_rows=64)

    assert plan_of([20, 20, 20, 20], cost, 1000) == [0, 1, 2]
