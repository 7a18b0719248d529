"""The parameters in an artifact's `model.onnx`, read without a runtime and without the `onnx` package.

An ONNX file is a protobuf message. Of it only the graph's initializers are read, which takes three of the fields of
two messages: https://protobuf.dev/programming-guides/encoding and onnx/onnx.proto say where they are.
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
SMALLEST_BLOCK: Final = 16  # what MatMulNBits accepts

Array = NDArray[Any]

# Numbers of fields, and of the kinds of tensors that `export` and `quantize` write.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW = 1, 2, 8, 9
_TYPES: Final[Mapping[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 2: np.dtype("u1"), 7: np.dtype("<i8")}


class WeightsError(ModelError):
    """The file is no ONNX graph, or not one whose parameters can be read; the message is one sentence."""


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The parameters by name, in fp32; those that `quantize` made int8 are converted back.

    Raises:
        WeightsError: the file is no ONNX graph, or not one that `export` or `quantize` wrote.
    """
    try:
        weights = merge(dict(_initializers(memoryview(path.read_bytes()))))
    except (ValueError, IndexError, KeyError) as error:
        raise WeightsError(f"{path.name} is no graph whose parameters can be read: {error}") from None
    if not weights:
        raise WeightsError(f"{path.name} is no graph whose parameters can be read: it has no parameters.")
    return weights


def merge(arrays: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
    """Of a graph's initializers those that are parameters, in fp32, and those that are two arrays as one.

    Raises:
        ValueError, IndexError, KeyError: one of two arrays is missing, or they do not belong together.
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
    """The largest power of two up to BLOCK that divides a row; None where there is none of use."""
    block = BLOCK
    while columns % block:
        block //= 2
    return block if block >= SMALLEST_BLOCK else None


def pack(weight: Array, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(N, K) to (N, K / b, b) about ZERO, and (N, K / b) scales."""
    blocks = weight.reshape(len(weight), -1, block)
    scales = np.abs(blocks).max(axis=2) / 127
    scales[scales < np.finfo(np.float32).tiny] = 1  # too small for float32 to hold a step of it: as good as zeros
    values = np.rint(blocks / scales[:, :, None]) + ZERO
    return values.astype(np.uint8), scales.astype(np.float32)


def unpack(packed: Array, scales: Array) -> NDArray[np.float32]:
    """(N, K / b, b) and (N, K / b) back to (N, K)."""
    values: NDArray[np.float32] = (packed.astype(np.float32) - ZERO) * scales[:, :, None]
    return values.reshape(len(packed), -1)


def _initializers(content: memoryview) -> Iterator[tuple[str, Array]]:
    """Name and copy of each. Raises ValueError, IndexError."""
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
        if field == _DIMS:  # one each, or all packed into a message
            dims += [value] if isinstance(value, int) else _varints(value)
        elif field == _DATA_TYPE and isinstance(value, int):
            kind = value
        elif field == _NAME:
            name = bytes(_message(value)).decode()
        elif field == _RAW:
            raw = _message(value)
    if kind not in _TYPES:
        return name, np.empty(0, np.bool_)  # nothing that a parameter is
    array: Array = np.frombuffer(raw, _TYPES[kind])
    return name, array.reshape(dims).copy()


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("it has a number in the place of a message.")  # noqa: TRY004  # one kind of error for every fault
    return value


def _varints(content: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(content):
        value, at = _varint(content, at)
        values.append(value)
    return values


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: a number as it is, what has a length as a view."""
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
                raise ValueError("it has a field of an unknown kind.")
        if size > len(content) - at:
            raise ValueError("it ends in the middle of a field.")
        yield key >> 3, content[at : at + size]
        at += size


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, lowest first, and where it ends."""
    value = shift = 0
    while shift < 64:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("it has a number that does not end.")
