"""Tests of the reader: it reads parameters as the `onnx` package does, and rejects invalid files."""

from __future__ import annotations

import contextlib

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from swiftlet_models.artifact import ONNX
from swiftlet_models.tensors import WeightsError, round_to_bf16, widen
from swiftlet_models.weights import read_weights
from tests.support.networks import EXPORTED, graph


@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_reader_reads_graphs_as_onnx_does(architecture, task, tmp_path):
    onnx.save(graph(architecture, task), tmp_path / ONNX)
    expected = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph(architecture, task).graph.initializer}

    for name, array in read_weights(tmp_path / ONNX).items():
        assert array.dtype == np.float32
        assert array.tobytes() == expected[name].tobytes()
        assert array.shape == expected[name].shape


def small() -> bytes:
    tensors = [
        numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "plain"),
        numpy_helper.from_array(np.arange(64, dtype=np.uint8).reshape(2, 2, 16), "packed.int8"),
        numpy_helper.from_array(np.ones((2, 2), np.float32), "packed.scale"),
        numpy_helper.from_array(np.array(3, np.float64), "other"),
        numpy_helper.from_array(np.array([[0.5, -3]], ml_dtypes.bfloat16), "half"),
    ]
    return helper.make_model(helper.make_graph([], "small", [], [], tensors)).SerializeToString()


def test_reader_reads_a_small_file(tmp_path):
    (tmp_path / ONNX).write_bytes(small())
    weights = read_weights(tmp_path / ONNX)

    assert sorted(weights) == ["half", "other", "packed", "plain"]
    assert weights["other"].tolist() == 3
    assert weights["half"].tolist() == [[0.5, -3]]
    assert weights["plain"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert weights["packed"].tolist() == (np.arange(64).reshape(2, 32) - 128).tolist()


@given(st.integers(0, len(small()) - 1), st.integers(0, 255), st.booleans())
def test_reader_reads_or_rejects_a_corrupted_file(tmp_path_factory, at, byte, cut):
    content = bytearray(small())
    content[at] = byte
    file = tmp_path_factory.getbasetemp() / "corrupted.onnx"
    file.write_bytes(content[: at + 1] if cut else content)
    with contextlib.suppress(WeightsError):
        assert all(array.dtype == np.float32 for array in read_weights(file).values())


@given(st.lists(st.floats(width=32, min_value=-(2.0**127), max_value=2.0**127), min_size=1))
def test_numbers_are_rounded_to_bf16_as_ml_dtypes_rounds(numbers):
    array = np.array([*numbers, 1 + 2**-8, 1 + 3 * 2**-8, -(2.0**-130)], np.float32)

    assert widen(round_to_bf16(array)).tobytes() == array.astype(ml_dtypes.bfloat16).astype(np.float32).tobytes()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 3.4e38, 1e60])
def test_numbers_that_bf16_does_not_hold_are_refused(wrong):
    with pytest.raises(ValueError, match="not finite"):
        round_to_bf16(np.array([1, wrong]))


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x3a\x7f", b"\x0b", b"not a network"])
def test_reader_rejects_a_file_without_a_graph(tmp_path, content):
    (tmp_path / ONNX).write_bytes(content)

    with pytest.raises(WeightsError, match=r"model\.onnx has no readable parameters"):
        read_weights(tmp_path / ONNX)


@pytest.mark.parametrize(
    "arrays",
    [
        {"plain": np.array([1, np.nan], np.float32)},
        {"plain": np.array([[1], [-np.inf]], np.float32)},
        {"half": np.array([[1], [np.inf]], ml_dtypes.bfloat16)},
        {"half": np.array([[np.nan, 1]], ml_dtypes.bfloat16)},
        {"packed.int8": np.zeros((1, 1, 16), np.uint8), "packed.scale": np.array([[np.inf]], np.float32)},
    ],
)
def test_reader_rejects_numbers_that_are_not_finite(tmp_path, arrays):
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    (tmp_path / ONNX).write_bytes(helper.make_model(helper.make_graph([], "g", [], [], tensors)).SerializeToString())

    with pytest.raises(WeightsError, match="is not finite"):
        read_weights(tmp_path / ONNX)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x08\x00" * (1 << 19), "a message has too many fields"),
        (b"\x2a\x80\x80\x20\x0a\xfc\xff\x1f" + b"\x01" * ((1 << 19) - 4), "a tensor has too many dimensions"),
        (b"\x2a\x80\x80\x20" + b"\x08\x01" * (1 << 18), "a tensor has too many dimensions"),
    ],
)
def test_reader_rejects_messages_of_many_parts(tmp_path, content, reason):
    """Each part would take far more memory and time than its bytes in the file."""
    length, size = len(content), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    (tmp_path / ONNX).write_bytes(b"\x3a" + size + bytes([length]) + content)

    with pytest.raises(WeightsError, match=reason):
        read_weights(tmp_path / ONNX)
