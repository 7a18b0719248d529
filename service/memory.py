"""What this process holds of the machine's memory, and what it need not."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

M_TRIM_THRESHOLD: Final = -1  # malloc.h
M_MMAP_THRESHOLD: Final = -3
LARGE_BYTES: Final = 1 << 17


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def keep_little() -> None:
    """Has the allocator return what is large as soon as it is free, rather than keep it for the next of that size.

    glibc takes the largest piece that was ever freed for usual, and has it from then on in the heap among all else,
    which never shrinks again below what happens to stay there: with bodies of all sizes a server grows for days.
    """
    with suppress(AttributeError, OSError):
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, LARGE_BYTES)


def give_back() -> None:
    """Has the allocator return what loading freed: weights come by as floats, four times as large as they are kept."""
    with suppress(AttributeError, OSError):  # only glibc keeps so much, and has this
        ctypes.CDLL(None).malloc_trim(0)
