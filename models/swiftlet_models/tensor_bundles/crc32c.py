"""The checksum CRC-32C of tensor bundles (RFC 3720, appendix B.4), in numpy.

A checksum is linear: the states of several parts of the data advance side by side, and the state of the whole follows
from theirs.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

START: Final = 0xFFFFFFFF

_POLYNOMIAL: Final = 0x82F63B78  # with the lowest power last
_MASK: Final = 0xA282EAD8
_PART: Final = 64  # bytes of a part at least
_PARTS: Final = 4096  # at most

_States = NDArray[np.uint32]


def update(state: int, data: bytes | memoryview) -> int:
    """Returns the state after some bytes. The first state is START."""
    length = len(data)
    parts = 1 << max(0, min(_PARTS, length // _PART).bit_length() - 1)
    size = math.ceil(length / (2 * parts)) * 2  # of a part, in bytes
    padded = np.zeros(parts * size, np.uint8)  # zeros in front do not change the state 0
    padded[padded.size - length :] = np.frombuffer(data, np.uint8)
    states = np.zeros(parts, np.uint32)
    for words in np.ascontiguousarray(padded.view("<u2").reshape(parts, -1).T):
        states = _WORDS[(states ^ words) & 0xFFFF] ^ (states >> 16)
    while len(states) > 1:
        states = _apply(_zeros(size), states[::2]) ^ states[1::2]
        size *= 2
    return int(states[0]) ^ int(_apply(_zeros(length), np.array([state], np.uint32))[0])


def mask(state: int) -> int:
    """Returns the checksum of a state in the form that LevelDB stores."""
    checksum = state ^ 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + _MASK) & 0xFFFFFFFF


def _bytes() -> _States:
    """Returns the state that follows each state of 8 bits after a byte of zeros, (256,)."""
    states: _States = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        states = (states >> np.uint32(1)) ^ (states & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return states


def _apply(tables: _States, states: _States) -> _States:
    """Applies a linear map, whose tables (4, 256) are those of the bytes of a state, lowest first."""
    first, second, third, fourth = (
        table[states >> np.uint32(8 * i) & np.uint32(255)] for i, table in enumerate(tables)
    )
    result: _States = first ^ second ^ third ^ fourth
    return result


@lru_cache(256)
def _zeros(count: int) -> _States:
    """Returns the tables of the map from a state to the state after some bytes of zeros, (4, 256)."""
    tables = np.arange(256, dtype=np.uint32) << (8 * np.arange(4, dtype=np.uint32)[:, None])
    power = _BYTES[tables & 255] ^ (tables >> 8)
    while count:
        if count & 1:
            tables = _apply(power, tables)
        power = _apply(power, power)
        count >>= 1
    return tables


_BYTES: Final = _bytes()
# The state that follows each state of 16 bits after two bytes of zeros.
_WORDS: Final = _zeros(2)[0][np.arange(1 << 16) & 255] ^ _zeros(2)[1][np.arange(1 << 16) >> 8]
