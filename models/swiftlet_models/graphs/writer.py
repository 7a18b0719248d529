"""Writes an ONNX graph node by node, without the `onnx` package, which the server does not need.

An ONNX file is a protobuf message. `graphs/reader.py` reads such files.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray

from swiftlet_models.graphs.protobuf import field, key, number_field, varint

OPSET: Final = 21
IR_VERSION: Final = 10
CONTRIB: Final = "com.microsoft"  # the operators of ONNX Runtime
CONTRIB_OPSET: Final = 1

_TYPES: Final = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "bool": 9}
_FLOAT, _INT, _STRING, _GRAPH, _INTS = 1, 2, 3, 5, 7  # types of attributes

Attribute: TypeAlias = "float | int | str | Graph | tuple[int, ...]"


class Graph:
    """Nodes, the arrays that they read, the inputs and the outputs."""

    def __init__(self, outer: Graph | None = None) -> None:
        """Creates a graph. A graph within a node of `outer` reads the values of `outer` and stores its arrays there."""
        self._outer = outer
        self._nodes: list[bytes] = []
        self._arrays: dict[str, bytes] = {}
        self._values: dict[Any, str] = {}  # of nodes
        self._inputs: dict[str, bytes] = {}
        self._outputs: list[bytes] = []
        self._names = 0

    def input(self, name: str, kind: str, rank: int) -> str:
        """Declares an input with any size in every dimension, unless the name exists. Returns its name."""
        self._inputs[name] = _value(name, kind, rank)
        return name

    def output(self, name: str, kind: str, rank: int, value: str) -> None:
        """Declares a value as an output with another name."""
        self._node("Identity", [value], name, "", {})
        self._outputs.append(_value(name, kind, rank))

    def array(self, name: str, array: NDArray[Any]) -> str:
        """Adds an array that nodes can read, unless the name exists. Returns the name."""
        if self._outer is not None:
            return self._outer.array(name, array)
        if name not in self._arrays:
            self._arrays[name] = _tensor(name, array)
        return name

    def add(
        self, operator: str, inputs: Sequence[str], *, domain: str = "", called: str = "", **attributes: Attribute
    ) -> str:
        """Adds a node with one output, unless the graph has the same node, and returns the output's name.

        An empty name leaves out an optional input.
        """
        node = operator, domain, *inputs, *attributes.items()
        if node not in self._values:
            self._values[node] = called or f"{operator}.{self._next()}"
            self._node(operator, inputs, self._values[node], domain, attributes)
        return self._values[node]

    def content(self) -> bytes:
        """Returns the graph as a protobuf message."""
        return b"".join(self._parts())

    def file(self) -> bytes:
        """Returns the content of an ONNX file with this graph."""
        opsets = (field(1, domain.encode()) + number_field(2, version) for domain, version in _OPSETS)
        parts = list(self._parts())  # joined once, because the arrays are large
        head = number_field(1, IR_VERSION) + key(7, 2) + varint(sum(map(len, parts)))
        return b"".join((head, *parts, *(field(8, opset) for opset in opsets)))

    def _parts(self) -> Iterator[bytes]:
        """Yields the parts of the message."""
        yield from (field(1, node) for node in self._nodes)
        yield field(2, b"swiftlet")
        for array in self._arrays.values():
            yield key(5, 2) + varint(len(array))
            yield array
        yield from (field(11, value) for value in self._inputs.values())
        yield from (field(12, value) for value in self._outputs)

    def _next(self) -> int:
        """Returns a new node number."""
        if self._outer is not None:
            return self._outer._next()
        self._names += 1
        return self._names

    def _node(
        self, operator: str, inputs: Sequence[str], output: str, domain: str, attributes: Mapping[str, Attribute]
    ) -> None:
        parts = [*(field(1, name.encode()) for name in inputs), field(2, output.encode())]
        parts += [field(4, operator.encode()), field(7, domain.encode())]
        parts += [field(5, _attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))


_OPSETS: Final = (("", OPSET), (CONTRIB, CONTRIB_OPSET))


def _attribute(name: str, value: Attribute) -> bytes:
    named = field(1, name.encode())
    match value:
        case float():
            return named + key(2, 5) + struct.pack("<f", value) + number_field(20, _FLOAT)
        case int():
            return named + number_field(3, value) + number_field(20, _INT)
        case str():
            return named + field(4, value.encode()) + number_field(20, _STRING)
        case tuple():
            return named + b"".join(number_field(8, number) for number in value) + number_field(20, _INTS)
        case Graph():
            return named + field(6, value.content()) + number_field(20, _GRAPH)


def _value(name: str, kind: str, rank: int) -> bytes:
    shape = b"".join(field(1, field(2, f"{name}.{i}".encode())) for i in range(rank))
    tensor = number_field(1, _TYPES[kind]) + field(2, shape)
    return field(1, name.encode()) + field(2, field(1, tensor))


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    dims = b"".join(number_field(1, size) for size in array.shape)
    return dims + number_field(2, _TYPES[array.dtype.name]) + field(8, name.encode()) + field(9, array.tobytes())
