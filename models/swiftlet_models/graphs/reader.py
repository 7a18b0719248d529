"""Finds the parameters in an ONNX file, without a runtime and without the `onnx` package.

An ONNX file is a protobuf message. Only the initializers and the nodes of the graph are read. The numbers of the fields
are those of onnx/onnx.proto.
"""

from __future__ import annotations

import math
import mmap
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Final

from swiftlet_models.graphs.protobuf import message, read_fields, read_varints
from swiftlet_models.tensors import MAX_SIZE, TYPES, Tensor

MAX_DIMENSIONS: Final = 4

_GRAPH, _NODE, _INITIALIZER = 7, 1, 5  # the numbers of fields
_INPUT, _OUTPUT, _NODE_NAME, _OPERATION, _DOMAIN = 1, 2, 3, 4, 7  # of a node
_DIMS, _DATA_TYPE, _FLOATS, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 4, 8, 9, 13, 14  # of a tensor
_KEY, _VALUE = 1, 2  # of a pair of texts
_KINDS: Final = {
    1: "F32",
    2: "U8",
    3: "I8",
    6: "I32",
    7: "I64",
    9: "BOOL",
    10: "F16",
    11: "F64",
    16: "BF16",
}  # the data types of tensors


@dataclass(frozen=True)
class Node:
    """An operation of a graph."""

    operation: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A graph: its tensors by name, and its operations in order."""

    initializers: dict[str, Tensor] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)


# Opens the file of this name beside the graph. Raises ValueError if the graph must not read it.
Opener = Callable[[str], IO[bytes]]


def initializers(file: IO[bytes]) -> dict[str, Tensor]:
    """Returns the arrays in an open file, by name.

    Raises:
        ValueError, IndexError: the file is not an ONNX graph. The message is a sentence.
    """
    return read_graph(file).initializers


def read_graph(file: IO[bytes], opener: Opener | None = None) -> Graph:
    """Returns the graph in an open file. With `opener`, tensors may lie in other files.

    Raises:
        ValueError, IndexError: the file is not an ONNX graph. The message is a sentence.
        OSError: a file cannot be read.
    """
    graph = Graph()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for field_number, span in read_fields(content, range(len(content))):
            if field_number != _GRAPH:
                continue
            for number, value in read_fields(content, message(span)):
                if number == _INITIALIZER:
                    name, tensor = _tensor(content, message(value), file, opener)
                    graph.initializers[name] = tensor
                elif number == _NODE and opener:
                    graph.nodes.append(_node(content, message(value)))
    return graph


def _node(content: mmap.mmap, span: range) -> Node:
    texts: dict[int, list[str]] = {key: [] for key in (_INPUT, _OUTPUT, _NODE_NAME, _OPERATION, _DOMAIN)}
    for number, value in read_fields(content, span):
        if number in texts:
            texts[number].append(_text(content, value))
    name, operation, domain = ("".join(texts[key][-1:]) for key in (_NODE_NAME, _OPERATION, _DOMAIN))
    return Node(operation, domain, name, tuple(texts[_INPUT]), tuple(texts[_OUTPUT]))


def _text(content: mmap.mmap, value: int | range) -> str:
    return content[message(value).start : message(value).stop].decode()


def _tensor(content: mmap.mmap, span: range, file: IO[bytes], opener: Opener | None) -> tuple[str, Tensor]:
    dims: list[int] = []
    pairs: dict[str, str] = {}
    name, kind, raw, is_external = "", 0, range(0), False
    for number, value in read_fields(content, span):
        if number == _DIMS:  # one number per field, or all in one message
            dims += [value] if isinstance(value, int) else islice(read_varints(content, value), MAX_DIMENSIONS + 1)
            if len(dims) > MAX_DIMENSIONS:
                raise ValueError("a tensor has too many dimensions.")
        elif number == _DATA_TYPE and isinstance(value, int):
            kind = value
        elif number == _NAME:
            name = _text(content, value)
        elif number == _RAW or (number == _FLOATS and kind == 1):
            raw = message(value)
        elif number == _LOCATION:
            is_external = value == 1
        elif number == _EXTERNAL:
            pair = dict(read_fields(content, message(value)))
            pairs[_text(content, pair.get(_KEY, 0))] = _text(content, pair.get(_VALUE, 0))
    if kind not in _KINDS:
        return name, Tensor(file.fileno(), 0, "BOOL", (0,))  # no parameter has this type
    size = math.prod(dims) * TYPES[_KINDS[kind]].itemsize
    if is_external and opener and "location" in pairs:
        file = opener(pairs["location"])
        start = _whole(pairs.get("offset", "0"))
        raw = range(start, min(start + _whole(pairs.get("length", str(size))), os.fstat(file.fileno()).st_size))
    if size != len(raw) or math.prod(max(size, 1) for size in dims) > MAX_SIZE:
        raise ValueError("a tensor has another size than its shape says.")
    return name, Tensor(file.fileno(), raw.start, _KINDS[kind], tuple(dims))


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ValueError("a tensor has an invalid place.")
    return int(text)
