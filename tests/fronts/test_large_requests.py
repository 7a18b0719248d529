"""A large request between a front and the coordinator: it goes in parts, one in each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import DeadlineExceeded, Internal
from swiftlet_serve.fronts import messages
from swiftlet_serve.fronts.front_requests import FrontRequests
from swiftlet_serve.fronts.messages import HEADER, MOST, MOST_NUMBERS, Kind
from swiftlet_serve.fronts.remote_scheduling import CoordinatorRequests, RemoteRateLimiter
from swiftlet_serve.inference.loading import load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.types import codec

MANY = 2 * MOST + 3
LATER = 1e12


class Wire:
    """A front and the coordinator, without sockets between them."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self.sent: list[tuple[int, Kind]] = []  # iteration and kind
        self._iteration = 0
        self.front = CoordinatorRequests(partial(self._take, self._to_coordinator), RequestStats(), None)
        self.coordinator = FrontRequests(runtime, ["tiny-qa"], partial(self._take, self._to_front))

    def _take(self, receive: Callable[[Kind, int, memoryview], None], message: bytes) -> None:
        _, kind, number = HEADER.unpack_from(message)
        self.sent.append((self._iteration, Kind(kind)))
        asyncio.get_running_loop().call_soon(receive, Kind(kind), number, memoryview(message)[HEADER.size :])

    def _to_coordinator(self, kind: Kind, number: int, body: memoryview) -> None:
        take = {Kind.PART: self.coordinator.add_part, Kind.SUBMIT: self.coordinator.submit}
        self.coordinator.cancel(number) if kind is Kind.CANCEL else take[kind](number, body)

    def _to_front(self, kind: Kind, number: int, body: memoryview) -> None:
        if kind is Kind.PART:
            self.front.on_part(number, messages.unpack_rows(body))
        elif kind is Kind.RESULT:
            self.front.on_result(number, messages.unpack_result(body))
        elif kind is Kind.REFUSED:
            self.front.on_refused(number, messages.unpack_error(body))

    async def run(self, done: Callable[[], bool]) -> None:
        """Runs the loop until something is so."""
        while not done():
            self._iteration += 1
            await asyncio.sleep(0)

    def kinds(self) -> list[Kind]:
        return [kind for _, kind in self.sent]


@pytest.fixture
def wire(artifact_dir) -> Wire:
    settings = Settings(models=(str(artifact_dir / "tiny-qa"),), engine="echo", cores=2, port=0)
    return Wire(LocalRuntime.of(settings, [load_model(artifact_dir / "tiny-qa", "echo")]))


def sequences(count: int, length: int = 3) -> list[Encoding]:
    zeros = np.zeros(length, np.int64)
    return [Encoding(zeros + number % 90, zeros, zeros[:1]) for number in range(count)]


async def test_rows_of_a_large_request_are_those_of_small_ones(wire):
    whole = wire.front.submit(0, sequences(MANY), LATER, "interactive", record := RequestRecord())
    await wire.run(lambda: all(row.done() for row in whole))
    sent = wire.sent[:]
    small = [row for one in sequences(MANY) for row in wire.front.submit(0, [one], LATER, "interactive", None)]
    await wire.run(lambda: all(row.done() for row in small))

    assert all((one.result() == other.result()).all() for one, other in zip(whole, small, strict=True))
    assert wire.kinds()[: len(sent)] == [Kind.PART] * 2 + [Kind.SUBMIT, Kind.ADMITTED] + [Kind.PART] * 2 + [Kind.RESULT]
    iterations = [iteration for iteration, _ in sent]
    assert len({*iterations[:3]}) == len({*iterations[4:]}) == 3
    assert record.stages.keys() == {"queue", "batch", "infer"}


async def test_a_request_whose_caller_goes_before_its_last_part_leaves_nothing_behind(wire):
    rows = wire.front.submit(0, sequences(MANY), LATER, "interactive", None)
    for row in rows:
        row.cancel()
    await wire.run(lambda: Kind.CANCEL in wire.kinds())
    await wire.run(lambda: not wire.coordinator._arriving)

    assert wire.kinds() == [Kind.PART] * 2 + [Kind.CANCEL]


async def test_a_large_request_is_refused_as_a_whole(wire):
    rows = wire.front.submit(0, sequences(MANY), 0.0, "interactive", None)
    await wire.run(lambda: all(row.done() for row in rows))

    assert {type(row.exception()) for row in rows} == {DeadlineExceeded}


def test_few_long_sequences_and_rows_go_one_by_one():
    submission = messages.Submission(0, sequences(3, MOST_NUMBERS), LATER, "interactive", "")
    failed = Internal("internal", "The model failed on this input.")
    outcomes = [np.zeros((1, MOST_NUMBERS + 1), np.float32), failed, np.zeros((1, MOST_NUMBERS), np.float32)]

    assert [messages.pack_submission(1, submission, start)[1] for start in range(3)] == [1, 2, 3]
    assert [messages.pack_result(1, outcomes, RequestRecord(), start)[1] for start in range(3)] == [1, 3, 3]


@pytest.mark.parametrize(
    ("count", "kinds"), [(MANY, [Kind.PART, Kind.PART, Kind.CHARGE, Kind.CANCEL]), (3, [Kind.SUBMIT, Kind.CANCEL])]
)
async def test_a_request_whose_caller_goes_is_charged_once(count, kinds):
    """The coordinator charges what is submitted, and the front what is not."""
    sent: list[bytes] = []
    front = CoordinatorRequests(sent.append, RequestStats(), RemoteRateLimiter(lambda client, requests: None))
    for row in front.submit(0, sequences(count), LATER, "interactive", RequestRecord()):
        row.cancel()
    for _ in range(5):
        await asyncio.sleep(0)

    assert [HEADER.unpack_from(message)[1] for message in sent] == kinds


@pytest.mark.parametrize("wrong", [np.zeros(3, np.int32), np.zeros(2, np.int64)])
def test_sequences_with_other_arrays_are_not_packed(wrong):
    encoding = Encoding(np.zeros(3, np.int64), wrong, np.zeros(1, np.int64))

    with pytest.raises(ValueError, match="as many int64 as its tokens"):
        codec.pack_sequences([encoding])
