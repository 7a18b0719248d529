"""Tensors in open files, and matrices whose rows are read when they are used.

A parameter is converted to fp32 when it is read, also a part of its rows alone. The memory that loading takes does not
grow with the file.

A parameter in int8 is two tensors: (N, K / b, b) in 8 bits, symmetric around the stored value 128, and (N, K / b)
scales, one for each block of b numbers of a row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.errors import ModelError

ZERO: Final = 128
BLOCK: Final = 128
SMALLEST_BLOCK: Final = 16  # the smallest that MatMulNBits of ONNX Runtime accepts
BLOCK_NUMBERS: Final = 1 << 18  # of a matrix to read at a time: 1 MB in fp32, which caches hold
INFINITE: Final = 0x7F80  # the exponent of bf16 that no finite number has
MAX_SIZE: Final = 1 << 31  # of a tensor, with dimensions of 0 counted as 1

Array = NDArray[Any]
Floats = NDArray[np.float32]

# The types of tensors, by the names of safetensors. numpy has no bf16.
TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "BOOL": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "U16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "U32": np.dtype("<u4"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I64": np.dtype("<i8"),
    "U64": np.dtype("<u8"),
}
FLOATS: Final = frozenset({"F16", "BF16", "F32", "F64"})


class WeightsError(ModelError):
    """Raised when the parameters of a file cannot be read. The message is one sentence."""


class Matrix(Protocol):
    """An array, or an object that reads like one: `matrix[start:stop]` has some rows, and `np.asarray(matrix)` all."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Array: ...
    def __array__(self) -> Array: ...


Weights = Mapping[str, Matrix]
HeadWeights = Mapping[str, Floats]
"""The parameters of a head behind the network, as `head.safetensors` holds them."""


@dataclass(frozen=True)
class Computed:
    """A matrix whose rows are computed each time they are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[slice], Array]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        return self.rows(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self.rows(slice(None)).astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True)
class Tensor:
    """An array in an open file. `tensor[start:stop]` and `np.asarray(tensor)` read it, numbers with a point in fp32."""

    descriptor: int
    at: int  # the offset of its first byte
    kind: str  # a key of TYPES
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return TYPES["F32" if self.kind in FLOATS else self.kind]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(len(self))
        return self._read(start, (max(stop - start, 0), *self.shape[1:]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self._read(0, self.shape).astype(self.dtype if dtype is None else dtype, copy=False)

    def _read(self, row: int, shape: tuple[int, ...]) -> Array:
        """Raises WeightsError if a number is not finite in fp32, or the file has become shorter."""
        stored: Array = np.empty(shape, TYPES[self.kind])
        row_bytes = math.prod(self.shape[1:]) * stored.itemsize
        into, at = stored.reshape(-1).view(np.uint8).data, self.at + row * row_bytes
        done = 0
        while done < stored.nbytes:  # a call reads 2 GiB at most
            if not (count := os.preadv(self.descriptor, [into[done:]], at + done)):
                raise WeightsError("the file of the parameters was changed while it was read.")
            done += count
        if self.kind not in FLOATS:
            return stored
        if self.kind == "BF16":
            wide = stored.reshape(-1).astype(np.uint32) << 16  # without dimensions, the result would be no array
            return finite(wide.view(np.float32).reshape(shape))
        with np.errstate(over="ignore"):
            return finite(stored.astype(np.float32, copy=False))


def strided(tensor: Tensor, strides: Sequence[int]) -> Matrix:
    """Returns a tensor in the order of its file, or one whose neighbours lie `strides` numbers apart in the file.

    Numbers between those of the tensor must be finite, too.
    """
    shape = tensor.shape
    plain = (math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if not math.prod(shape) or all(n == 1 or a == b for n, a, b in zip(shape, strides, plain, strict=True)):
        return tensor

    def rows(wanted: slice) -> Array:
        start, stop, _ = wanted.indices(shape[0])
        part = (max(stop - start, 0), *shape[1:])
        span = 1 + sum((n - 1) * stride for n, stride in zip(part, strides, strict=True)) if part[0] else 0
        first = tensor.at + start * strides[0] * TYPES[tensor.kind].itemsize
        array = np.asarray(replace(tensor, at=first, shape=(span,)))
        return np.lib.stride_tricks.as_strided(array, part, [stride * array.itemsize for stride in strides]).copy()

    return Computed(shape, tensor.dtype, rows)


def finite(array: Array) -> Array:
    """Returns an array. Raises WeightsError if a number is not finite."""
    if not all(map(math.isfinite, (array.max(initial=0), array.min(initial=0)))):
        raise WeightsError("a parameter is not finite.")
    return array


@dataclass(frozen=True)
class PackedTensor:
    """A parameter in int8, which is converted to fp32 when it is read, as a `Tensor` is."""

    packed: Tensor  # (N, K / b, b)
    scales: Tensor  # (N, K / b)
    dtype: np.dtype[Any] = TYPES["F32"]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.packed), math.prod(self.packed.shape[1:])

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice) -> Array:
        return unpack(self.packed[rows], self.scales[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True)
class Adapted:
    """A matrix (N, K) and what an adapter adds to it: W + B A. The sum is computed each time rows are read."""

    base: Matrix  # W
    b: Matrix  # (N, R)
    a: Matrix  # (R, K)
    dtype: np.dtype[Any] = TYPES["F32"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, rows: slice) -> Array:
        total: Array = self.base[rows] + self.b[rows] @ np.asarray(self.a)
        return total

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self[:].astype(self.dtype if dtype is None else dtype, copy=False)

    def merged(self) -> Computed:
        """Returns the sum as a matrix that does not tell its parts."""
        return Computed(self.shape, self.dtype, self.__getitem__)


def blocks(matrix: Matrix) -> Iterator[slice]:
    """Yields spans of a matrix's rows: few enough rows in each to take little memory."""
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(matrix.shape[1:])))
    yield from (slice(start, min(start + step, len(matrix))) for start in range(0, len(matrix), step))


