"""Turns of clients and of their connections."""

from __future__ import annotations

import math
from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.http.connections.read_scheduler import FAIR_EVERY, FairQueue, Turns

STALE_S = 0.1


class Waiting:
    """A connection of a client."""

    def __init__(self, client: str, name: object = "") -> None:
        self.client, self.name = client, name

    def read(self) -> None: ...


def take(turns: Turns[object]) -> object:
    item = turns.choose()
    turns.take(item)
    return item


def test_turns_put_a_served_item_behind_all_that_wait():
    turns: Turns[object] = Turns()
    for item in "abc":
        turns.add(item)
    taken = []
    for _ in range(9):
        taken.append(take(turns))
        turns.add(taken[-1])

    assert taken == list("abcabcabc")


@given(st.integers(0, 20), st.integers(1, 20))
def test_turns_serve_an_item_within_a_round_of_those_that_wait_again_at_once(before, greedy):
    """The greedy items wait again as soon as they are served, as a client does that pipelines."""
    turns: Turns[object] = Turns()
    for number in range(greedy):
        turns.add(number)
    for _ in range(before):
        turns.add(take(turns))
    turns.add("patient")
    taken: list[object] = []
    while "patient" not in taken and len(taken) <= greedy:
        taken.append(take(turns))
        turns.add(taken[-1])

    assert "patient" in taken


def test_turns_of_a_round_are_not_prolonged_by_new_items():
    turns: Turns[object] = Turns()
    for item in "abc":
        turns.add(item)
    assert take(turns) == "a"
    turns.add("a")
    taken = []
    for number in range(6):  # one new item for each turn
        turns.add(number)
        taken.append(take(turns))

    assert "a" in taken  # no later than the new ones, although it was served before


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "take any", "discard"]), st.integers(0, 5))))
def test_turns_hold_each_item_once(steps):
    turns: Turns[object] = Turns()
    expected: set[object] = set()
    for step, item in steps:
        if step == "add":
            turns.add(item)
            expected.add(item)
        elif step == "discard":
            turns.discard(item)
            expected.discard(item)
        elif step == "take any" and item in expected:
            turns.take(item)
            expected.discard(item)
        elif expected and step == "take":
            taken = take(turns)
            assert taken in expected
            expected.discard(taken)
        assert bool(turns) == bool(expected)
    assert {take(turns) for _ in range(len(expected))} == expected


def test_queue_gives_clients_equal_turns_however_many_connections_they_have():
    queue = FairQueue(math.inf)
    for number in range(64):
        queue.add(Waiting("many", number), 0.0)
    lone = Waiting("one")
    queue.add(lone, 0.0)
    taken: Counter[str] = Counter()
    for _ in range(20):
        reader = queue.take(0.0)
        taken[reader.client] += 1
        queue.add(reader, 0.0)

    assert taken == {"many": 10, "one": 10}


def test_queue_takes_the_oldest_first_and_the_newest_once_reads_are_stale():
    """One turn in `FAIR_EVERY` stays that of the oldest."""
    numbers = list(range(FAIR_EVERY + 2))
    newest_first = numbers[:0:-1]
    newest_first.insert(FAIR_EVERY - 1, 0)
    for now, expected in ((STALE_S, numbers), (2 * STALE_S, newest_first)):
        queue = FairQueue(STALE_S)
        for number in numbers:
            queue.add(Waiting(str(number), number), 0.0)
        assert [queue.take(now).name for _ in numbers] == expected


@pytest.mark.parametrize("clients", [["one"], ["one", "two", "three"]])
def test_queue_serves_a_waiting_connection_although_newer_ones_come_again_and_again(clients):
    """This is the starvation by newest first: all others wait again at once, and are newer."""
    queue = FairQueue(STALE_S)
    victim = Waiting("one", "victim")
    queue.add(victim, 0.0)
    greedy = deque(Waiting(clients[number % len(clients)], number) for number in range(32))
    for reader in greedy:
        queue.add(reader, 0.0)

    taken = []
    while victim not in taken and len(taken) < FAIR_EVERY * 33:
        taken.append(queue.take(1000.0))
        queue.add(taken[-1], 1000.0)

    assert victim in taken


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "take", "discard"]), st.integers(0, 2), st.integers(0, 3), st.floats(0, 1))
    )
)
def test_queue_holds_each_connection_once_and_forgets_the_gone(steps):
    queue, now = FairQueue(STALE_S), 0.0
    readers = [[Waiting(str(client), number) for number in range(4)] for client in range(3)]
    expected: set[Waiting] = set()
    for step, client, number, seconds in steps:
        reader, now = readers[client][number], now + seconds
        if step == "add":
            queue.add(reader, now)
            expected.add(reader)
        elif step == "discard":
            queue.discard(reader)
            expected.discard(reader)
        elif expected:
            expected.remove(queue.take(now))
        assert bool(queue) == bool(expected)
    for row in readers:
        for reader in row:
            queue.discard(reader)
    assert not queue
    assert not queue._clients
    assert not queue._readers
