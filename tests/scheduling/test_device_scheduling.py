"""The scheduler on a device of known speed, in virtual time: it computes one batch, while others are copied."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import BatchResult, Cost
from tests.support.simulation import ROW, Client, Executor, simulate, summary
from tests.support.tiers import first

COPY_S = 0.015
TOKENS = 2048  # of the largest batch
UNTIL = 5.0
MEAN_LENGTH = 0.9 * 25 + 0.1 * 300


class Device(Executor):
    """Copies the ids of a batch, waits for the batch before it, computes, and copies the rows. Copies overlap."""

    def __init__(self, calls: int, **changes: object) -> None:
        super().__init__(**{"size": 4, "fixed_s": 2e-3, "token_s": 4e-5, "square_s": 2e-9, "noise": 0.05} | changes)
        self._calls = calls
        self._computing = asyncio.Lock()
        self.in_flight = self.most_in_flight = 0
        self.times: list[float] = []  # when calls began or ended

    def cost(self, model: str) -> Cost:
        return Cost(padded=False, call_tokens=64, max_tokens=TOKENS, max_rows=512, max_calls=self._calls)

    def call_s(self, lengths: Sequence[int]) -> float:
        return self.fixed_s + sum(lengths) * self.token_s + sum(n * n for n in lengths) * self.square_s

    async def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        loop = asyncio.get_running_loop()
        self.times.append(loop.time())
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(COPY_S)
        async with self._computing:
            seconds = self.call_s([len(one.input_ids) for one in encodings])
            seconds *= self.slowdown(loop.time())
            self.busy_s += seconds
            await asyncio.sleep(seconds)
        await asyncio.sleep(COPY_S)
        self.in_flight -= 1
        self.times.append(loop.time())
        return BatchResult([ROW for _ in encodings], seconds)


PEAK = TOKENS / Device(1).call_s([TOKENS]) / MEAN_LENGTH  # requests per second of a device that never waits


def busy_share(calls: int) -> float:
    device = Device(calls)
    simulate([Client(lambda _: 3 * PEAK)], 2.0, device)
    return device.busy_s / (max(device.times) - min(device.times))


def test_two_calls_in_flight_hide_the_copies():
    assert busy_share(1) < 0.8
    assert busy_share(2) > 0.93


@pytest.mark.parametrize("times", first([1.5, 5], 5))
def test_scheduler_learns_what_calls_in_flight_take(times):
    """A call takes longer beside another one. Requests that are admitted are still answered in time."""
    device = Device(2)
    figures = summary(simulate([Client(lambda _: times * PEAK)], UNTIL, device), UNTIL)

    assert device.most_in_flight == 2
    assert figures["goodput"] >= 0.9 * PEAK
    assert figures["late"] <= 0.01


def test_scheduler_learns_that_a_device_slows_down():
    """As a GPU does that gets too hot."""
    device = Device(2, slowdown=lambda now: 2.0 if now > 1 else 1.0)
    results = simulate([Client(lambda _: 2 * PEAK)], UNTIL, device)
    figures = summary([one for one in results if one.arrived >= 2], UNTIL - 2)

    assert figures["goodput"] >= 0.9 * PEAK / 2
    assert figures["late"] <= 0.02


def test_request_to_an_idle_device_starts_at_once():
    figures = summary(simulate([Client(lambda _: 2.0, classes={25: 1.0})], UNTIL, Device(2)), UNTIL)

    assert figures["refused"] == figures["late"] == 0
    assert figures["p99"] < 1.1 * (2 * COPY_S + Device(2).call_s([25]))
