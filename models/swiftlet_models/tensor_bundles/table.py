"""The sorted table of LevelDB, which the index of a tensor bundle has.

Blocks of keys with their values, a block with the place of each of them, and a footer with the place of that one. A key
is stored without the beginning that it shares with the one before it. Behind each block are the kind of its compression
and a checksum (https://github.com/google/leveldb, doc/table_format.md).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from swiftlet_models.graphs.protobuf import read_varint
from swiftlet_models.tensor_bundles import crc32c

MAX_BYTES: Final = 8 << 20  # of a table, also when it is decompressed. That of a BERT-large has 60 kB
MAX_ENTRIES: Final = 1 << 16
MAX_KEY: Final = 1024  # bytes

_FOOTER: Final = 48
_MAGIC: Final = 0xDB4775248B80FB57
_CHECKSUM: Final = struct.Struct("<BI")  # the kind of the compression, and the checksum


def read_table(content: bytes) -> dict[bytes, bytes]:
    """Returns the values by their keys.

    Raises:
        ValueError: the table is damaged or too large.
    """
    if len(content) < _FOOTER or int.from_bytes(content[-8:], "little") != _MAGIC:
        raise ValueError("the end of the table is missing.")
    end = len(content) - _FOOTER
    _, at = _place(content, end, end + 40)
    index, _ = _place(content, at, end + 40)
    values: dict[bytes, bytes] = {}
    last, key, left = 0, b"", MAX_BYTES
    for _, handle in _entries(_block(content, index, end, MAX_BYTES)):
        place, _ = _place(handle, 0, len(handle))
        if place.start < last:
            raise ValueError("blocks overlap.")
        last = place.stop
        block = _block(content, place, end, left)
        left -= len(block)
        for name, value in _entries(block):
            if values and name <= key:
                raise ValueError("keys are not sorted.")
            if len(values) == MAX_ENTRIES:
                raise ValueError("there are too many keys.")
            values[name], key = value, name
    return values


def _place(content: bytes, at: int, stop: int) -> tuple[range, int]:
    """Returns the place of a block, and the offset after it."""
    offset, at = read_varint(content, at, stop)
    size, at = read_varint(content, at, stop)
    return range(offset, offset + size), at


def _block(content: bytes, place: range, end: int, most: int) -> bytes:
    if place.stop + _CHECKSUM.size > end:
        raise ValueError("a block lies outside the file.")
    block = content[place.start : place.stop]
    kind, checksum = _CHECKSUM.unpack_from(content, place.stop)
    if crc32c.mask(crc32c.update(crc32c.START, content[place.start : place.stop + 1])) != checksum:
        raise ValueError("a block does not have its checksum.")
    if kind or len(block) > most:  # TensorFlow has compressed none since 1.2
        raise ValueError("a block is compressed or too large.")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    stop = len(block) - 4 - 4 * restarts  # whole keys begin at the restarts, for searches
    if stop < 0:
        raise ValueError("a block is damaged.")
    key, at = b"", 0
    while at < stop:
        shared, at = read_varint(block, at, stop)
        own, at = read_varint(block, at, stop)
        size, at = read_varint(block, at, stop)
        if shared > len(key) or shared + own > MAX_KEY or own + size > stop - at:
            raise ValueError("a block is damaged.")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + size]
        at += size
