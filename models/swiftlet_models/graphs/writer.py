"""Writes an ONNX graph node by node, without the `onnx` package, which the server does not need.

An ONNX file is a protobuf message. `graphs/reader.py` reads such files and cites the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from numpy.typing import NDArray

OPSET: Final = 20
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
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []
        self._names = 0

    def input(self, name: str, kind: str, rank: int) -> str:
        """Declares an input with any size in every dimension. Returns its name."""
        self._inputs.append(_value(name, kind, rank))
        return name

    def output(self, name: str, kind: str, rank: int, given: str) -> None:
        """Declares the value `given` as an output with another name."""
        self._node("Identity", [given], name, "", {})
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
        """Adds a node with one output and returns its name. An empty name leaves out an optional input."""
        name = called or f"{operator}.{self._next()}"
        self._node(operator, inputs, name, domain, attributes)
        return name

    def content(self) -> bytes:
        """Returns the graph as a protobuf message."""
        return b"".join(self._parts())

    def file(self) -> bytes:
        """Returns the content of an ONNX file with this graph."""
        opsets = (_field(1, domain.encode()) + _number(2, version) for domain, version in _OPSETS)
        parts = list(self._parts())  # joined once, because the arrays are large
        head = _number(1, IR_VERSION) + _key(7, 2) + _varint(sum(map(len, parts)))
        return b"".join((head, *parts, *(_field(8, opset) for opset in opsets)))

    def _parts(self) -> Iterator[bytes]:
        """Yields the parts of the message."""
        yield from (_field(1, node) for node in self._nodes)
        yield _field(2, b"swiftlet")
        for array in self._arrays.values():
            yield _key(5, 2) + _varint(len(array))
            yield array
        yield from (_field(11, value) for value in self._inputs)
        yield from (_field(12, value) for value in self._outputs)

    def _next(self) -> int:
        """Returns a new node number."""
        if self._outer is not None:
            return self._outer._next()
        self._names += 1
        return self._names

    def _node(
        self, operator: str, inputs: Sequence[str], output: str, domain: str, attributes: Mapping[str, Attribute]
    ) -> None:
        parts = [*(_field(1, name.encode()) for name in inputs), _field(2, output.encode())]
        parts += [_field(4, operator.encode()), _field(7, domain.encode())]
        parts += [_field(5, _attribute(name, value)) for name, value in attributes.items()]
        self._nodes.append(b"".join(parts))


_OPSETS: Final = (("", OPSET), (CONTRIB, CONTRIB_OPSET))


def _attribute(name: str, value: Attribute) -> bytes:
    named = _field(1, name.encode())
    match value:
        case float():
            return named + _key(2, 5) + struct.pack("<f", value) + _number(20, _FLOAT)
        case int():
            return named + _number(3, value) + _number(20, _INT)
        case str():
            return named + _field(4, value.encode()) + _number(20, _STRING)
        case tuple():
            return named + b"".join(_number(8, one) for one in value) + _number(20, _INTS)
        case Graph():
            return named + _field(6, value.content()) + _number(20, _GRAPH)


def _value(name: str, kind: str, rank: int) -> bytes:
    shape = b"".join(_field(1, _field(2, f"{name}.{i}".encode())) for i in range(rank))
    tensor = _number(1, _TYPES[kind]) + _field(2, shape)
    return _field(1, name.encode()) + _field(2, _field(1, tensor))


def _tensor(name: str, array: NDArray[Any]) -> bytes:
    dims = b"".join(_number(1, size) for size in array.shape)
    return dims + _number(2, _TYPES[array.dtype.name]) + _field(8, name.encode()) + _field(9, array.tobytes())


def _field(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    """Encodes a number with 7 bits per byte, lowest first. A negative number is its 64-bit two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
