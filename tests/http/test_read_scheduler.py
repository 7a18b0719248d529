"""Whose turn it is to be read, on a clock that only reading moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_serve.service.http.read_scheduler import SHARE_S, STALE_S, ReadScheduler


class Desk:
    """An read_scheduler, the time, and who was read when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turn = 0
        self.read: list[int] = []
        self.turns: dict[int, int] = {}  # of the event loop, by who was read in it
        self.read_scheduler = ReadScheduler(lambda: self.now)

    def reader(self, number: int, takes_s: float = 0.0, error: Exception | None = None) -> Reader:
        return Reader(self, number, takes_s, error)


class Reader:
    def __init__(self, desk: Desk, number: int, takes_s: float, error: Exception | None) -> None:
        self.desk, self.number, self.takes_s, self.error = desk, number, takes_s, error

    def read(self) -> None:
        self.desk.read.append(self.number)
        self.desk.turns[self.number] = self.desk.turn
        self.desk.now += self.takes_s
        if self.error:
            raise self.error


def run(scenario: Callable[[Desk], Any]) -> Desk:
    """Calls `scenario` in a turn of an event loop, and lets that loop turn until nobody waits."""
    desk = Desk()

    async def main() -> None:
        scenario(desk)
        while desk.read_scheduler.behind:
            desk.turn += 1
            await asyncio.sleep(0)

    asyncio.run(main())
    return desk


def test_what_a_turn_has_time_for_is_read_at_once_and_the_rest_by_and_by():
    def scenario(desk: Desk) -> None:
        for number in range(7):
            desk.read_scheduler.put(desk.reader(number, SHARE_S / 2))
        assert desk.read == [0, 1]
        assert desk.read_scheduler.behind

    desk = run(scenario)

    assert desk.read == list(range(7))
    assert list(desk.turns.values()) == [0, 0, 1, 1, 2, 2, 3]


def test_a_new_turn_has_a_new_share():
    desk = Desk()

    async def main() -> None:
        for number in range(5):
            desk.read_scheduler.put(desk.reader(number, SHARE_S))
            await asyncio.sleep(0)
            assert desk.read == list(range(number + 1))

    asyncio.run(main())


def test_who_waits_is_not_overtaken_while_nobody_has_waited_for_long():
    def scenario(desk: Desk) -> None:
        desk.read_scheduler.put(desk.reader(0, SHARE_S))
        desk.read_scheduler.put(desk.reader(1))
        desk.now = 2 * SHARE_S  # as if this turn had just begun
        desk.read_scheduler.put(desk.reader(2))

    assert run(scenario).read == [0, 1, 2]


def test_where_the_oldest_has_waited_for_long_the_newest_is_read_first():
    def scenario(desk: Desk) -> None:
        desk.read_scheduler.put(desk.reader(0, SHARE_S))
        for number in range(1, 4):
            desk.read_scheduler.put(desk.reader(number))
        desk.now += 2 * STALE_S
        desk.read_scheduler.put(desk.reader(4))

    assert run(scenario).read == [0, 4, 3, 2, 1]


def test_who_puts_again_keeps_its_place():
    def scenario(desk: Desk) -> None:
        desk.read_scheduler.put(desk.reader(0, SHARE_S))
        first, second = desk.reader(1), desk.reader(2)
        for reader in (first, second, first):
            desk.read_scheduler.put(reader)

    assert run(scenario).read == [0, 1, 2]


def test_who_has_gone_is_not_read():
    def scenario(desk: Desk) -> None:
        desk.read_scheduler.put(desk.reader(0, SHARE_S))
        gone = desk.reader(1)
        desk.read_scheduler.put(gone)
        desk.read_scheduler.put(desk.reader(2))
        desk.read_scheduler.drop(gone)
        desk.read_scheduler.drop(gone)

    assert run(scenario).read == [0, 2]


def test_others_have_their_turn_between_two_shares():
    seen: list[int] = []

    def scenario(desk: Desk) -> None:
        for number in range(3):
            desk.read_scheduler.put(desk.reader(number, SHARE_S))
        asyncio.get_running_loop().call_soon(lambda: seen.append(len(desk.read)))

    run(scenario)

    assert seen == [2]


def test_a_reader_that_fails_does_not_keep_the_others_waiting():
    told: list[BaseException] = []

    def scenario(desk: Desk) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        desk.read_scheduler.put(desk.reader(0, SHARE_S))
        desk.read_scheduler.put(desk.reader(1, error=ZeroDivisionError()))
        desk.read_scheduler.put(desk.reader(2))

    assert run(scenario).read == [0, 1, 2]
    assert [type(error) for error in told] == [ZeroDivisionError]


@given(
    st.lists(st.tuples(st.sampled_from(["put", "drop", "wait", "turn"]), st.integers(0, 9), st.floats(0, 2 * SHARE_S)))
)
def test_everyone_is_read_once_for_what_came_and_no_turn_reads_for_longer_than_its_share(steps):
    desk = Desk()
    expected = dict.fromkeys(range(10), 0)
    spent: dict[int, float] = {}

    class Once(Reader):
        """Has something to read or not; knows how much of a turn's share was over when it was read."""

        full = False

        def read(self) -> None:
            assert self.full
            self.full = False
            assert spent.get(desk.turn, 0.0) < SHARE_S or math.isclose(spent[desk.turn], SHARE_S)
            spent[desk.turn] = spent.get(desk.turn, 0.0) + self.takes_s
            super().read()

    async def main() -> None:
        readers = [Once(desk, number, 0.0, None) for number in range(10)]
        for step, number, seconds in steps:
            reader = readers[number]
            if step == "put":
                if not reader.full:  # else it is put again, and keeps its place
                    reader.takes_s = seconds
                    expected[number] += 1
                reader.full = True
                desk.read_scheduler.put(reader)
            elif step == "drop" and reader.full:
                reader.full = False
                expected[number] -= 1
                desk.read_scheduler.drop(reader)
            elif step == "wait":
                desk.now += 100 * seconds
            elif step == "turn":
                # Two of the loop's: what is put after one of ours has the rest of that one's share, or the next one's.
                for _ in range(2):
                    desk.turn += 1
                    await asyncio.sleep(0)
                desk.turn += 1
        while desk.read_scheduler.behind:
            desk.turn += 1
            await asyncio.sleep(0)
        assert not any(reader.full for reader in readers)

    asyncio.run(main())

    assert {number: desk.read.count(number) for number in range(10)} == expected


@pytest.mark.parametrize("count", [1, 1000])
def test_an_inbox_that_is_empty_asks_for_no_turn(count):
    desk = Desk()

    async def main() -> None:
        for number in range(count):
            desk.read_scheduler.put(desk.reader(number, SHARE_S))
        loop = asyncio.get_running_loop()
        while desk.read_scheduler.behind:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not loop._ready  # nothing is scheduled but this

    asyncio.run(main())
    assert len(desk.read) == count
