"""The parameters in a file of an artifact: safetensors, or an ONNX graph in artifacts of older versions.

A safetensors file is the length of its header, the header, and the bytes of all tensors one after another. The header
is a JSON object with the type, the shape and the span of each tensor (https://github.com/huggingface/safetensors). The
package `safetensors` reads no bf16 into numpy, and reads a whole tensor at a time.

A parameter in int8 is two tensors: NAME.int8 and NAME.scale (`swiftlet_models/tensors.py`). A parameter that an adapter
changes is that of its base, and NAME.lora_a and NAME.lora_b in fp32, whose product is added to it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from swiftlet_models.artifact import HEAD, Artifact, Precision
from swiftlet_models.graphs.reader import initializers
from swiftlet_models.tensors import (
    FLOATS,
    MAX_SIZE,
    TYPES,
    Adapted,
    Array,
    Floats,
    Matrix,
    PackedTensor,
    Tensor,
    Weights,
    WeightsError,
    block_of,
    blocks,
    finite,
    pack,
    round_to_bf16,
)

INT8: Final = ".int8"
SCALE: Final = ".scale"
LORA_A: Final = ".lora_a"
LORA_B: Final = ".lora_b"
MIN_ROWS: Final = 16  # smaller matrices and tables stay in fp32
MAX_DIMENSIONS: Final = 8
MAX_HEADER: Final = 16 << 20  # bytes; the header of a network with a thousand tensors has 100 kB


Stored = Tensor | PackedTensor | Adapted


@contextmanager
def open_weights(path: Path) -> Iterator[Mapping[str, Stored]]:
    """Opens a file for the duration of a block, and gives its parameters by name.

    Raises:
        WeightsError: the file is not one that Swiftlet wrote.
    """
    with path.open("rb", buffering=0) as file:
        try:
            weights = parameters(initializers(file) if path.suffix == ".onnx" else read_header(file))
        except (ValueError, IndexError, KeyError) as error:
            raise WeightsError(f"{path.name} has no readable parameters: {error}") from None
        if not weights:
            raise WeightsError(f"{path.name} has no readable parameters: it is empty.")
        yield weights


def read_weights(path: Path) -> dict[str, Floats]:
    """Returns the parameters by name in fp32. Parameters in int8 are converted back.

    Raises:
        WeightsError: as `open_weights`.
    """
    with open_weights(path) as weights:
        return {name: np.asarray(weight) for name, weight in weights.items()}


def read_head(artifact: Artifact) -> dict[str, Floats] | None:
    """Returns the parameters of an artifact's head behind the network; None if it has none.

    Raises:
        WeightsError: as `open_weights`.
    """
    return read_weights(artifact.file(HEAD)) if HEAD in artifact.manifest.files else None


def read_header(file: IO[bytes]) -> dict[str, Tensor]:
    """Returns the tensors of an open safetensors file, by name.

    Raises:
        ValueError: the file is not a whole safetensors file. The message is a sentence.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER):
        raise ValueError("its header is longer than the file.")
    try:
        header = json.loads(file.read(length))
    except RecursionError:
        raise ValueError("its header is not a JSON object.") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object.")  # noqa: TRY004  # one class for all errors
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _tensor(file.fileno(), start, entry) for name, entry in header.items()}
    at = start
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.at, math.prod(tensor.shape))):
        if tensor.at != at:
            raise ValueError("its tensors overlap, or leave bytes between them.")
        at += math.prod(tensor.shape) * TYPES[tensor.kind].itemsize
    if at != size:
        raise ValueError("it has another size than its header says, as if its download broke off.")
    return tensors


def _tensor(descriptor: int, start: int, entry: object) -> Tensor:
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(first), int(last)]}:
            pass
        case _:
            raise ValueError("its header has an invalid entry.")
    if kind not in TYPES:
        raise ValueError("it holds numbers of a type that is not supported, such as 8-bit floats.")
    if len(shape) > MAX_DIMENSIONS or not all(type(n) is int and 0 <= n <= MAX_SIZE for n in shape):
        raise ValueError("a tensor has an invalid shape.")
    if math.prod(max(n, 1) for n in shape) > MAX_SIZE:
        raise ValueError("a tensor is too large.")
    if first < 0 or last - first != math.prod(shape) * TYPES[kind].itemsize:
        raise ValueError("a tensor has another size than its shape says.")
    return Tensor(descriptor, start + first, kind, tuple(shape))


