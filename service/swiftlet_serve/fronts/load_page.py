"""The load of the coordinator, in a page of memory that the fronts read.

The coordinator writes the page after each change, at the same cost for any number of fronts. A front can thus
refuse a hopeless request before it reads the body. The load may be late by some milliseconds, which does no harm:
the coordinator decides.

The page holds the CRC-32 of the rest, because a front may read while the coordinator writes.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from swiftlet_serve.errors import SetupError
from swiftlet_serve.types import Priority

MAX_CLIENTS: Final = 8

_SUM: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<d??2xI3dII")
_CLIENT: Final = struct.Struct("<I2d")
_MODEL: Final = struct.Struct("<3d")


class LoadState(NamedTuple):
    """The load of the coordinator at one moment."""

    at: float  # time of `time.monotonic()`
    ready: bool  # whether an engine is ready
    closed: bool  # whether every request is refused
    cores: int  # engine calls at a time
    interactive_s: float  # wait of an interactive request whose client has nothing queued
    bulk_s: float  # wait of such a bulk request
    mean_request_s: float  # one core's seconds for a request
    clients: Mapping[int, tuple[float, float]]  # the same two waits of the clients with the most work, by `number_of`
    coefficients: Sequence[tuple[float, float, float]]  # of each model's `LatencyModel`

    def wait_s(self, client: str, priority: Priority, now: float) -> float:
        """Returns the wait of a client's request that arrives now, as if the engine had worked all the time since."""
        waits = self.clients.get(number_of(client), (self.interactive_s, self.bulk_s))
        return max(0.0, waits[priority == "bulk"] - max(0.0, now - self.at))


def number_of(client: str) -> int:
    """Returns the number that stands for a client's name."""
    return zlib.crc32(client.encode())


def create() -> tuple[int, int]:
    """Creates a page. Returns a file descriptor to write it with, and one for fronts that can only read it.

    Raises:
        SetupError: the system has no memory that processes share.
    """
    if sys.platform != "linux":
        raise SetupError("fronts above 1 need Linux, which spreads connections over processes.")
    try:
        writer = os.memfd_create("swiftlet-load")
        os.ftruncate(writer, mmap.PAGESIZE)
        return writer, os.open(f"/proc/self/fd/{writer}", os.O_RDONLY)
    except OSError as error:
        raise SetupError(f"fronts above 1 need shared memory and /proc: {error.strerror}.") from None


class LoadWriter:
    """Writes the page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, state: LoadState) -> None:
        """Replaces the content. The page holds `MAX_CLIENTS` and at most 160 models; later ones are left out."""
        *plain, clients, coefficients = state
        busy = [_CLIENT.pack(number, *waits) for number, waits in clients.items()][:MAX_CLIENTS]
        known = coefficients[: (mmap.PAGESIZE - _SUM.size - _HEAD.size - len(busy) * _CLIENT.size) // _MODEL.size]
        body = _HEAD.pack(*plain, len(busy), len(known)) + b"".join([*busy, *(_MODEL.pack(*cost) for cost in known)])
        data = _SUM.pack(zlib.crc32(body)) + body
        self._page[: len(data)] = data


class LoadReader:
    """Reads the page."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE, access=mmap.ACCESS_READ)
        self._last = LoadState(0.0, True, False, 1, 0.0, 0.0, 0.0, {}, ())

    def read(self) -> LoadState:
        """Returns the latest complete state."""
        page = self._page[:]
        *plain, clients, models = _HEAD.unpack_from(page, _SUM.size)
        start = _SUM.size + _HEAD.size
        middle = start + clients * _CLIENT.size
        end = middle + models * _MODEL.size
        if end <= len(page) and (zlib.crc32(page[_SUM.size : end]),) == _SUM.unpack_from(page):
            busy = {
                number: (interactive_s, bulk_s)
                for number, interactive_s, bulk_s in _CLIENT.iter_unpack(page[start:middle])
            }
            self._last = LoadState._make([*plain, busy, list(_MODEL.iter_unpack(page[middle:end]))])
        return self._last
