"""What goes into one end of the wire comes out of the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import Internal
from swiftlet_serve.service.topk import Ranked
from swiftlet_serve.service.types import BatchResult
from swiftlet_serve.service.workers import codec
from swiftlet_serve.service.workers.hosted_model import ERROR_DETAILS

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def encodings(draw):
    tokens, focus = draw(st.integers(0, 20)), draw(st.integers(0, 5))
    ids, types = (draw(arrays.arrays(np.int64, tokens, elements=INT64)) for _ in range(2))
    plain = Encoding(ids, types, draw(arrays.arrays(np.int64, focus, elements=INT64)))
    if draw(st.booleans()):
        return plain
    among = draw(arrays.arrays(np.int64, st.integers(0, 5), elements=INT64))
    return Ranked(*vars(plain).values(), draw(st.integers(1, 100)), among)


ROWS = arrays.arrays(np.float32, st.tuples(st.integers(0, 4), st.integers(0, 50)))
FAILURES = st.sampled_from(list(ERROR_DETAILS)).map(lambda code: Internal(code, ERROR_DETAILS[code]))


def body(message: bytes) -> bytearray:
    """A message without its head, which tells its length."""
    assert codec.body_bytes(bytearray(message)) == len(message) - codec.HEADER_BYTES
    return bytearray(message[codec.HEADER_BYTES :])


@given(INT64, st.integers(0, 100), st.lists(encodings(), min_size=1, max_size=20))
def test_a_call_comes_through(id_, model, asked):
    returned, model_returned, batch = codec.unpack_call(body(codec.pack_call(id_, model, asked)))
    found = batch.encodings()

    assert (returned, model_returned) == (id_, model)
    assert list(map(type, found)) == list(map(type, asked))
    assert [[np.array(part).tolist() for part in vars(one).values()] for one in found] == [
        [np.array(part).tolist() for part in vars(one).values()] for one in asked
    ]


@given(INT64, st.lists(st.one_of(ROWS, FAILURES), max_size=20), st.floats(0, 1e6))
def test_an_answer_comes_through_bit_for_bit(id_, outcomes, engine_s):
    message = body(codec.pack_result(id_, BatchResult(outcomes, engine_s)))
    returned, (found, returned_s) = codec.unpack_result(memoryview(message))
    message[:] = bytes(len(message))  # what was unpacked does not live in it

    assert returned == id_
    assert returned_s == pytest.approx(engine_s, abs=1e-9)
    assert len(found) == len(outcomes)
    for one, other in zip(found, outcomes, strict=True):
        if isinstance(other, Internal):
            assert (one.code, one.detail) == (other.code, other.detail)
        else:
            assert (one.dtype, one.shape, one.tobytes()) == (np.float32, other.shape, other.tobytes())


def test_every_error_that_an_encoding_may_have_has_its_sentence():
    assert ERROR_DETAILS.keys() == Internal.codes
