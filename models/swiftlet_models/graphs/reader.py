"""Finds the parameters in an ONNX file, without a runtime and without the `onnx` package.

An ONNX file is a protobuf message. Only the initializers of the graph are read. The numbers of the fields are those of
onnx/onnx.proto.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from itertools import islice
from typing import IO, Final

from swiftlet_models.graphs.protobuf import message, read_fields, read_varints
from swiftlet_models.tensors import MAX_SIZE, TYPES, Tensor

MAX_DIMENSIONS: Final = 4

_GRAPH, _INITIALIZER = 7, 5  # the numbers of fields
_DIMS, _DATA_TYPE, _NAME, _RAW = 1, 2, 8, 9
_KINDS: Final = {1: "F32", 2: "U8", 7: "I64"}  # the data types of parameters that Swiftlet stored


def initializers(file: IO[bytes]) -> dict[str, Tensor]:
    """Returns the arrays in an open file, by name.

    Raises:
        ValueError, IndexError: the file is not an ONNX graph. The message is a sentence.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return dict(_initializers(content, file.fileno()))


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
    if kind not in _KINDS:
        return name, Tensor(descriptor, 0, "BOOL", (0,))  # no parameter has this type
    if (
        math.prod(dims) * TYPES[_KINDS[kind]].itemsize != len(raw)
        or math.prod(max(size, 1) for size in dims) > MAX_SIZE
    ):
        raise ValueError("a tensor has another size than its shape says.")
    return name, Tensor(descriptor, raw.start, _KINDS[kind], tuple(dims))
