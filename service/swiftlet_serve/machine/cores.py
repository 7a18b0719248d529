"""The CPU cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CGROUP: Final = Path("/sys/fs/cgroup")
CPUS: Final = Path("/sys/devices/system/cpu")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Returns the number of cores of this process: its affinity, limited by the CPU quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not available on macOS and Windows
        cores = os.cpu_count() or 1
    # Rounded down: the kernel throttles a surplus thread in the middle of a batch, which delays all of its requests.
    return max(1, min(cores, int(_quota(cgroup))))


def physical_cores(cpus: Path = CPUS) -> int:
    """Returns the number of physical cores among those of this process's affinity.

    Two threads of one core share its multipliers. A CPU that the system does not describe counts as a core.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # not available on macOS and Windows
        return os.cpu_count() or 1
    return len({_siblings(cpus / f"cpu{number}/topology") or str(number) for number in allowed})


def _siblings(topology: Path) -> str:
    """Returns the list of a core's CPUs, or an empty text if it is not known."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is its name in older kernels
        try:
            return (topology / name).read_text("ascii").strip()
        except OSError:
            continue
    return ""


def _quota(cgroup: Path) -> float:
    """Returns the CPU quota in cores, or a very large number without a quota."""
    try:
        try:
            quota, period = (cgroup / "cpu.max").read_text("ascii").split()
        except FileNotFoundError:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text("ascii")
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text("ascii")
        limit = int(quota) / int(period)
    except (OSError, ValueError):  # there is no control group, or the quota is "max"
        return float(1 << 20)
    return limit if limit > 0 else float(1 << 20)
