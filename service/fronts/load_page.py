"""The load of the coordinator, in a page of memory that the fronts read.

The coordinator writes the page after each change, at the same cost for any number of fronts. A front so refuses a
request that has no chance before it reads its body. What it read may be late by some milliseconds, which does no harm:
the decision that counts is the coordinator's.

The page holds the CRC-32 of the rest, because a front may read while the coordinator writes.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from swiftlet_serve.service.types import Priority

_SUM: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<d??2xI3dI")
_MODEL: Final = struct.Struct("<3d")


class LoadState(NamedTuple):
    """The load of the coordinator at one moment."""

    at: float  # time of `time.monotonic()`
    ready: bool  # whether an engine is ready
    closed: bool  # whether every request is refused
    cores: int  # engine calls at a time
    interactive_s: float  # least wait of an interactive request
    bulk_s: float  # least wait of a bulk request
    mean_request_s: float  # one core's seconds for a request
    coefficients: Sequence[tuple[float, float, float]]  # of each model's `LatencyModel`

    def wait_s(self, priority: Priority, now: float) -> float:
        """Returns the least wait of a request that arrives now, as if the engine had worked all the time since."""
        wait = self.interactive_s if priority == "interactive" else self.bulk_s
        return max(0.0, wait - max(0.0, now - self.at))


def create() -> tuple[int, int]:
    """Creates a page. Returns a file descriptor to write it with, and one for fronts that can only read it."""
    writer = os.memfd_create("swiftlet-load")
    os.ftruncate(writer, mmap.PAGESIZE)
    return writer, os.open(f"/proc/self/fd/{writer}", os.O_RDONLY)


class LoadWriter:
    """Writes the page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, state: LoadState) -> None:
        """Replaces the content. The page holds at most 160 models; later ones are left out."""
        *plain, coefficients = state
        known = coefficients[: (mmap.PAGESIZE - _SUM.size - _HEAD.size) // _MODEL.size]
        body = _HEAD.pack(*plain, len(known)) + b"".join([_MODEL.pack(*each) for each in known])
        data = _SUM.pack(zlib.crc32(body)) + body
        self._page[: len(data)] = data


class LoadReader:
    """Reads the page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE, access=mmap.ACCESS_READ)
        self._last = LoadState(0.0, True, False, 1, 0.0, 0.0, 0.0, ())

    def read(self) -> LoadState:
        """Returns the latest complete state."""
        page = self._page[:]
        at, ready, closed, cores, interactive_s, bulk_s, mean_s, models = _HEAD.unpack_from(page, _SUM.size)
        end = _SUM.size + _HEAD.size + models * _MODEL.size
        if end <= len(page) and (zlib.crc32(page[_SUM.size : end]),) == _SUM.unpack_from(page):
            found = list(_MODEL.iter_unpack(page[_SUM.size + _HEAD.size : end]))
            self._last = LoadState(at, ready, closed, cores, interactive_s, bulk_s, mean_s, found)
        return self._last
