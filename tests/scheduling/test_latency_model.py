"""The latency model learns the call durations of every engine, which limit the time of its calls."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.scheduling.latency_model import (
    LONG_FACTOR,
    MIN_CALL_TIMEOUT_S,
    OVERDUE_FACTOR,
    LatencyModel,
    call_limit_s,
)
from swiftlet_serve.types import Cost

PADDED = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

RAGGED = Cost(padded=False, call_tokens=24, max_tokens=512, max_rows=64)

COSTS = st.builds(
    Cost,
    padded=st.booleans(),
    call_tokens=st.integers(0, 1024),
    max_tokens=st.integers(1, 16384),
    max_rows=st.integers(1, 512),
    padded_attention=st.booleans(),
)

LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=64)

SECONDS = st.floats(0, 1e4)

Engine = Callable[[list[int]], float]


@given(COSTS, st.lists(st.tuples(LENGTHS, SECONDS), max_size=30), LENGTHS)
def test_prediction_is_positive_after_any_calls(cost, calls, lengths):
    latency = LatencyModel(cost)
    for learned, seconds in calls:
        latency.learn(learned, seconds)

    assert 0 < latency.batch_s(lengths) < math.inf
    assert 0 < latency.backlog_s(len(lengths), sum(lengths), sum(n * n for n in lengths)) < math.inf
    assert latency.backlog_s(0, 0, 0) == 0


@given(COSTS, st.lists(st.tuples(LENGTHS, SECONDS), max_size=30), LENGTHS, st.integers(1, 512))
def test_prediction_grows_with_the_work(cost, calls, lengths, more):
    latency = LatencyModel(cost)
    for learned, seconds in calls:
        latency.learn(learned, seconds)

    assert latency.batch_s([*lengths, more]) > latency.batch_s(lengths)
    assert latency.single_s(more + 1) > latency.single_s(more)


def test_padded_attention_pads_only_the_squared_lengths():
    latency = LatencyModel(replace(RAGGED, padded_attention=True))

    assert latency.batch_s([100, 10]) == LatencyModel(RAGGED).call_s(2, 110, 2 * 100 * 100, 100)
    assert (
        LatencyModel(RAGGED).batch_s([100, 10]) < latency.batch_s([100, 10]) < LatencyModel(PADDED).batch_s([100, 10])
    )


def linear(fixed: float, token: float) -> Engine:
    return lambda lengths: fixed + token * len(lengths) * max(lengths)


def quadratic(fixed: float, token: float, square: float) -> Engine:
    return lambda lengths: fixed + token * len(lengths) * max(lengths) + square * len(lengths) * max(lengths) ** 2


def ragged(fixed: float, token: float) -> Engine:
    return lambda lengths: fixed + token * sum(lengths)


def calls_of(shortest: int, longest: int, n: int, seed: int = 1) -> list[list[int]]:
    """Draws batches of similar lengths with at most about 512 tokens."""
    rng = random.Random(seed)
    calls = []
    for _ in range(n):
        length = rng.randint(shortest, longest)
        calls.append([max(1, int(length * rng.uniform(0.8, 1))) for _ in range(rng.randint(1, max(1, 512 // length)))])
    return calls


ENGINES = {
    "as declared": (PADDED, linear(2.4e-3, 1e-4)),
    "mostly fixed": (PADDED, linear(50e-3, 1e-5)),
    "no fixed part": (PADDED, linear(0, 1e-4)),
    "quadratic": (PADDED, quadratic(1e-3, 5e-5, 5e-7)),
    "seconds a call": (PADDED, linear(1, 2e-2)),
    "microseconds a call": (PADDED, linear(2e-5, 1e-7)),
    "ragged": (RAGGED, ragged(2e-3, 1e-4)),
}


@pytest.mark.parametrize("name", ENGINES)
def test_predictions_approach_the_durations_of_any_engine(name):
    """The error is below a factor of 3 after a few calls and below 25 % after a few hundred."""
    cost, engine = ENGINES[name]
    latency, errors = LatencyModel(cost), []
    for lengths in calls_of(8, 512, 600):
        errors.append(abs(math.log(latency.batch_s(lengths) / engine(lengths))))
        latency.learn(lengths, engine(lengths))

    assert sorted(errors[8:40])[24] < math.log(3)
    assert sum(errors[400:]) / 200 < math.log(1.25)


def test_prediction_learns_the_quadratic_term():
    engine, latency = quadratic(1e-3, 5e-5, 5e-7), LatencyModel(PADDED)
    for lengths in calls_of(8, 512, 600):
        latency.learn(lengths, engine(lengths))

    for length in (16, 128, 512):
        assert latency.single_s(length) == pytest.approx(engine([length]), rel=0.3)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_prediction_follows_a_change_of_speed_within_32_calls(factor):
    """Lengths that do not occur meanwhile follow less closely."""
    engine, latency = linear(2.4e-3, 1e-4), LatencyModel(PADDED)
    for lengths in calls_of(8, 512, 200):
        latency.learn(lengths, engine(lengths))
    for lengths in calls_of(8, 40, 32):
        latency.learn(lengths, factor * engine(lengths))

    assert latency.single_s(20) == pytest.approx(factor * engine([20]), rel=0.2)
    assert latency.single_s(500) == pytest.approx(factor * engine([500]), rel=0.5)


def test_prediction_hardly_changes_after_a_pause():
    engine, latency = linear(2.4e-3, 1e-4), LatencyModel(PADDED)
    for lengths in calls_of(8, 512, 200):
        latency.learn(lengths, engine(lengths))
    before = latency.single_s(100)
    latency.learn([100], 3600)

    assert before < latency.single_s(100) < 1.2 * before


def test_prediction_does_not_drift_with_noise():
    rng, engine, latency = random.Random(1), linear(2.4e-3, 1e-4), LatencyModel(PADDED)
    bias = []
    for lengths in calls_of(8, 512, 3000):
        bias.append(math.log(latency.batch_s(lengths) / engine(lengths)))
        latency.learn(lengths, engine(lengths) * math.exp(rng.gauss(0, 0.3)))

    assert abs(sum(bias[200:]) / len(bias[200:])) < 0.1


def test_backlog_takes_as_long_as_full_batches():
    latency = LatencyModel(PADDED)
    batch = [32] * 16

    assert latency.backlog_s(160, 160 * 32, 160 * 32 * 32) == pytest.approx(10 * latency.batch_s(batch))


@given(st.floats(0.001, 1000), st.floats(0, 1000), st.booleans())
def test_limit_is_a_multiple_of_the_prediction_within_bounds(timeout_s, expected_s, calibrated):
    limit_s = call_limit_s(timeout_s, expected_s, calibrated=calibrated)

    assert limit_s <= max(timeout_s, LONG_FACTOR * expected_s)
    if not calibrated:
        assert limit_s == timeout_s
    elif limit_s < timeout_s:
        assert limit_s in (MIN_CALL_TIMEOUT_S, OVERDUE_FACTOR * expected_s)


@given(st.floats(0.001, 1000), st.floats(0, 1000))
def test_call_may_always_take_several_times_its_prediction(timeout_s, expected_s):
    """Also if the prediction alone is longer than the limit of short calls."""
    assert call_limit_s(timeout_s, expected_s, calibrated=True) >= LONG_FACTOR * expected_s
