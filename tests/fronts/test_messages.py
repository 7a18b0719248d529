"""Messages between fronts and the coordinator: what is packed comes out, and anything else is refused."""

from __future__ import annotations

import asyncio
import math
import socket
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, SwiftletError, TooManyRequests, Unavailable, deadline_exceeded
from swiftlet_serve.fronts import load_page, messages
from swiftlet_serve.fronts.channel import Channel
from swiftlet_serve.fronts.load_page import LoadReader, LoadState, LoadWriter
from swiftlet_serve.fronts.messages import HEADER, Kind, Submission
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types.topk import NOTHING, Ranked, Scored

NUMBERS = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9).map(lambda ids: np.array(ids, np.int64))
ENCODINGS = st.one_of(
    st.builds(Encoding, NUMBERS, NUMBERS, NUMBERS),
    st.builds(Ranked, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 9), NUMBERS | st.just(NOTHING)),
    st.builds(Scored, NUMBERS, NUMBERS, NUMBERS, NUMBERS),
).map(lambda one: type(one)(**vars(one) | {"token_type_ids": one.input_ids * 0}))
SUBMISSIONS = st.builds(
    Submission,
    st.integers(0, 99),
    st.lists(ENCODINGS, min_size=1, max_size=3),
    st.floats(0, 1e9),
    st.sampled_from(["interactive", "bulk"]),
    st.text(max_size=9),
    st.booleans(),
)
ROWS = st.tuples(st.integers(1, 3), st.integers(1, 4)).map(
    lambda shape: np.arange(12, dtype=np.float32)[: math.prod(shape)].reshape(shape)
)
OUTCOMES = st.lists(ROWS | st.just(Internal("internal", "The model failed on this input.")), min_size=1, max_size=4)


def body_of(message: bytes) -> memoryview:
    assert HEADER.unpack_from(message)[0] == len(message)
    return memoryview(message)[HEADER.size :]


def fields(one):
    return type(one), {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(one).items()
    }


@given(SUBMISSIONS)
def test_submission_comes_out_as_it_went_in(submission):
    message, end = messages.pack_submission(7, submission)
    found = messages.unpack_submission(body_of(message))
    assert end == len(submission.encodings)

    assert found._replace(encodings=[]) == submission._replace(encodings=[])
    assert list(map(fields, found.encodings)) == list(map(fields, submission.encodings))


@given(SUBMISSIONS, st.data())
def test_damaged_submission_is_refused_or_another_submission(submission, data):
    body = bytearray(body_of(messages.pack_submission(7, submission)[0]))
    at = data.draw(st.integers(0, len(body) - 1))
    damaged = data.draw(st.sampled_from(["cut", "longer", "changed"]))
    if damaged == "changed":
        body[at] ^= data.draw(st.integers(1, 255))
    body = body[:at] if damaged == "cut" else body + b"\0" * (8 if damaged == "longer" else 0)
    try:
        found = messages.unpack_submission(memoryview(body))
    except (ValueError, struct.error):
        return

    assert damaged == "changed"
    assert all(len(one.input_ids) for one in found.encodings)


@given(OUTCOMES)
def test_result_comes_out_as_it_went_in(outcomes):
    record = RequestRecord()
    record.add_call(1.0, 2.0, 4.0, 0.5, 3)
    message, end = messages.pack_result(7, outcomes, record)
    result = messages.unpack_result(body_of(message))

    assert end == len(outcomes)
    assert (result.stages, result.batch_size) == (record.stages, 3)
    for found, expected in zip(result.outcomes, outcomes, strict=True):
        assert type(found) is type(expected)
        assert getattr(found, "code", None) == getattr(expected, "code", None)
        assert isinstance(found, Internal) or (found == expected).all()


def test_result_without_a_row_has_no_stages():
    failed = Internal("internal", "The model failed on this input.")

    assert messages.unpack_result(body_of(messages.pack_result(7, [failed], RequestRecord())[0])).stages == {}


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("overloaded", "The queue is long.", retry_after=1.5),
        TooManyRequests("quota_exceeded", "Too many: ünd.", retry_after=9.0),
        deadline_exceeded(),
    ],
)
def test_error_comes_out_as_it_went_in(error):
    found = messages.unpack_error(body_of(messages.pack_error(7, error)))

    assert isinstance(found, SwiftletError)
    assert (type(found), found.code, found.detail, found.retry_after) == (
        type(error),
        error.code,
        error.detail,
        error.retry_after,
    )