def parameters(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    """Returns the parameters that the tensors of an artifact make up, without reading them.

    Raises:
        ValueError, KeyError: one of a parameter's tensors is missing, or their shapes do not match.
    """
    weights: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        if name.endswith(INT8):
            scales = tensors[name.removesuffix(INT8) + SCALE]
            if len(tensor.shape) != 3 or scales.shape != tensor.shape[:2] or scales.kind != "F32":
                raise ValueError("the scales of a parameter do not match it.")
            weights[name.removesuffix(INT8)] = PackedTensor(tensor, scales)
        elif tensor.kind in FLOATS and not name.endswith((SCALE, LORA_A, LORA_B)) and not name.startswith("int8."):
            weights[name] = tensor
    for name in {name.removesuffix(end) for name in tensors for end in (LORA_A, LORA_B) if name.endswith(end)}:
        base, a, b = weights[name], tensors[name + LORA_A], tensors[name + LORA_B]
        if (
            a.kind != "F32"
            or b.kind != "F32"
            or len(a.shape) != 2
            or b.shape[1:] != a.shape[:1]
            or not len(a)
            or base.shape != (len(b), a.shape[1])
        ):
            raise ValueError("the matrices of an adapter do not match their parameter.")
        weights[name] = Adapted(base, b, a)
    return weights


def save_weights(file: Path, weights: Weights, precision: Precision) -> None:
    """Writes parameters as safetensors. Matrices and tables of 16 rows or more are in the precision, the rest in fp32.

    Raises:
        WeightsError: as reading a parameter.
    """
    tensors: dict[str, Callable[[], Iterator[Array]]] = {}
    header: dict[str, Any] = {}
    at = 0

    def add(name: str, kind: str, shape: tuple[int, ...], parts: Callable[[], Iterator[Array]]) -> None:
        nonlocal at
        end = at + math.prod(shape) * TYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, end]}
        tensors[name], at = parts, end

    for name, matrix in sorted(_tensors(weights)):
        is_large = len(matrix.shape) == 2 and len(matrix) >= MIN_ROWS
        is_rounded = precision != "fp32" and is_large and not name.endswith((LORA_A, LORA_B))
        if is_rounded and precision == "bf16":
            add(name, "BF16", matrix.shape, partial(_bf16_blocks, matrix))
            continue
        block = block_of(matrix.shape[1]) if is_rounded else None
        if block is None:
            add(name, "F32", matrix.shape, partial(_blocks, matrix))
            continue
        rows, columns = matrix.shape
        scales: list[Floats] = []  # which follow, when the matrix was read
        add(name + INT8, "U8", (rows, columns // block, block), partial(_pack_blocks, matrix, block, scales))
        add(name + SCALE, "F32", (rows, columns // block), partial(iter, scales))
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % 8)
    with file.open("wb") as stream:
        stream.write(len(content).to_bytes(8, "little") + content)
        for parts in tensors.values():
            for part in parts():
                stream.write(np.ascontiguousarray(part).data)


def _tensors(weights: Weights) -> Iterator[tuple[str, Matrix]]:
    """Yields parameters, and the parts of those that an adapter changes."""
    for name, matrix in weights.items():
        if isinstance(matrix, Adapted):
            yield from ((name, matrix.base), (name + LORA_A, matrix.a), (name + LORA_B, matrix.b))
        else:
            yield name, matrix


def _blocks(matrix: Matrix) -> Iterator[Floats]:
    """Yields the rows of a matrix, some at a time. Raises WeightsError if a number is not finite."""
    for rows in blocks(matrix):
        yield finite(np.asarray(matrix[rows], np.float32))


def _bf16_blocks(matrix: Matrix) -> Iterator[Array]:
    """Yields the rows of a matrix in bf16. Raises WeightsError if bf16 cannot hold a number."""
    for part in _blocks(matrix):
        try:
            yield round_to_bf16(part)
        except ValueError as error:
            raise WeightsError(str(error)) from None


def _pack_blocks(matrix: Matrix, block: int, scales: list[Floats]) -> Iterator[Array]:
    """Yields the rows of a matrix in int8, and adds their scales to a list."""
    for part in _blocks(matrix):
        packed, own = pack(part, block)
        scales.append(own)
        yield packed
