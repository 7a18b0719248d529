"""The cores that the process may use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from swiftlet_serve.machine.cores import Node, numa_nodes, physical_cores, usable_cores


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "400000 100000"}, 4),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"own/cpu.max": "400000 100000", "cpu.max": "max 100000"}, 4),
        ({"own/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/own/cpu.cfs_quota_us": "200000", "cpu/own/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu.max": "nonsense"}, 8),
    ],
)
def test_usable_cores_respects_the_cpu_quota(files, cores, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    is_old = any(name.startswith("cpu/") for name in files)
    membership = {"proc/self/cgroup": f"{'4:cpu,cpuacct' if is_old else '0:'}:/own"}
    for name, text in ({f"sys/fs/cgroup/{name}": text for name, text in files.items()} | membership).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    assert usable_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("siblings", "allowed", "cores"),
    [
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], range(8), 4),
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], {0, 4, 5}, 2),
        (["0", "1"], {0, 1}, 2),
        ([], {0, 1, 2}, 3),  # a system that describes none
    ],
)
@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_physical_cores_count_threads_of_a_core_once(siblings, allowed, cores, name, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed), raising=False)
    describe_cores(tmp_path, siblings, name)

    assert physical_cores(tmp_path) == cores


def describe_cores(system: Path, siblings: Sequence[str], name: str = "core_cpus_list") -> None:
    """Writes the threads of each CPU's core."""
    for number, text in enumerate(siblings):
        (system / f"cpu/cpu{number}/topology").mkdir(parents=True)
        (system / f"cpu/cpu{number}/topology/{name}").write_text(text + "\n")


@pytest.mark.parametrize(
    ("lists", "allowed", "nodes"),
    [
        (["0-1,4-5", "2-3,6-7"], range(8), [({0, 1, 4, 5}, 2), ({2, 3, 6, 7}, 2)]),
        (["0-1,4-5", "2-3,6-7"], {0, 4, 5, 6}, [({0, 4, 5}, 2), ({6}, 1)]),
        (["0-1,4-5", "2-3,6-7"], {1, 5}, [({1, 5}, 1)]),
        (["0-3", "", "4-7", "nonsense"], range(8), [({0, 1, 2, 3}, 4), ({4, 5, 6, 7}, 4)]),  # one has memory alone
        (["0-7"], range(8), [(set(range(8)), 4)]),
        ([], range(8), []),
    ],
)
def test_numa_nodes_hold_the_cores_of_the_affinity(lists, allowed, nodes, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed), raising=False)
    describe_cores(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    for number, text in enumerate(lists):
        (tmp_path / f"node/node{number}").mkdir(parents=True)
        (tmp_path / f"node/node{number}/cpulist").write_text(text + "\n")

    assert numa_nodes(tmp_path) == [Node(frozenset(cpus), cores) for cpus, cores in nodes]