async def receive(chunks: list[bytes]) -> tuple[list[tuple[Kind, int, bytes]], int]:
    """Returns the messages that a channel receives from these bytes, and how often it was lost."""
    received: list[tuple[Kind, int, bytes]] = []
    lost: list[bool] = []
    near, far = socket.socketpair()
    channel = await Channel.open(
        near, lambda kind, number, body: received.append((kind, number, bytes(body))), lambda: lost.append(True)
    )
    for chunk in chunks:
        channel.data_received(chunk)
    while channel._is_waiting:
        await asyncio.sleep(0)
    channel.close()
    far.close()
    return received, len(lost)


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 1 << 63), st.binary(max_size=30)), max_size=5), st.data()
)
def test_channel_joins_and_splits_messages(sent, data):
    stream = b"".join(messages.pack(*one) for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    assert asyncio.run(receive(chunks)) == (sent, 0)


async def test_channel_receives_one_part_of_a_large_request_in_each_iteration():
    near, far = socket.socketpair()
    received: list[Kind] = []
    channel = await Channel.open(near, lambda kind, number, body: received.append(kind), lambda: None)
    kinds, seen = [Kind.PART, Kind.PART, Kind.STATS, Kind.SUBMIT], list[list[Kind]]()
    channel.data_received(b"".join(map(messages.pack, kinds)))
    while channel._is_waiting:
        seen.append(received[:])
        await asyncio.sleep(0)

    assert [*seen, received] == [kinds[:1], kinds[:2], kinds]
    channel.close()
    far.close()


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4))
def test_channel_is_lost_at_most_once_whatever_it_receives(chunks):
    received, lost = asyncio.run(receive(chunks))

    assert lost <= 1
    assert all(isinstance(kind, Kind) for kind, _, _ in received)


def test_channel_is_lost_if_a_message_is_too_long_or_of_no_kind():
    too_long, no_kind = HEADER.pack(messages.MAX_BYTES + 1, Kind.STATS, 0), HEADER.pack(HEADER.size, 99, 0)

    assert asyncio.run(receive([too_long])) == ([], 1)
    assert asyncio.run(receive([no_kind])) == ([], 1)


STATE = LoadState(10.0, True, False, 4, 0.5, 2.0, 0.01, {load_page.number_of("busy"): (3.0, 9.0)}, [(0.1, 0.2, 0.3)])


def test_load_is_read_as_it_was_written_and_shrinks_with_the_time():
    writer, reader = load_page.create()
    LoadWriter(writer).write(STATE)
    found = LoadReader(reader).read()

    assert found == STATE
    assert [found.wait_s("other", "interactive", at) for at in (9.0, 10.0, 10.25, 11.0)] == [0.5, 0.5, 0.25, 0.0]
    assert found.wait_s("other", "bulk", 10.5) == 1.5
    assert [found.wait_s("busy", priority, 10.0) for priority in ("interactive", "bulk")] == [3.0, 9.0]


def test_reader_keeps_the_last_state_while_another_is_written():
    writer, reader = load_page.create()
    write, read = LoadWriter(writer), LoadReader(reader)
    write.write(STATE)
    read.read()
    write._page[9] ^= 1  # half of a write

    assert read.read() == STATE
    write.write(STATE._replace(cores=8))
    assert read.read().cores == 8


def test_fronts_cannot_write_the_page():
    _, reader = load_page.create()

    with pytest.raises(PermissionError):
        LoadWriter(reader)


def test_page_holds_as_many_models_as_fit():
    writer, reader = load_page.create()
    LoadWriter(writer).write(STATE._replace(coefficients=[(1.0, 2.0, 3.0)] * 1000))

    assert 150 < len(LoadReader(reader).read().coefficients) < 1000
