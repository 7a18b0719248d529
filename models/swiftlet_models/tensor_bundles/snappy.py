"""The raw format of Snappy (https://github.com/google/snappy, format_description.txt), which blocks may have."""

from __future__ import annotations

from swiftlet_models.graphs.protobuf import read_varint


def decompress(data: bytes, most: int) -> bytes:
    """Returns the content of a block. Raises ValueError if it is damaged, or has more than `most` bytes."""
    length, at = read_varint(data, 0, len(data))
    if length > most:
        raise ValueError("a block is too large.")
    content = bytearray()
    while at < len(data):
        tag = data[at]
        size, at = (tag >> 2) + 1, at + 1
        match tag & 3:
            case 0:  # bytes as they are
                if size > 60:
                    size, at = int.from_bytes(data[at : at + size - 60], "little") + 1, at + size - 60
                if size > len(data) - at:
                    raise ValueError("a block is damaged.")
                content += data[at : at + size]
                at += size
            case kind:  # a repetition of what came before
                if kind == 1:
                    size, width, high = (tag >> 2 & 7) + 4, 1, tag >> 5 << 8
                else:
                    width, high = (2, 0) if kind == 2 else (4, 0)
                back, at = high | int.from_bytes(data[at : at + width], "little"), at + width
                if not 0 < back <= len(content) or at > len(data):
                    raise ValueError("a block is damaged.")
                repeated = content[-back : len(content) - back + size]
                content += (repeated * (size // len(repeated) + 1))[:size]
        if len(content) > length:
            raise ValueError("a block is damaged.")
    if len(content) != length:
        raise ValueError("a block is damaged.")
    return bytes(content)
