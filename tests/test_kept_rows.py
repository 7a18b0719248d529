"""Rows of labels, kept for later requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from starlette.testclient import TestClient

from swiftlet_models.encodings import Encoding, kept
from swiftlet_serve.errors import Internal
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.kept_rows import ENTRY_BYTES, KeptRows
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import RequestRecord
from tests.support.artifacts import make_artifact

ROW_BYTES = 4 * 4
IDS = (2, 5, 3)


class Computing:
    """A scheduler that notes what it is given. A row holds the ids, and lies in memory that is used again."""

    def __init__(self) -> None:
        self.computed: list[list[int]] = []
        self.fails = False
        self.memory = np.zeros((1, 4), np.float32)

    def submit(self, encodings, deadline, priority, record):
        self.computed += [encoding.input_ids.tolist() for encoding in encodings]
        return [self._row(encoding) for encoding in encodings]

    async def _row(self, encoding):
        await asyncio.sleep(0)
        if self.fails:
            raise Internal("invalid_engine_output", "no")
        self.memory[0, : len(encoding.input_ids)] = encoding.input_ids
        return self.memory


def encoding(ids: Sequence[int] = IDS, **changes) -> Encoding:
    return kept(plain(ids, **changes))


def plain(ids: Sequence[int], **changes) -> Encoding:
    array = np.array(ids)
    return Encoding(array, np.zeros_like(array), np.array([0]), **changes)


async def rows(kept_rows, *encodings, record=None):
    found = await asyncio.gather(*kept_rows.submit(encodings, 1.0, "interactive", record))
    return [row.copy() for row in found]


@pytest.fixture
def engine() -> Computing:
    return Computing()


async def test_kept_sequence_is_computed_once(engine):
    kept_rows, record = KeptRows(engine.submit), RequestRecord()
    text = plain((2, 9, 3))
    first = await rows(kept_rows, text, encoding(), record=record)
    assert record.kept_tokens == 0
    second = await rows(kept_rows, text, encoding(), encoding((2, 6, 6, 3)), record=record)

    assert engine.computed == [[2, 9, 3], [2, 5, 3], [2, 9, 3], [2, 6, 6, 3]]
    assert np.array_equal(first[1], second[1])
    assert record.kept_tokens == 3
    assert record.input_tokens == record.tokens + 3


async def test_kept_sequence_that_occurs_twice_in_a_request_is_computed_once(engine):
    kept_rows, record = KeptRows(engine.submit), RequestRecord()
    text = plain((2, 9, 3))
    found = await rows(kept_rows, encoding(), text, encoding(), text, encoding((2, 6, 3)), record=record)
    assert engine.computed == [[2, 5, 3], [2, 9, 3], [2, 9, 3], [2, 6, 3]]
    assert found[0].tobytes() == found[2].tobytes()
    assert record.kept_tokens == 3


@pytest.mark.parametrize(
    "other",
    [
        encoding((2, 5, 5)),
        encoding((2, 5)),
        encoding(attended=2),
        encoding(head=1),
        kept(Encoding(np.array(IDS), np.array([0, 1, 1]), np.array([0]))),
        kept(Encoding(np.array(IDS), np.zeros(3, int), np.array([1]))),
        encoding((2, 5, 3, 0)),
    ],
)
async def test_sequence_that_differs_in_anything_is_another_one(other, engine):
    kept_rows = KeptRows(engine.submit)
    await rows(kept_rows, encoding())
    await rows(kept_rows, other)

    assert len(engine.computed) == 2


async def test_memory_is_bounded_and_the_least_recently_used_goes(engine):
    kept_rows = KeptRows(engine.submit, max_bytes=2 * (ENTRY_BYTES + ROW_BYTES))
    a, b, c = (encoding((2, number, 3)) for number in (5, 6, 7))
    for one in (a, b, a, c):
        await rows(kept_rows, one)
    engine.computed.clear()
    await rows(kept_rows, a, c)
    assert engine.computed == []
    await rows(kept_rows, b)

    assert engine.computed == [[2, 6, 3]]


async def test_row_larger_than_the_memory_is_not_kept(engine):
    kept_rows = KeptRows(engine.submit, max_bytes=1)

    assert [(await rows(kept_rows, encoding()))[0][0, 1] for _ in range(2)] == [5, 5]
    assert len(engine.computed) == 2


async def test_failure_is_not_kept(engine):
    kept_rows = KeptRows(engine.submit)
    engine.fails = True
    with pytest.raises(Internal):
        await rows(kept_rows, encoding())
    engine.fails = False

    assert (await rows(kept_rows, encoding()))[0][0, 1] == 5


async def test_equal_sequences_at_a_time_are_computed_and_counted_once_in_memory(engine):
    kept_rows = KeptRows(engine.submit, max_bytes=2 * (ENTRY_BYTES + ROW_BYTES))
    await asyncio.gather(rows(kept_rows, encoding()), rows(kept_rows, encoding()))
    await rows(kept_rows, encoding((2, 6, 3)))
    engine.computed.clear()
    await rows(kept_rows, encoding(), encoding((2, 6, 3)))

    assert engine.computed == []


async def test_row_of_a_cancelled_request_is_cancelled_before_it_is_awaited():
    row = asyncio.get_running_loop().create_future()
    (found,) = KeptRows(lambda *_: [row]).submit([encoding()], 1.0, "interactive", None)
    asyncio.ensure_future(found).cancel()
    await asyncio.sleep(0)

    assert row.cancelled()


def test_labels_are_kept_and_texts_are_not(tmp_path):
    paths = tuple(str(make_artifact(tmp_path, "embed", name).path) for name in ("first", "second"))
    question = {"type": "choice", "instructions": "🎬?", "choices": [{"value": "서울"}, {"value": "b"}]}
    with TestClient(create_app(LocalRuntime.load(Settings(models=paths, engine="echo", cores=1)))) as client:

        def decide(text, model="first"):
            body = {"model": model, "input": text, "questions": [question]}
            response = client.post("/v1/decisions", json=body).json()
            return response["answers"], response["usage"]

        (answers, cold), (again, warm), (other, own) = decide("a text"), decide("a text"), decide("a text", "second")

    assert answers == again == other
    assert (cold["input_tokens_details"]["cached_tokens"], own) == (0, cold)
    text_tokens = warm["input_tokens"] - warm["input_tokens_details"]["cached_tokens"]
    assert warm["input_tokens"] == cold["input_tokens"]
    assert text_tokens == len("atext") + 2
