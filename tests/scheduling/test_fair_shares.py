"""Clients share the engine: one that asks for too much does not take it from others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.scheduling.client_times import KEPT, ClientTimes
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.load import wait_s
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.simulation import LONG, SHORT, Client, Executor, Result, capacity, encoding, simulate

SLOW = {"fixed_s": 9.6e-3, "token_s": 4e-4, "square_s": 4e-7}
LONG_PEAK = capacity(Executor(**SLOW), {LONG: 1.0})  # sequences per second


def flood(name: str = "flood", times: float = 5.0, **options) -> Client:
    """Returns a client that asks for several times what the engine can do, with 16 long sequences in each request."""
    rate = times * LONG_PEAK / 16
    return Client(lambda _: rate, {LONG: 1.0}, sequences=16, timeout_s=10.0, name=name, **options)


def few(name: str = "few", **options) -> Client:
    return Client(lambda _: 5.0, {SHORT: 1.0}, name=name, seed=7, timeout_s=2.0, **options)


def answered(results: Sequence[Result], name: str) -> float:
    own = [one for one in results if one.client == name]
    return sum(one.outcome == "ok" for one in own) / len(own)


def sequences_per_s(results: Sequence[Result], name: str, since: float, until: float) -> float:
    """Returns the answered sequences of a flood."""
    own = [one for one in results if one.client == name and one.outcome == "ok"]
    return 16 * sum(since <= one.arrived + one.seconds < until for one in own) / (until - since)


@pytest.mark.parametrize("priority", ["interactive", "bulk"])
def test_short_requests_are_answered_beside_a_flood_of_another_client(priority):
    results = simulate([flood(priority=priority), few(priority=priority)], 30.0, Executor(**SLOW))

    assert answered(results, "few") >= 0.99
    assert sequences_per_s(results, "flood", 10.0, 30.0) >= 0.7 * LONG_PEAK


def test_short_requests_of_the_flooding_client_itself_wait_with_it():
    results = simulate([flood(), few("flood")], 30.0, Executor(**SLOW))

    assert sum(one.outcome == "ok" for one in results if one.length == SHORT) <= 0.5 * len(results)


def test_clients_that_ask_for_too_much_get_equal_shares():
    clients = [flood("one", 5.0), flood("two", 2.0, seed=2), flood("three", 10.0, seed=3)]
    results = simulate(clients, 60.0, Executor(**SLOW))
    shares = [sequences_per_s(results, client.name, 20.0, 60.0) for client in clients]

    assert sum(shares) >= 0.85 * LONG_PEAK
    assert max(shares) <= 1.25 * min(shares)


def test_a_second_flood_makes_few_admitted_requests_late():
    """The requests that were admitted before the second client came get half of the time that was predicted."""
    second = replace(flood("b"), rate=lambda now: 0.0 if now < 20 else 5 * LONG_PEAK / 16)
    results = simulate([flood("a"), second], 60.0, Executor(**SLOW))
    late = [one for one in results if one.outcome == "late"]

    assert sequences_per_s(results, "a", 40.0, 60.0) == pytest.approx(LONG_PEAK / 2, rel=0.15)
    assert sum(one.arrived >= 30 for one in late) <= 2
    assert len(late) <= 8


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["serve", "charge"]), st.floats(0.001, 9)), max_size=60)
)
def test_no_client_is_ever_before_the_one_that_was_served_last(steps):
    times, before = ClientTimes(), 0.0
    for client, what, seconds in steps:
        if what == "charge":
            expected = times.of(client) + seconds
            times.charge(client, seconds, 0.0)
            assert times.of(client) == expected
        else:
            times.serve(client)
            assert times.of(client) == times.served
        assert times.served >= before
        before = times.served
        assert all(times.of(name) >= times.served for name in "abcd")


def test_times_of_many_clients_are_forgotten_once_they_have_no_effect():
    times = ClientTimes()
    for number in range(50 * KEPT):
        times.serve(f"{number}")
        times.charge(f"{number}", 1e-3, 0.0)
        times.serve(f"{number}")

    assert len(times) <= 2 * KEPT


@given(st.lists(st.integers(1, LONG), max_size=9), st.sampled_from(["interactive", "bulk"]), st.floats(0, 3))
def test_a_client_alone_waits_for_all_that_is_queued(lengths, priority, request_s):
    """Admission control then needs no prediction of shares, which takes several times as long."""

    async def main() -> None:
        dispatcher = Dispatcher(Executor(size=1))
        model, sequences = dispatcher.add_model("m"), [encoding(length) for length in lengths]
        rows = dispatcher.submit("m", sequences, math.inf, priority, RequestRecord(account="one"))
        load = dispatcher.load()
        assert not load.has_others("one")
        assert load.has_others("two") == bool(lengths)
        alone = wait_s(load, priority, model, request_s, "one")
        assert alone == pytest.approx(wait_s(load, priority, model, request_s))
        for row in rows:
            row.cancel()

    asyncio.run(main())
