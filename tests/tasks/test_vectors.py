"""The formats of vectors, against `quantize_embeddings` of sentence-transformers."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from sentence_transformers.util import quantize_embeddings

from swiftlet_serve.tasks import _vectors

RANGES = np.array([[-128.5 / 127], [126.5 / 127]])  # of sentence-transformers, in which a step is 1/127


@pytest.fixture(scope="module")
def vectors() -> Any:
    raw = np.random.default_rng(0).normal(size=(500, 24))
    raw[0], raw[1, 1:], raw[1, 0], raw[2, 1:], raw[2, 0] = 0, 0, 1, 0, -1
    return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12)


def write(vectors: Any, chosen: Any) -> Any:
    return np.array(_vectors.write(vectors, chosen))


@pytest.mark.parametrize("chosen", ["int8", "uint8"])
def test_int8_equals_sentence_transformers_with_steps_of_a_127th(chosen: Any, vectors: Any) -> None:
    ranges = np.repeat(RANGES, vectors.shape[1], axis=1)
    expected = np.array(quantize_embeddings(vectors, chosen, ranges), int)
    found = write(vectors, chosen)
    shift = 0 if chosen == "int8" else 128

    assert np.abs(found - expected).max() <= 1  # their ranges are in fp32
    assert (found == expected).mean() > 0.999
    assert np.abs((found - shift) / 127 - vectors).max() <= 0.5 / 127 + 1e-12
    assert (found[0] == shift).all()
    assert (found[1, 0] - shift, found[2, 0] - shift) == (127, -127)


@pytest.mark.parametrize("chosen", ["binary", "ubinary"])
def test_binary_equals_sentence_transformers(chosen: Any, vectors: Any) -> None:
    assert np.array_equal(write(vectors, chosen), quantize_embeddings(vectors, chosen))


def test_base64_is_read_as_it_was_written(vectors: Any) -> None:
    texts = _vectors.write(vectors, "base64")
    assert np.array_equal([_vectors.read_base64(text) for text in texts], vectors.astype(np.float32))


@pytest.mark.parametrize("chosen", get_args(_vectors.Format))
def test_a_format_is_refused_for_vectors_that_it_cannot_hold(chosen: Any) -> None:
    assert _vectors.refusal(chosen, 16, normalized=True) is None
    long = _vectors.refusal(chosen, 16, normalized=False)
    odd = _vectors.refusal(chosen, 12, normalized=True)
    assert (long is not None) == chosen.endswith("int8")
    assert (odd is not None) == chosen.endswith("binary")
