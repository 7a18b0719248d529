"""Reads the parameters in an artifact's `model.onnx` without a runtime and without the `onnx` package.

An ONNX file is a protobuf message. Only the initializers of the graph are read. The format is documented at
https://protobuf.dev/programming-guides/encoding, and the numbers of the fields are those of onnx/onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.errors import ModelError

INT8: Final = ".int8"
SCALE: Final = ".scale"
ZERO: Final = 128
BLOCK: Final = 128
SMALLEST_BLOCK: Final = 16  # the smallest that MatMulNBits accepts

Array = NDArray[Any]

# The numbers of fields, and of the data types that `export` and `quantize` write.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW = 1, 2, 8, 9
_TYPES: Final[Mapping[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 2: np.dtype("u1"), 7: np.dtype("<i8")}


class WeightsError(ModelError):
    """Raised when the parameters of a file cannot be read. The message is one sentence."""


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters by name in fp32. Parameters in int8 are converted back.

    Raises:
        WeightsError: the file is not an ONNX graph that `export` or `quantize` wrote.
    """
    try:
        weights = merge(dict(_initializers(memoryview(path.read_bytes()))))
    except (ValueError, IndexError, KeyError) as error:
        raise WeightsError(f"{path.name} has no readable parameters: {error}") from None
    if not weights:
        raise WeightsError(f"{path.name} has no readable parameters: it is empty.")
    return weights


def merge(arrays: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters among a graph's initializers, in fp32. A parameter in int8 is two arrays.

    Raises:
        ValueError, IndexError, KeyError: one of the two arrays is missing, or their shapes do not match.
    """
    weights = {}
    for name, array in arrays.items():
        if name.endswith(INT8):
            name = name.removesuffix(INT8)
            array = unpack(array, arrays[name + SCALE])
        if array.dtype == np.float32 and not name.endswith(SCALE) and not name.startswith("int8."):
            weights[name] = array
    return weights


def block_of(columns: int) -> int | None:
    """Returns the largest power of two up to BLOCK that divides a row, or None if it is too small."""
    block = BLOCK
    while columns % block:
        block //= 2
    return block if block >= SMALLEST_BLOCK else None


def pack(weight: Array, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns a matrix (N, K) in 8 bits around ZERO, (N, K / b, b), and its scales (N, K / b)."""
    blocks = weight.reshape(len(weight), -1, block)
    scales = np.abs(blocks).max(axis=2) / 127
    scales[scales < np.finfo(np.float32).tiny] = 1  # float32 cannot hold a step: the block becomes zeros
    values = np.rint(blocks / scales[:, :, None]) + ZERO
    return values.astype(np.uint8), scales.astype(np.float32)


def unpack(packed: Array, scales: Array) -> NDArray[np.float32]:
    """Converts (N, K / b, b) and the scales (N, K / b) back to (N, K)."""
    values: NDArray[np.float32] = (packed.astype(np.float32) - ZERO) * scales[:, :, None]
    return values.reshape(len(packed), -1)


def _initializers(content: memoryview) -> Iterator[tuple[str, Array]]:
    """Yields the name and a copy of each initializer. Raises ValueError and IndexError."""
    for field, graph in _fields(content):
        if field != _GRAPH:
            continue
        for inner, tensor in _fields(_message(graph)):
            if inner == _INITIALIZER:
                yield _tensor(_message(tensor))


def _tensor(message: memoryview) -> tuple[str, Array]:
    dims: list[int] = []
    name, kind, raw = "", 0, memoryview(b"")
    for field, value in _fields(message):
        if field == _DIMS:  # one number per field, or all in one message
            dims += [value] if isinstance(value, int) else _varints(value)
        elif field == _DATA_TYPE and isinstance(value, int):
            kind = value
        elif field == _NAME:
            name = bytes(_message(value)).decode()
        elif field == _RAW:
            raw = _message(value)
    if kind not in _TYPES:
        return name, np.empty(0, np.bool_)  # no parameter has this type
    array: Array = np.frombuffer(raw, _TYPES[kind])
    return name, array.reshape(dims).copy()


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a message is expected instead of a number.")  # noqa: TRY004  # one class for all errors
    return value


def _varints(content: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        values.append(value)
    return values


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yields the number and the value of each field. A value with a length is a view."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        match key & 7:
            case 0:
                value, at = _varint(content, at)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = _varint(content, at)
            case 5:
                size = 4
            case _:
                raise ValueError("a field has an unknown type.")
        if size > len(content) - at:
            raise ValueError("the file ends within a field.")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """Returns a number with 7 bits per byte, lowest first, and the offset of its end."""
    value = shift = 0
    while shift < 64:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number has no end.")
