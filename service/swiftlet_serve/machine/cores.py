"""The CPU cores that this process may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from swiftlet_serve.machine import cgroup

CPUS: Final = Path("/sys/devices/system/cpu")
NO_QUOTA: Final = float(1 << 20)


def usable_cores(root: Path = cgroup.ROOT) -> int:
    """Returns the number of cores of this process: its affinity, limited by the CPU quotas of its control groups.

    `root` has the folders `proc` and `sys`.
    """
    # Rounded down: the kernel throttles a surplus thread in the middle of a batch, which delays all of its requests.
    return max(1, min(len(_allowed()), int(min(map(_quota, cgroup.folders("cpu", root))))))


def physical_cores(cpus: Path = CPUS) -> int:
    """Returns the number of physical cores among those of this process's affinity.

    Two threads of one core share its multipliers. A CPU that the system does not describe counts as a core.
    """
    return len({_siblings(cpus / f"cpu{number}/topology") or str(number) for number in _allowed()})


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
