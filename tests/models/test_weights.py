"""Tests of the files of weights: safetensors are read as their own package does, and damaged files are refused."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load_file
from safetensors.torch import save_file

from swiftlet_models.artifact import find_artifacts
from swiftlet_models.tensors import SMALLEST_BLOCK, TYPES, Adapted, Computed, PackedTensor, WeightsError, pack, unpack
from swiftlet_models.weights import (
    INT8,
    LORA_A,
    LORA_B,
    MIN_ROWS,
    SCALE,
    open_weights,
    read_header,
    read_weights,
    save_weights,
)
from swiftlet_serve.inference.loading import BUNDLED

WEIGHTS = "weights.safetensors"


def matrices(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"large": (40, 96), "few": (MIN_ROWS - 1, 32), "narrow": (20, 24), "vector": (7,), "deep": (2, 3, 4)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_fp32_weights_are_stored_as_they_are(tmp_path):
    save_weights(tmp_path / WEIGHTS, matrices(), "fp32")

    for weights in (read_weights(tmp_path / WEIGHTS), load_file(tmp_path / WEIGHTS)):
        assert {name: weight.tobytes() for name, weight in weights.items()} == {
            name: matrix.tobytes() for name, matrix in matrices().items()
        }


def test_int8_weights_are_matrices_of_some_size(tmp_path):
    save_weights(tmp_path / WEIGHTS, matrices(), "int8")
    stored = load_file(tmp_path / WEIGHTS)

    assert stored.keys() == {"large.int8", "large.scale", "few", "narrow", "vector", "deep"}
    packed, scales = pack(matrices()["large"], 32)
    assert np.array_equal(stored["large" + INT8], packed)
    assert np.array_equal(stored["large" + SCALE], scales)
    with open_weights(tmp_path / WEIGHTS) as weights:
        large = weights["large"]
        assert isinstance(large, PackedTensor)
        assert large.shape == (40, 96)
        assert np.array_equal(large[3:9], unpack(packed, scales)[3:9])
        assert np.array_equal(np.asarray(large), unpack(packed, scales))


def test_bf16_weights_are_matrices_of_some_size(tmp_path):
    save_weights(tmp_path / WEIGHTS, matrices(), "bf16")
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping

    for name, matrix in matrices().items():
        large = name in ("large", "narrow")
        expected = torch.from_numpy(matrix).to(torch.bfloat16 if large else torch.float32)
        assert stored[name].dtype == expected.dtype
        assert torch.equal(stored[name], expected)
        assert np.array_equal(read_weights(tmp_path / WEIGHTS)[name], expected.float().numpy())


def test_numbers_that_bf16_does_not_hold_are_not_written(tmp_path):
    weights = {"x": np.full((16, 16), 3.4e38, np.float32)}
    with pytest.raises(WeightsError, match="a parameter is not finite"):
        save_weights(tmp_path / WEIGHTS, weights, "bf16")


def test_a_matrix_is_written_block_by_block(tmp_path):
    """Memory does not grow with a matrix, and the blocks make no difference."""
    matrix = np.random.default_rng(0).normal(size=(5000, 512)).astype(np.float32)
    most = 0

    def rows(span: slice) -> np.ndarray:
        nonlocal most
        most = max(most, len(matrix[span]))
        return matrix[span]

    save_weights(tmp_path / "computed", {"x": Computed(matrix.shape, matrix.dtype, rows)}, "int8")
    packed, scales = pack(matrix, 128)
    stored = load_file(tmp_path / "computed")

    assert most < len(matrix)
    assert np.array_equal(stored["x.int8"], packed)
    assert np.array_equal(stored["x.scale"], scales)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_tensors_of_every_width_are_read_in_fp32(tmp_path, dtype):
    tensors = {"matrix": torch.randn(5, 3).to(dtype), "vector": torch.tensor([0.0, -1.5, 65504.0]).to(dtype)}
    save_file(tensors, tmp_path / WEIGHTS)
    weights = read_weights(tmp_path / WEIGHTS)

    for name, tensor in tensors.items():
        assert weights[name].dtype == np.float32
        assert np.array_equal(weights[name], tensor.float().numpy())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_numbers_that_are_not_finite_in_fp32_are_refused(tmp_path, value, dtype):
    save_file({"x": torch.tensor([1.0, value]).to(dtype)}, tmp_path / WEIGHTS)

    with pytest.raises(WeightsError, match="a parameter is not finite"):
        read_weights(tmp_path / WEIGHTS)


@pytest.mark.parametrize("path", list(find_artifacts(BUNDLED)), ids=lambda path: path.name)
def test_bundled_models_are_read_as_their_tensors_say(path):
    stored = load_file(path / WEIGHTS)
    for name, weight in read_weights(path / WEIGHTS).items():
        expected = stored[name] if name in stored else unpack(stored[name + INT8], stored[name + SCALE])
        assert np.array_equal(weight, expected)


def test_what_an_adapter_adds_stays_apart_in_fp32(tmp_path):
    draw = np.random.default_rng(1)
    b, a = draw.normal(size=(40, 17)).astype(np.float32), draw.normal(size=(17, 96)).astype(np.float32)
    for precision in ("int8", "bf16", "fp32"):
        save_weights(tmp_path / "base", matrices(), precision)
        save_weights(tmp_path / WEIGHTS, matrices() | {"large": Adapted(matrices()["large"], b, a)}, precision)
        stored, base = load(tmp_path / WEIGHTS), load(tmp_path / "base")
        assert stored == base | {"large" + LORA_A: a.tobytes(), "large" + LORA_B: b.tobytes()}
        large = read_weights(tmp_path / WEIGHTS)["large"]
        np.testing.assert_allclose(large, read_weights(tmp_path / "base")["large"] + b @ a, atol=1e-5)
        with open_weights(tmp_path / WEIGHTS) as weights:
            np.testing.assert_allclose(weights["large"][3:9], large[3:9], atol=1e-5)


def load(file: Path) -> dict[str, bytes]:
    with file.open("rb") as stream:
        tensors = read_header(stream)
        return {
            name: os.pread(stream.fileno(), math.prod(one.shape) * TYPES[one.kind].itemsize, one.at)
            for name, one in tensors.items()
        }


def parts(**shapes: list[int]) -> bytes:
    """Returns a file with a parameter x, and what an adapter adds to it."""
    at, header = 0, {}
    for name, shape in ({"x": [2, 3]} | {name.replace("_", ".lora_"): shape for name, shape in shapes.items()}).items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at := at + 4 * math.prod(shape)]}
    return content(header, bytes(at))


def content(header: Any, data: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "its header is longer than the file"),
        (b"\0" * 7, "its header is longer than the file"),
        (struct.pack("<Q", 1 << 62) + b"{}", "its header is longer than the file"),
        (content(b"[" * 100_000), "its header is not a JSON object"),
        (content([]), "its header is not a JSON object"),
        (content(b"{"), "has no readable parameters"),
        (content(b"\xff\xfe"), "has no readable parameters"),
        (content({}), "it is empty"),
        (content({"x": 1}), "an invalid entry"),
        (content(entry(dtype="F4"), bytes(8)), "of a type that is not supported"),
        (content(entry(dtype=7), bytes(8)), "an invalid entry"),
        (content(entry(shape=[-2]), bytes(8)), "an invalid shape"),
        (content(entry(shape=[True]), bytes(8)), "an invalid shape"),
        (content(entry(shape=["2"]), bytes(8)), "an invalid shape"),
        (content(entry(shape=[1] * 9), bytes(8)), "an invalid shape"),
        (content(entry(shape=[1 << 30, 1 << 30]), bytes(8)), "too large"),
        (content(entry(shape=[0, 1 << 31, 2]), bytes(8)), "too large"),
        (content(entry(shape=[3]), bytes(8)), "another size than its shape says"),
        (content(entry(data_offsets=[-8, 0]), bytes(8)), "another size than its shape says"),
        (content(entry(data_offsets=[8, 16]), bytes(16)), "overlap, or leave bytes between them"),
        (content(entry() | {"y": entry()["x"]}, bytes(8)), "overlap, or leave bytes between them"),
        (content(entry(), bytes(9)), "another size than its header says"),
        (content(entry(), bytes(7)), "another size than its header says"),
        (parts(x_a=[1, 3]), "has no readable parameters"),
        (parts(x_a=[1, 3], y_b=[2, 1]), "has no readable parameters"),
        (parts(x_a=[1, 2], x_b=[2, 1]), "do not match their parameter"),
        (parts(x_a=[1, 3], x_b=[3, 1]), "do not match their parameter"),
        (parts(x_a=[2, 3], x_b=[2, 1]), "do not match their parameter"),
        (parts(x_a=[0, 3], x_b=[2, 0]), "do not match their parameter"),
        (parts(x_a=[3], x_b=[2, 1]), "do not match their parameter"),
        (content({"x.int8": entry(dtype="U8", data_offsets=[0, 2])["x"]}, bytes(2)), "has no readable parameters"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path, file, reason):
    (tmp_path / WEIGHTS).write_bytes(file)

    with pytest.raises(WeightsError, match=reason), open_weights(tmp_path / WEIGHTS):
        pass


SMALL = content(
    {
        "x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "y.int8": {"dtype": "U8", "shape": [2, 2, 16], "data_offsets": [24, 88]},
        "y.scale": {"dtype": "F32", "shape": [2, 2], "data_offsets": [88, 104]},
        "__metadata__": {"format": "pt"},
    },
    np.arange(26, dtype=np.float32).tobytes(),
)


@given(st.integers(0, len(SMALL) - 1), st.integers(0, 255), st.booleans())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, at, byte, cut):
    damaged = bytearray(SMALL)
    damaged[at] = byte
    file = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    file.write_bytes(damaged[: at + 1] if cut else damaged)
    with contextlib.suppress(WeightsError):
        assert all(array.dtype == np.float32 for array in read_weights(file).values())


def test_a_matrix_is_read_in_as_many_calls_as_the_system_takes(tmp_path, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read(file, [into[0][:1000]], at))  # Linux: 2 GiB
    save_weights(tmp_path / WEIGHTS, matrices(), "fp32")
    with open_weights(tmp_path / WEIGHTS) as weights:
        for name, expected in matrices().items():
            np.testing.assert_array_equal(np.asarray(weights[name]), expected)


def test_a_file_that_becomes_shorter_is_refused(tmp_path):
    save_weights(tmp_path / WEIGHTS, matrices(), "fp32")
    with open_weights(tmp_path / WEIGHTS) as weights:
        (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:2000])
        with pytest.raises(WeightsError, match="was changed while it was read"):
            np.asarray(weights["vector"])


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 3).map(lambda blocks: blocks * SMALLEST_BLOCK)),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    )
)
@example(np.zeros((1, SMALLEST_BLOCK), np.float32))
@example(np.full((1, SMALLEST_BLOCK), 190 * 2.0**-149, np.float32))  # float32 cannot represent a step
def test_pack_rounds_by_at_most_half_a_step(weight):
    packed, scales = pack(weight, SMALLEST_BLOCK)
    off = np.abs(unpack(packed, scales).astype(np.float64) - weight)

    assert packed.dtype == np.uint8
    assert packed.min() >= 1
    assert packed.shape == (len(weight), weight.shape[1] // SMALLEST_BLOCK, SMALLEST_BLOCK)
    assert (off <= 0.5001 * np.repeat(scales, SMALLEST_BLOCK, axis=1)).all()


@given(
    hnp.arrays(np.uint8, (3, 2, SMALLEST_BLOCK), elements=st.integers(1, 255)),
    hnp.arrays(np.float32, (3, 2), elements=st.floats(2**-20, 2**20, width=32)),
)
def test_pack_inverts_unpack(packed, scales):
    packed[:, :, 0] = 255  # every block uses its whole range
    again, same = pack(unpack(packed, scales), SMALLEST_BLOCK)

    assert np.array_equal(again, packed)
    assert np.allclose(same, scales, rtol=1e-6)
