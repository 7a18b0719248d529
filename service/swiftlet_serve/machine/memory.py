"""Memory: how much this process takes and may take, and settings of the allocator and the garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from swiftlet_serve.machine import cgroup

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 1 << 17
LOADING_BYTES: Final = 1 << 22  # more than the arrays that a load makes over and over
MEBIBYTE: Final = 1 << 20
NO_LIMIT: Final = 1 << 62  # in version 1 of cgroups, a limit near 2^63 means no limit


def needed_to_load(artifact_bytes: int) -> int:
    """Returns the bytes that a worker process takes at most while it loads artifacts of this total size.

    This holds for the native engine: the weights in the kernels' layout, one matrix more, and the process itself.
    """
    return 2 * artifact_bytes + 100 * MEBIBYTE


def needed_to_serve(artifact_bytes: int, *, spare: bool) -> int:
    """Returns the bytes that a server needs: its own, a process that loads, and with a spare one that serves."""
    return needed_to_load(artifact_bytes) + 150 * MEBIBYTE + spare * (artifact_bytes + 100 * MEBIBYTE)


class CgroupMemory(NamedTuple):
    """The memory of the cgroup, such as a container, that this process is in. None: not known."""

    limit: int | None  # bytes; None without a limit
    peak: int | None  # bytes
    kills: int | None  # processes that the kernel killed because of the limit

    def __str__(self) -> str:
        if self.limit is None:
            return "no memory limit was found in the cgroup"
        parts = [f"the memory limit is {self.limit // MEBIBYTE} MiB"]
        if self.peak is not None:
            parts.append(f"at most {self.peak // MEBIBYTE} MiB were in use")
        if self.kills is not None:
            parts.append(f"{self.kills} processes were killed because of it")
        return ", ".join(parts)


def cgroup_memory(root: Path = cgroup.ROOT) -> CgroupMemory:
    """Reads the memory of this process's cgroup, of version 2 or 1. `root` has the folders `proc` and `sys`."""
    folders = cgroup.folders("memory", root)
    limits = {}  # by folder: the smallest of all ancestors holds
    for folder in folders:
        if (limit := _number(folder, "memory.max", "memory.limit_in_bytes")) is not None:
            limits[folder] = limit
    tightest = min(limits, key=lambda folder: limits[folder], default=folders[0])
    lines = [line for name in ("memory.events", "memory.oom_control") for line in cgroup.lines(tightest / name)]
    kills = dict(line.split(" ", 1) for line in lines if " " in line).get("oom_kill", "")
    return CgroupMemory(
        limits.get(tightest),
        _number(tightest, "memory.peak", "memory.max_usage_in_bytes"),
        int(kills) if kills.strip().isdecimal() else None,
    )


def _number(folder: Path, *names: str) -> int | None:
    """Returns the number in the first of these files that has one, as they are called in version 2 and 1.

    None means that there is none, or no limit.
    """
    for name in names:
        text = "".join(cgroup.lines(folder / name)).strip()
        if text.isdecimal() and int(text) < NO_LIMIT:
            return int(text)
    return None


def resident_bytes() -> int:
    """Returns the resident set size of this process in bytes; outside Linux, its highest value so far."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit_heap_growth() -> None:
    """Makes the allocator return large blocks to the system as soon as they are freed.

    By default glibc raises its mmap threshold to the largest block freed so far. Later blocks of that size go to the
    heap, which fragments: a server that receives bodies of all sizes then grows for days.
    """
    _set_thresholds(LARGE_BYTES, LARGE_BYTES)


@contextmanager
def heap_for_loading() -> Iterator[None]:
    """Lets the heap grow during the block, in a process with `limit_heap_growth`, and releases its free memory.

    A load makes an array of a megabyte for each step of each part of a matrix. If the system had to clear the pages of
    each, loading would take twice as long.
    """
    _set_thresholds(LOADING_BYTES, 16 * LOADING_BYTES)
    try:
        yield
    finally:
        limit_heap_growth()
        release_free_memory()


def _set_thresholds(mmap: int, trim: int) -> None:
    with suppress(AttributeError, OSError):  # only glibc has mallopt
        for option, size in ((M_MMAP_THRESHOLD, mmap), (M_TRIM_THRESHOLD, trim)):
            ctypes.CDLL(None).mallopt(option, size)


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
