"""Messages between the service and a worker process survive a round trip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal
from swiftlet_serve.types import BatchResult
from swiftlet_serve.types.codec import ERROR_DETAILS
from swiftlet_serve.types.topk import Ranked
from swiftlet_serve.workers import messages

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def encodings(draw):
    tokens, focus = draw(st.integers(0, 20)), draw(st.integers(0, 5))
    ids, types = (draw(arrays.arrays(np.int64, tokens, elements=INT64)) for _ in range(2))
    plain = Encoding(ids, types, draw(arrays.arrays(np.int64, focus, elements=INT64)))
    if draw(st.booleans()):
        return plain
    candidates = draw(arrays.arrays(np.int64, st.integers(0, 5), elements=INT64))
    return Ranked(**vars(plain), top_k=draw(st.integers(1, 100)), candidates=candidates)


ROWS = arrays.arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 50)))
FAILURES = st.sampled_from(list(ERROR_DETAILS)).map(lambda code: Internal(code, ERROR_DETAILS[code]))


def body_of(message: bytes) -> bytearray:
    """Returns a message without its header, whose length field is checked."""
    assert messages.body_bytes(bytearray(message)) == len(message) - messages.HEADER_BYTES
    return bytearray(message[messages.HEADER_BYTES :])


@given(INT64, st.integers(0, 100), st.lists(encodings(), min_size=1, max_size=20))
def test_call_survives_a_round_trip(id_, model, sent):
    returned, model_returned, batch = messages.unpack_call(body_of(messages.pack_call(id_, model, sent)))
    found = batch.encodings()

    assert (returned, model_returned) == (id_, model)
    assert list(map(type, found)) == list(map(type, sent))
    assert [[np.array(part).tolist() for part in vars(one).values()] for one in found] == [
        [np.array(part).tolist() for part in vars(one).values()] for one in sent
    ]


@given(INT64, st.lists(st.one_of(ROWS, FAILURES), max_size=20), st.floats(0, 1e6), st.floats(0, 1e6))
def test_result_survives_a_round_trip_bit_for_bit(id_, outcomes, engine_s, helped_s):
    message = body_of(messages.pack_result(id_, BatchResult(outcomes, engine_s, helped_s)))
    returned, (found, *times) = messages.unpack_result(memoryview(message))
    message[:] = bytes(len(message))  # the unpacked rows must be copies

    assert returned == id_
    assert times == pytest.approx([engine_s, helped_s], abs=1e-9)
    assert len(found) == len(outcomes)
    for one, other in zip(found, outcomes, strict=True):
        if isinstance(other, Internal):
            assert (one.code, one.detail) == (other.code, other.detail)
        else:
            assert (one.dtype, one.shape, one.tobytes()) == (np.float32, other.shape, other.tobytes())


def test_every_internal_error_code_has_a_detail():
    assert ERROR_DETAILS.keys() == Internal.codes - {"tokenizer_failed"}  # which no worker process raises
