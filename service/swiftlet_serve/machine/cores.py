"""The CPU cores that this process may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from swiftlet_serve.machine import cgroup

SYSTEM: Final = Path("/sys/devices/system")
NO_QUOTA: Final = float(1 << 20)


def usable_cores(root: Path = cgroup.ROOT) -> int:
    """Returns the number of cores of this process: its affinity, limited by the CPU quotas of its control groups.

    `root` has the folders `proc` and `sys`.
    """
    # Rounded down: the kernel throttles a surplus thread in the middle of a batch, which delays all of its requests.
    return max(1, min(len(_allowed()), int(min(map(_quota, cgroup.folders("cpu", root))))))


class Node(NamedTuple):
    """A NUMA node: CPUs with memory of their own."""

    cpus: frozenset[int]  # those that this process may use
    cores: int  # the physical ones among them


def physical_cores(system: Path = SYSTEM) -> int:
    """Returns the number of physical cores among those of this process's affinity.

    Two threads of one core share its multipliers. A CPU that the system does not describe counts as a core. `system`
    has the folders `cpu` and `node`.
    """
    return _count_cores(_allowed(), system)


def numa_nodes(system: Path = SYSTEM) -> list[Node]:
    """Returns the NUMA nodes of this process's affinity. A system that describes none has an empty list.

    `system` is as in `physical_cores`.
    """
    allowed = _allowed()
    found = (allowed & _cpus(folder / "cpulist") for folder in sorted((system / "node").glob("node[0-9]*")))
    return [Node(frozenset(cpus), _count_cores(cpus, system)) for cpus in found if cpus]


def _count_cores(cpus: set[int], system: Path) -> int:
    return len({_siblings(system / f"cpu/cpu{number}/topology") or str(number) for number in cpus})


def _cpus(file: Path) -> set[int]:
    """Reads a list of CPUs, such as 0-3,8. It is empty if the file cannot be read."""
    try:
        ends = [part.split("-") for part in file.read_text("ascii").strip().split(",") if part]
        return {number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)}
    except (OSError, ValueError):
        return set()


def _allowed() -> set[int]:
    """Returns the numbers of the CPUs of this process's affinity. macOS has no affinity."""
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _siblings(topology: Path) -> str:
    """Returns the list of a core's CPUs, or an empty text if it is not known."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is its name in older kernels
        try:
            return (topology / name).read_text("ascii").strip()
        except OSError:
            continue
    return ""


def _quota(folder: Path) -> float:
    """Returns the CPU quota of a control group in cores, or a very large number without a quota."""
    try:
        try:
            quota, period = (folder / "cpu.max").read_text("ascii").split()
        except FileNotFoundError:
            quota = (folder / "cpu.cfs_quota_us").read_text("ascii")
            period = (folder / "cpu.cfs_period_us").read_text("ascii")
        limit = int(quota) / int(period)
    except (OSError, ValueError):  # there is no control group, or the quota is "max"
        return NO_QUOTA
    return limit if limit > 0 else NO_QUOTA
