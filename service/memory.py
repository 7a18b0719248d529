"""What this process holds of the machine's memory, and what it need not."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def give_back() -> None:
    """Has the allocator return what loading freed: weights come by as floats, four times as large as they are kept."""
    with suppress(AttributeError, OSError):  # only glibc keeps so much, and has this
        ctypes.CDLL(None).malloc_trim(0)
