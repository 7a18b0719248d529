"""The load generators."""

from __future__ import annotations

import asyncio
import time

from loadtest.generator import closed_loop, open_loop, send_all


def test_open_loop_sends_while_earlier_calls_are_in_flight():
    all_sent, dues = asyncio.Event(), []

    async def send(due: float) -> None:
        dues.append(due)
        if len(dues) == 3:
            all_sent.set()
        await all_sent.wait()

    started = time.monotonic()
    asyncio.run(open_loop([0.0, 0.001, 0.002], send))

    assert [round(due - dues[0], 6) for due in dues] == [0.0, 0.001, 0.002]
    assert dues[0] >= started


def test_open_loop_returns_its_largest_lateness():
    async def send(due: float) -> None:
        time.sleep(0.05)  # blocks the event loop, so that the next call is late

    assert asyncio.run(open_loop([0.0, 0.001], send)) >= 0.04


def test_closed_loop_sends_again_after_each_response():
    in_flight, most, calls = 0, 0, 0
    stopped = asyncio.Event()

    async def send(_: float) -> None:
        nonlocal in_flight, most, calls
        in_flight += 1
        calls += 1
        most = max(most, in_flight)
        if calls == 10:
            stopped.set()
        await asyncio.sleep(0)
        in_flight -= 1

    asyncio.run(closed_loop([send] * 2, stopped=stopped))

    assert most == 2
    assert 10 <= calls <= 11


def test_closed_loop_ends_with_its_time():
    async def send(_: float) -> None:
        await asyncio.sleep(0.001)

    started = time.monotonic()
    asyncio.run(closed_loop([send], 0.02))

    assert time.monotonic() - started >= 0.02


def test_closed_loop_calls_a_sender_once_an_interval():
    dues: list[list[float]] = [[], []]
    stopped = asyncio.Event()

    async def send(number: int, due: float) -> None:
        dues[number].append(due)
        if len(dues[1]) == 3:
            stopped.set()

    senders = [lambda due: send(0, due), lambda due: send(1, due)]
    started = time.monotonic()
    asyncio.run(closed_loop(senders, interval_s=0.02, stopped=stopped))

    assert dues[1][0] - dues[0][0] >= 0.009  # spread over the interval
    assert dues[1][2] - started >= 0.05


def test_send_all_sends_each_item_once_with_bounded_concurrency():
    in_flight, most, sent = 0, 0, []

    async def send(item: int) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        sent.append(item)
        in_flight -= 1

    asyncio.run(send_all(range(10), send, concurrency=3))

    assert sorted(sent) == list(range(10))
    assert most == 3
