"""Memory of this process: how much it takes, and settings of the allocator and the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 1 << 17
MEBIBYTE: Final = 1 << 20


def needed_to_load(artifact_bytes: int) -> int:
    """Returns the bytes that a worker process takes at most while it loads artifacts of this total size.

    This holds for the native engine: the weights in the kernels' layout, one matrix more, and the process itself.
    """
    return 2 * artifact_bytes + 100 * MEBIBYTE


def needed_to_serve(artifact_bytes: int, *, spare: bool) -> int:
    """Returns the bytes that a server needs: its own, a process that loads, and with a spare one that serves."""
    return needed_to_load(artifact_bytes) + 150 * MEBIBYTE + spare * (artifact_bytes + 100 * MEBIBYTE)


def resident_bytes() -> int:
    """Returns the resident set size of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit_heap_growth() -> None:
    """Makes the allocator return large blocks to the system as soon as they are freed.

    By default glibc raises its mmap threshold to the largest block freed so far. Later blocks of that size go to the
    heap, which fragments: a server that receives bodies of all sizes then grows for days.
    """
    with suppress(AttributeError, OSError):
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, LARGE_BYTES)


def tune_garbage_collector() -> None:
    """Keeps the garbage collector from pausing the event loop.

    Objects from start-up live as long as the process, so they are frozen. Requests leave no reference cycles, and a
    collection takes 20 ms and more with 2,000 open connections, so collections become rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def release_free_memory() -> None:
    """Makes the allocator return free memory to the system. Loading frees a lot."""
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
