"""The setting of the allocator. It holds for a process, so it is tried in one of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
MEBIBYTE = 1 << 20
FREE_A_BLOCK = """
import numpy as np
from swiftlet_serve.service import memory
{setting}
np.ones(2 * {size}, np.uint8)  # by default, blocks of up to this size now go to the heap
block = np.ones({size}, np.uint8)
filled = memory.resident_bytes()
del block
print(filled - memory.resident_bytes())
"""


def freed_bytes(size: int, setting: str) -> int:
    """Returns the bytes that a process gives back to the system when it frees a block of `size` bytes.

    The process frees a larger block before. `setting` is a line of Python that it runs first.
    """
    code = FREE_A_BLOCK.format(size=size, setting=setting)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def test_a_server_returns_blocks_that_are_freed():
    assert freed_bytes(100 * MEBIBYTE, "memory.limit_heap_growth()") > 99 * MEBIBYTE
    assert freed_bytes(MEBIBYTE, "memory.limit_heap_growth()") > MEBIBYTE / 2
    assert freed_bytes(MEBIBYTE, "") < MEBIBYTE / 2  # the default that the setting changes
