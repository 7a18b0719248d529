"""Reads the parameters in an artifact's `model.onnx` without a runtime and without the `onnx` package.

A parameter is read and converted to fp32 when it is used, also a part of its rows alone. The memory that loading
takes does not grow with the file.

An ONNX file is a protobuf message. Only the initializers of the graph are read. The numbers of the fields are those of
onnx/onnx.proto.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.errors import ModelError
from swiftlet_models.graphs.protobuf import message, read_fields, read_varints

INT8: Final = ".int8"
SCALE: Final = ".scale"
ZERO: Final = 128
BLOCK: Final = 128
SMALLEST_BLOCK: Final = 16  # the smallest that MatMulNBits accepts
MAX_DIMENSIONS: Final = 4
MAX_SIZE: Final = 1 << 31  # of a tensor, with dimensions of 0 counted as 1. A file has 2 GiB at most

Array = NDArray[Any]

# The numbers of fields, and of the data types that `export` and `quantize` write.
_GRAPH, _INITIALIZER = 7, 5
_DIMS, _DATA_TYPE, _NAME, _RAW = 1, 2, 8, 9
_TYPES: Final[Mapping[int, np.dtype[Any]]] = {
    1: np.dtype("<f4"),
    2: np.dtype("u1"),
    7: np.dtype("<i8"),
    16: np.dtype("<u2"),  # bf16, which numpy lacks
}


class WeightsError(ModelError):
    """Raised when the parameters of a file cannot be read. The message is one sentence."""


@dataclass(frozen=True)
class Tensor:
    """An array in an open file. `tensor[start:stop]` and `np.asarray(tensor)` read it."""

    descriptor: int
    at: int  # the offset of its first byte
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return self._read(start, (max(stop - start, 0), *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self._read(0, self.shape).astype(self.dtype if dtype is None else dtype, copy=False)

    def _read(self, row: int, shape: tuple[int, ...]) -> Array:
        """Raises WeightsError if a number is not finite, or the file has become shorter."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        array: Array = np.empty(shape, self.dtype)
        into = array.reshape(-1).view(np.uint8).data
        if os.preadv(self.descriptor, [into], self.at + row * row_bytes) < array.nbytes:
            raise WeightsError("the file of the parameters was changed while it was read.")
        _check_finite(array)
        return array


def _check_finite(array: Array) -> None:
    """Raises WeightsError if a number is not finite."""
    if array.dtype.kind == "f" and not all(map(math.isfinite, (array.max(initial=0), array.min(initial=0)))):
        raise WeightsError("a parameter is not finite.")


@dataclass(frozen=True)
class Bf16Tensor:
    """A parameter in bf16, which is converted to fp32 when it is read, as a `Tensor` is."""

    bits: Tensor
    dtype: np.dtype[Any] = _TYPES[1]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, rows: slice) -> Array:
        floats = widen(self.bits[rows])
        _check_finite(floats)
        return floats

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True)
class PackedTensor:
    """A parameter in int8, which is converted to fp32 when it is read, as a `Tensor` is."""

    packed: Tensor  # (N, K / b, b)
    scales: Tensor  # (N, K / b)
    dtype: np.dtype[Any] = _TYPES[1]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.packed), math.prod(self.packed.shape[1:])

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> Array:
        return unpack(self.packed[rows], self.scales[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


Parameter = Tensor | PackedTensor | Bf16Tensor


@contextmanager
def open_weights(path: Path) -> Iterator[Mapping[str, Parameter]]:
    """Opens a file for the duration of a block, and gives its parameters by name.

    Raises:
        WeightsError: the file is not an ONNX graph that `export` or `quantize` wrote.
    """
    with path.open("rb", buffering=0) as file:
        try:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            weights = _merge(dict(_initializers(content, file.fileno())))
        except (ValueError, IndexError, KeyError) as error:
            raise WeightsError(f"{path.name} has no readable parameters: {error}") from None
        content.close()
        if not weights:
            raise WeightsError(f"{path.name} has no readable parameters: it is empty.")
        yield weights


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters by name in fp32. Parameters in int8 are converted back.

    Raises:
        WeightsError: as `open_weights`.
    """
    with open_weights(path) as weights:
        return {name: np.asarray(weight) for name, weight in weights.items()}


def _merge(tensors: Mapping[str, Tensor]) -> dict[str, Parameter]:
    """Returns the parameters among a graph's initializers, as `merge`, without reading them.

    Raises:
        ValueError, KeyError: one of a parameter's two tensors is missing, or their shapes do not match.
    """
    weights: dict[str, Parameter] = {}
    for name, tensor in tensors.items():
        if name.endswith(INT8):
            scales = tensors[name.removesuffix(INT8) + SCALE]
            if len(tensor.shape) != 3 or scales.shape != tensor.shape[:2] or scales.dtype != _TYPES[1]:
                raise ValueError("the scales of a parameter do not match it.")
            weights[name.removesuffix(INT8)] = PackedTensor(tensor, scales)
        elif tensor.dtype == _TYPES[16]:
            weights[name] = Bf16Tensor(tensor)
        elif tensor.dtype == _TYPES[1] and not name.endswith(SCALE) and not name.startswith("int8."):
            weights[name] = tensor
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
        if array.dtype.name == "bfloat16":  # of the package ml_dtypes
            array = array.astype(np.float32)
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
    return values.reshape(len(packed), math.prod(packed.shape[1:]))


def round_to_bf16(array: NDArray[Any]) -> NDArray[np.uint16]:
    """Returns the bits of an array of floats in bf16: rounded to nearest, ties to even.

    Raises:
        ValueError: a number is not finite, or too large for bf16.
    """
    with np.errstate(over="ignore"):
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    if not np.isfinite(bits.view(np.float32)).all() or not np.isfinite(widen(rounded)).all():
        raise ValueError("a parameter is not finite.")
    return rounded


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns numbers in bf16, given as bits, in fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _initializers(content: mmap.mmap, descriptor: int) -> Iterator[tuple[str, Tensor]]:
    """Yields the name and the place of each initializer. Raises ValueError and IndexError."""
    for field, graph in read_fields(content, range(len(content))):
        if field != _GRAPH:
            continue
        for inner, tensor in read_fields(content, message(graph)):
            if inner == _INITIALIZER:
                yield _tensor(content, message(tensor), descriptor)


def _tensor(content: mmap.mmap, span: range, descriptor: int) -> tuple[str, Tensor]:
    dims: list[int] = []
    name, kind, raw = "", 0, range(0)
    for field, value in read_fields(content, span):
        if field == _DIMS:  # one number per field, or all in one message
            dims += [value] if isinstance(value, int) else islice(read_varints(content, value), MAX_DIMENSIONS + 1)
            if len(dims) > MAX_DIMENSIONS:
                raise ValueError("a tensor has too many dimensions.")
        elif field == _DATA_TYPE and isinstance(value, int):
            kind = value
        elif field == _NAME:
            name = content[message(value).start : message(value).stop].decode()
        elif field == _RAW:
            raw = message(value)
    if kind not in _TYPES:
        return name, Tensor(descriptor, 0, np.dtype(np.bool_), (0,))  # no parameter has this type
    dtype = _TYPES[kind]
    if math.prod(dims) * dtype.itemsize != len(raw) or math.prod(max(size, 1) for size in dims) > MAX_SIZE:
        raise ValueError("a tensor has another size than its shape says.")
    return name, Tensor(descriptor, raw.start, dtype, tuple(dims))