def in_parts(matrix: Matrix, count: int) -> Iterator[Matrix]:
    """Yields equal parts of a matrix's rows, which are read when they are used."""
    size = len(matrix) // count

    def part(first: int) -> Matrix:
        if isinstance(matrix, Adapted):
            own = slice(first, first + size)
            return Adapted(_rows(matrix.base, first, size), matrix.b[own], matrix.a)
        return _rows(matrix, first, size)

    yield from (part(i * size) for i in range(count))


def _rows(matrix: Matrix, first: int, size: int) -> Matrix:
    """Returns some rows of a matrix, which are read when they are used."""

    def rows(wanted: slice) -> Array:
        start, stop, _ = wanted.indices(size)
        return matrix[first + start : first + stop]

    return Computed((size, *matrix.shape[1:]), matrix.dtype, rows)


def is_finite(matrix: Matrix) -> bool:
    """Returns whether all numbers of a matrix are finite in fp32. Reads all of it."""
    try:
        return all(np.isfinite(matrix[rows]).all() for rows in blocks(matrix))
    except WeightsError:  # the matrix found it out
        return False


def are_equal(a: Matrix, b: Matrix) -> bool:
    """Returns whether two matrices have the same shape and numbers."""
    return a.shape == b.shape and all(np.array_equal(a[rows], b[rows]) for rows in blocks(a))


def block_of(columns: int) -> int | None:
    """Returns the largest power of two up to BLOCK that divides a row, or None if it is too small."""
    block = BLOCK
    while columns % block:
        block //= 2
    return block if block >= SMALLEST_BLOCK else None


def pack(weight: Array, block: int) -> tuple[NDArray[np.uint8], Floats]:
    """Returns a matrix (N, K) in 8 bits around ZERO, (N, K / b, b), and its scales (N, K / b)."""
    blocks = weight.reshape(len(weight), -1, block)
    scales = np.abs(blocks).max(axis=2) / 127
    scales[scales < np.finfo(np.float32).tiny] = 1  # float32 cannot hold a step: the block becomes zeros
    values = np.rint(blocks / scales[:, :, None]) + ZERO
    return values.astype(np.uint8), scales.astype(np.float32)


def unpack(packed: Array, scales: Array) -> Floats:
    """Converts (N, K / b, b) and the scales (N, K / b) back to (N, K)."""
    values = np.subtract(packed, np.float32(ZERO), dtype=np.float32)
    values *= scales[:, :, None]
    return values.reshape(len(packed), math.prod(packed.shape[1:]))


def round_to_bf16(array: Array) -> NDArray[np.uint16]:
    """Returns the bits of an array of floats in bf16: rounded to nearest, ties to even.

    Raises:
        ValueError: a number is not finite, or too large for bf16.
    """
    with np.errstate(over="ignore"):
        floats = np.ascontiguousarray(array, np.float32)
    bits = floats.view(np.uint32)
    wide = bits >> 16  # one array for all steps: a new one for each takes as long as the step
    wide &= 1
    wide += 0x7FFF
    wide += bits
    wide >>= 16
    rounded = wide.astype(np.uint16)
    wide &= INFINITE
    if not np.isfinite(floats).all() or wide.max(initial=0) == INFINITE:
        raise ValueError("a parameter is not finite.")
    return rounded


def widen(bits: NDArray[np.uint16]) -> Floats:
    """Returns numbers in bf16, given as bits, in fp32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
