"""The scheduler under overload, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.simulation import LONG, SHORT, Client, Executor, capacity, simulate, summary

SLOW = {
    "fixed_s": 9.6e-3,
    "token_s": 4e-4,
    "square_s": 4e-7,
}  # a quarter of MobileBERT's speed, which simulates a quarter of the requests

PEAK = capacity(Executor(**SLOW))


def load(times: float, until: float = 10.0, **client) -> dict[str, float]:
    rate = times * PEAK
    return summary(simulate([Client(lambda _: rate, **client)], until, Executor(**SLOW)), until)


@pytest.mark.parametrize(("times", "goal"), [(1.5, 0.95), (3, 0.95), (10, 0.90)])
def test_overload_keeps_the_goodput(times, goal):
    """Admitted requests are answered in time, and long requests are admitted about as often as short ones."""
    figures = load(times)

    assert figures["goodput"] >= goal * PEAK
    assert figures["late"] <= 0.01
    assert figures["p99"] <= 1.0
    assert figures["ratio"] >= 0.5


def test_fifo_policy_loses_the_goodput_under_overload():
    """The baseline of this file: the same load on the same engine, without deadlines in admission."""
    results = simulate([Client(lambda _: 3 * PEAK)], 10.0, Executor(**SLOW), "fifo")

    assert summary(results, 10.0)["goodput"] < 0.5 * PEAK


def test_low_load_is_answered_in_time():
    figures = load(0.5)

    assert figures["refused"] == figures["late"] == 0
    assert figures["p99"] < 0.5


def test_overload_keeps_the_goodput_with_short_deadlines():
    figures = load(3, timeout_s=0.5)

    assert figures["goodput"] >= 0.9 * PEAK
    assert figures["late"] <= 0.02
    assert figures["ratio"] >= 0.5


def test_recovery_from_a_burst_with_retries_is_immediate():
    def rate(now: float) -> float:
        return PEAK * (3 if 3 <= now < 8 else 0.8)

    results = simulate([Client(rate, retries=3)], 15.0, Executor(**SLOW))
    after = [one for one in results if one.arrived >= 10]

    assert sum(one.outcome == "ok" for one in after) == len(after)
    assert sum(one.outcome == "ok" for one in results if 3 <= one.arrived < 8) >= 0.9 * 5 * PEAK


def test_admission_adapts_to_a_machine_that_slows_down():
    executor = Executor(**SLOW, slowdown=lambda now: 2.0 if now > 5 else 1.0)
    results = simulate([Client(lambda _: 2 * PEAK)], 15.0, executor)
    figures = summary([one for one in results if one.arrived >= 7], 8.0)

    assert figures["goodput"] >= 0.9 * PEAK / 2
    assert figures["late"] <= 0.01


def test_first_overload_is_predicted_from_the_timed_golden_calls():
    """The burst comes before any call has ended, on a machine much slower than the initial guess."""
    slow = {name: 8 * seconds for name, seconds in SLOW.items()}

    def late(golden: Sequence[int]) -> int:
        results = simulate([Client(lambda _: 5 * PEAK)], 0.2, Executor(**slow, golden=golden))
        return sum(one.outcome == "late" for one in results)

    assert late(golden=()) > 20
    assert late(golden=(17, 20, 3, 28)) == 0


def test_bulk_is_shed_first_and_makes_progress():
    clients = [
        Client(lambda _: 0.8 * PEAK),
        Client(lambda _: 2 * PEAK, priority="bulk", timeout_s=5.0, seed=2),
    ]
    results = simulate(clients, 20.0, Executor(**SLOW))
    person, program = ([one for one in results if one.priority == priority] for priority in ("interactive", "bulk"))

    assert sum(one.outcome == "ok" for one in person) >= 0.994 * len(person)
    assert 0.02 * len(program) < sum(one.outcome == "ok" for one in program) < 0.5 * len(program)
    assert sum(one.outcome == "late" for one in program) < 0.05 * len(program)


def test_request_with_many_sequences_lets_others_pass():
    """Short requests that arrive after a request with 200 sequences take at most 50 % longer."""
    short = Client(lambda _: 0.3 * PEAK, classes={SHORT: 1.0}, timeout_s=30.0)
    giant = Client(lambda now: 2.0 if 4.95 < now < 5.01 else 0.0, classes={LONG: 1.0}, sequences=200, timeout_s=60.0)
    alone = summary(simulate([short], 20.0, Executor(**SLOW)), 20.0)
    results = simulate([short, giant], 20.0, Executor(**SLOW))

    assert [one.outcome for one in results if one.length == LONG] == ["ok"]
    beside = summary([one for one in results if one.length == SHORT], 20.0)
    assert beside["p99"] <= 1.5 * alone["p99"] + 2 * Executor(**SLOW).call_s([LONG])


def test_refused_requests_are_told_to_retry_after_the_backlog():
    results = simulate([Client(lambda _: 5 * PEAK, timeout_s=8.0)], 10.0, Executor(**SLOW))
    told = [one.retry_s for one in results if one.outcome == "refused"]

    assert 6.0 <= min(told) <= max(told) <= 1.5 * 8
