"""The setting of the allocator, which holds for a process, so it is tried in one of its own; and limits of cgroups."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from swiftlet_serve.machine import memory
from swiftlet_serve.machine.memory import CgroupMemory

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is one of glibc")
MEBIBYTE = 1 << 20
FREE_A_BLOCK = """
import numpy as np
from swiftlet_serve.machine import memory
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


@needs_glibc
def test_a_server_returns_blocks_that_are_freed():
    assert freed_bytes(100 * MEBIBYTE, "memory.limit_heap_growth()") > 99 * MEBIBYTE
    assert freed_bytes(MEBIBYTE, "memory.limit_heap_growth()") > MEBIBYTE / 2
    assert freed_bytes(MEBIBYTE, "memory.limit_heap_growth()\nwith memory.heap_for_loading(): pass") > MEBIBYTE / 2
    assert freed_bytes(MEBIBYTE, "") < MEBIBYTE / 2  # the default that the setting changes


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, CgroupMemory(None, None, None)),
        (  # in a container, which sees its own cgroup as the root
            {
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "536870912\n",
                "sys/fs/cgroup/memory.peak": "536866816\n",
                "sys/fs/cgroup/memory.events": "low 0\nmax 31\noom 2\noom_kill 2\n",
            },
            CgroupMemory(536870912, 536866816, 2),
        ),
        (  # the limit is that of the parent, and this kernel knows no peak
            {
                "proc/self/cgroup": "0::/user/own\n",
                "sys/fs/cgroup/user/own/memory.max": "max\n",
                "sys/fs/cgroup/user/memory.max": "1048576\n",
                "sys/fs/cgroup/user/memory.events": "oom_kill 1\n",
            },
            CgroupMemory(1048576, None, 1),
        ),
        (  # version 1
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n",
                "sys/fs/cgroup/memory/memory.max_usage_in_bytes": "1048000\n",
                "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            },
            CgroupMemory(1048576, 1048000, 3),
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            CgroupMemory(None, None, None),
        ),
    ],
)
def test_memory_of_the_cgroup(files, expected, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)

    assert memory.cgroup_memory(tmp_path) == expected


def test_memory_of_the_cgroup_of_this_process_can_be_read():
    assert str(memory.cgroup_memory())
