"""The JSON of answers with arrays, against that of the same answers with lists."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic_core import PydanticSerializationError, to_json

from swiftlet_serve.types import json_text

LENGTH = json_text.BLOCK + 9  # of a vector that is written in two parts


def bits(numbers: object) -> list[int]:
    """Returns the bits of floats: -0.0 is not 0.0."""
    return np.array(numbers, np.float64).view(np.int64).tolist()


def vector(seed: int, scale: float = 1.0) -> Any:
    """Returns a vector whose numbers have 8 decimals."""
    return (np.random.default_rng(seed).normal(size=LENGTH) * scale).round(8)


@given(
    first=hnp.arrays(np.int64, st.integers(1, 9), elements=st.integers(-(10**9) + 1, 10**9 - 1)),
    zeros=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-8, -1e-8, 0.1, 9.99999999]), max_size=9),
)
def test_numbers_are_read_as_they_were_written(first: Any, zeros: list[float]) -> None:
    array = np.concatenate([first / 1e8, zeros, np.zeros(LENGTH)])
    assert bits(json.loads(json_text.write(array))) == bits(array)


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1.0])
def test_every_number_takes_twelve_bytes(scale: float) -> None:
    array = vector(0, scale)
    text = json_text.write(array)
    assert len(text) == 12 * len(array) + 1  # a comma less, and two brackets
    assert bits(json.loads(text)) == bits(array)


@pytest.mark.parametrize("odd", [10.0, -10.0, 123456.75, 1e300, 0.123456789, 1e-9, 1 / 3])
def test_numbers_that_need_other_digits_lose_nothing(odd: float) -> None:
    array = vector(1)
    array[LENGTH // 2] = odd
    assert bits(json.loads(json_text.write([vector(2), array]))) == bits([vector(2), array])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_json_lacks_are_written_as_in_lists(odd: float) -> None:
    array = vector(1)
    array[0] = odd
    for mode in ("null", "constants"):
        assert json_text.write({"a": array}, inf_nan_mode=mode) == to_json({"a": array.tolist()}, inf_nan_mode=mode)


def test_arrays_are_lists_wherever_they_are() -> None:
    levels, bytes_ = np.arange(-3, 3), np.arange(3, dtype=np.uint8)
    arrays = [vector(0), levels, vector(1), vector(2)[:5], bytes_, vector(3)[:0]]
    answer = {"data": [{"embedding": array, "index": i} for i, array in enumerate(arrays)], "text": "[,]\"' \u2028ü"}
    plain = {**answer, "data": [{"embedding": array.tolist(), "index": i} for i, array in enumerate(arrays)]}
    assert json.loads(json_text.write(answer)) == plain
    assert json_text.write(plain) == to_json(plain)


def test_a_text_that_looks_like_an_array_stays_text() -> None:
    texts = ['"', "0" * 32, "\\", '"0"']
    assert json.loads(json_text.write([*texts, vector(0), *texts])) == [*texts, vector(0).tolist(), *texts]


def test_other_types_are_errors_unless_there_is_a_fallback() -> None:
    with pytest.raises(PydanticSerializationError):
        json_text.write([object()])
    assert json.loads(json_text.write([vector(0)[:1], 1j], fallback=str)) == [[vector(0)[0]], "1j"]


def test_an_array_may_be_empty() -> None:
    assert json.loads(json_text.write([vector(0)[:0], vector(1)[:2]])) == [[], vector(1)[:2].tolist()]
