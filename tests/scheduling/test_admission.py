"""What work will take is learnt from any engine, and what may come in follows from it and from nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.service.scheduling.admission import USABLE, Pace, Quota, admissible, retry_after_s
from swiftlet_serve.service.types import Cost

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
PRIORITIES = st.sampled_from(list(USABLE))

Engine = Callable[[list[int]], float]


def call_s(pace: Pace, lengths: list[int]) -> float:
    return pace.call_s(len(lengths), sum(lengths), sum(n * n for n in lengths), max(lengths))


# What calls take


@given(COSTS, st.lists(st.tuples(LENGTHS, SECONDS), max_size=30), LENGTHS)
def test_a_prediction_is_a_positive_number_whatever_was_learnt(cost, calls, lengths):
    pace = Pace(cost)
    for learnt, seconds in calls:
        pace.learn(learnt, seconds)

    assert 0 < call_s(pace, lengths) < math.inf
    assert 0 < pace.backlog_s(len(lengths), sum(lengths), sum(n * n for n in lengths)) < math.inf
    assert pace.backlog_s(0, 0, 0) == 0


@given(COSTS, st.lists(st.tuples(LENGTHS, SECONDS), max_size=30), LENGTHS, st.integers(1, 512))
def test_more_work_takes_longer(cost, calls, lengths, more):
    pace = Pace(cost)
    for learnt, seconds in calls:
        pace.learn(learnt, seconds)

    assert call_s(pace, [*lengths, more]) > call_s(pace, lengths)
    assert pace.alone_s(more + 1) > pace.alone_s(more)


def test_where_attention_alone_is_padded_only_the_squares_are():
    pace = Pace(replace(RAGGED, padded_attention=True))

    assert call_s(pace, [100, 10]) == Pace(RAGGED).call_s(2, 110, 2 * 100 * 100, 100)
    assert call_s(Pace(RAGGED), [100, 10]) < call_s(pace, [100, 10]) < call_s(Pace(PADDED), [100, 10])


def linear(fixed: float, token: float) -> Engine:
    return lambda lengths: fixed + token * len(lengths) * max(lengths)


def quadratic(fixed: float, token: float, square: float) -> Engine:
    return lambda lengths: fixed + token * len(lengths) * max(lengths) + square * len(lengths) * max(lengths) ** 2


def ragged(fixed: float, token: float) -> Engine:
    return lambda lengths: fixed + token * sum(lengths)


def calls_of(shortest: int, longest: int, n: int, seed: int = 1) -> list[list[int]]:
    """Batches of about 512 tokens at most, of rows of like length."""
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
def test_predictions_come_near_what_any_engine_takes(name):
    """Within a quarter after a few hundred calls, and within a factor of three after a few."""
    cost, engine = ENGINES[name]
    pace, errors = Pace(cost), []
    for lengths in calls_of(8, 512, 600):
        errors.append(abs(math.log(call_s(pace, lengths) / engine(lengths))))
        pace.learn(lengths, engine(lengths))

    assert sorted(errors[8:40])[24] < math.log(3)
    assert sum(errors[400:]) / 200 < math.log(1.25)


def test_seconds_per_token_grow_with_the_length_where_they_do():
    engine, pace = quadratic(1e-3, 5e-5, 5e-7), Pace(PADDED)
    for lengths in calls_of(8, 512, 600):
        pace.learn(lengths, engine(lengths))

    for length in (16, 128, 512):
        assert pace.alone_s(length) == pytest.approx(engine([length]), rel=0.3)


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_machine_that_changes_its_speed_is_followed_within_32_calls(factor):
    """More or less so for lengths that do not occur meanwhile."""
    engine, pace = linear(2.4e-3, 1e-4), Pace(PADDED)
    for lengths in calls_of(8, 512, 200):
        pace.learn(lengths, engine(lengths))
    for lengths in calls_of(8, 40, 32):
        pace.learn(lengths, factor * engine(lengths))

    assert pace.alone_s(20) == pytest.approx(factor * engine([20]), rel=0.2)
    assert pace.alone_s(500) == pytest.approx(factor * engine([500]), rel=0.5)


def test_a_machine_that_paused_is_hardly_thought_slower():
    engine, pace = linear(2.4e-3, 1e-4), Pace(PADDED)
    for lengths in calls_of(8, 512, 200):
        pace.learn(lengths, engine(lengths))
    before = pace.alone_s(100)
    pace.learn([100], 3600)

    assert before < pace.alone_s(100) < 1.2 * before


def test_noise_makes_no_prediction_drift():
    rng, engine, pace = random.Random(1), linear(2.4e-3, 1e-4), Pace(PADDED)
    bias = []
    for lengths in calls_of(8, 512, 3000):
        bias.append(math.log(call_s(pace, lengths) / engine(lengths)))
        pace.learn(lengths, engine(lengths) * math.exp(rng.gauss(0, 0.3)))

    assert abs(sum(bias[200:]) / len(bias[200:])) < 0.1


def test_a_backlog_takes_what_full_batches_take():
    pace = Pace(PADDED)
    batch = [32] * 16

    assert pace.backlog_s(160, 160 * 32, 160 * 32 * 32) == pytest.approx(10 * call_s(pace, batch))


# What may come in


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), PRIORITIES)
def test_what_comes_in_can_be_done_in_time_unless_nothing_waits(wait, own, left, priority):
    assert not admissible(wait, own, left, priority) or (wait == 0 < left) or wait + own <= left


@given(st.floats(0, 100), st.floats(0, 25), st.floats(0, 25), PRIORITIES)
def test_a_short_text_is_preferred_to_a_long_one_by_nothing(wait, short, long, priority):
    """As long as either takes less than a quarter of its time."""
    assert admissible(wait, short, 100, priority) == admissible(wait, long, 100, priority)


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_bulk_is_refused_first(wait, own, left):
    assert admissible(wait, own, left, "interactive") or not admissible(wait, own, left, "bulk")


@given(st.floats(0, 1e6), st.floats(0, 1))
def test_to_come_back_is_after_the_backlog_and_within_bounds(wait, random):
    seconds = retry_after_s(wait, random)

    assert 1 <= seconds <= 30
    assert seconds == 30 or seconds >= wait
    assert seconds == 1 or seconds <= 1.5 * wait


# Whose share


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1), min_size=1, max_size=100))
def test_no_client_gets_more_than_its_rate_and_one_second_worth(rate, pauses):
    quota, now, times = Quota(rate), 0.0, []
    for pause in pauses:
        now += pause
        if quota.take("a", now) == 0:
            times.append(now)

    for i, start in enumerate(times):
        for n, end in enumerate(times[i:], 1):
            assert n <= rate * (end - start) + max(1, rate) + 1e-6


@given(st.floats(0.1, 100), st.integers(1, 200))
def test_who_waits_as_long_as_told_is_let_in_and_not_before(rate, n):
    quota = Quota(rate)
    waits = [quota.take("a", 0.0) for _ in range(n)]

    wait = quota.take("a", 0.0)
    if wait:
        assert quota.take("a", 0.99 * wait) > 0
        assert quota.take("a", wait) == 0
    assert waits[0] == 0


def test_one_client_takes_nothing_from_another():
    quota = Quota(2)

    assert [quota.take("a", 0) > 0 for _ in range(4)] == [False, False, True, True]
    assert quota.take("b", 0) == 0


def test_only_so_many_clients_are_remembered_and_the_last_heard_of_stay():
    quota = Quota(1, max_clients=3)
    for client in ("a", "b", "c", "d"):
        quota.take(client, 0)

    assert len(quota) == 3
    assert quota.take("d", 0) > 0
    assert quota.take("a", 0) == 0
