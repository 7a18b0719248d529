"""The wire format of protobuf, which ONNX and TensorFlow use: https://protobuf.dev/programming-guides/encoding."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final

MAX_FIELDS: Final = 1 << 18  # of a message. The graph of a GPT-2 xl has 2,000 nodes and tensors


def message(value: int | range) -> range:
    """Returns the span of a message. Raises ValueError if the value is a number."""
    if isinstance(value, int):
        raise ValueError("a message is expected instead of a number.")  # noqa: TRY004  # one class for all errors
    return value


def read_varints(content: mmap.mmap | bytes, span: range) -> Iterator[int]:
    """Yields the numbers of a span. Raises ValueError."""
    at = span.start
    while at < span.stop:
        value, at = read_varint(content, at, span.stop)
        yield value


def read_fields(content: mmap.mmap | bytes, span: range) -> Iterator[tuple[int, int | range]]:
    """Yields the number and the value of each field of a message. A value with a length is the span of its bytes.

    Raises:
        ValueError: the message is damaged.
    """
    at, count = span.start, 0
    while at < span.stop:
        if (count := count + 1) > MAX_FIELDS:
            raise ValueError("a message has too many fields.")
        key, at = read_varint(content, at, span.stop)
        match key & 7:
            case 0:
                value, at = read_varint(content, at, span.stop)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, at = read_varint(content, at, span.stop)
            case 5:
                size = 4
            case _:
                raise ValueError("a field has an unknown type.")
        if size > span.stop - at:
            raise ValueError("the file ends within a field.")
        yield key >> 3, range(at, at + size)
        at += size


def read_varint(content: mmap.mmap | bytes, at: int, stop: int) -> tuple[int, int]:
    """Returns a number with 7 bits per byte, lowest first, and the offset of its end."""
    value = shift = 0
    while shift < 64:
        if at >= stop:
            raise ValueError("the file ends within a number.")
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("a number has no end.")


def field(number: int, content: bytes) -> bytes:
    """Encodes a field with a message or a text."""
    return key(number, 2) + varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    """Encodes a field with a number."""
    return key(number, 0) + varint(value)


def key(number: int, kind: int) -> bytes:
    """Encodes the beginning of a field: its number and the type of its value."""
    return varint(number << 3 | kind)


def varint(value: int) -> bytes:
    """Encodes a number with 7 bits per byte, lowest first. A negative number is its 64-bit two's complement."""
    value &= 2**64 - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    parts.append(value)
    return bytes(parts)
