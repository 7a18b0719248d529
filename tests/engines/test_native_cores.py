"""Tests of calls on several cores: the same bits as on one, no data races, and nothing that stays behind."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.artifact import Precision, open_artifact
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines.native import Native
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.machine.cores import Node
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.hosted_model import host_model, run_timed
from tests.support.checkpoints import Task
from tests.support.compiler import SOURCES, compile_kernels
from tests.support.native_kernels import CONFIGS, NETWORKS, best, emulated, encoding, folded, plain_tiles, variant
from tests.support.paths import ROOT
from tests.support.remote import PROGRAM, Remote
from tests.support.tiers import first, first_of_each

SHORT = Batch.of([encoding(12, [0, 3, 11], 1)])  # whose products threads share
LONG = Batch.of([encoding(40, [0, 3, 39], 1)])
SEVERAL = Batch.of([encoding(n, [0, n - 1], n) for n in (40, 40, 40, 40, 30, 17, 1)])
KERNELS = {"avx2": ("-mavx2", "-mfma"), "plain": ()}


@pytest.fixture(autouse=True)
def one_core_afterwards() -> Iterator[None]:
    yield
    best().share_cores(1)


@pytest.mark.parametrize(("architecture", "task"), first_of_each(NETWORKS, itemgetter(0)))
def test_call_has_the_same_bits_on_any_number_of_cores(architecture, task):
    check_bits(best(), architecture, task, range(2, 9))
    check_bits(best(), architecture, task, [3, 8], "bf16")


@pytest.mark.parametrize(
    ("kernel", "architecture"),
    first(product(["amx", "avx512bf16", "avxvnni"], ["bert", "mobilebert", "gpt2"]), ("amx", "mobilebert")),
)
def test_emulated_kernels_have_the_same_bits_on_several_cores(kernel, architecture, tmp_path):
    check_bits(emulated(kernel, tmp_path), architecture, "qa", [3], "bf16" if architecture == "bert" else "int8")


def check_bits(
    library: Library, architecture: str, task: Task, cores: Iterable[int], precision: Precision = "int8"
) -> None:
    network = Native(library, folded(architecture, task), precision=precision)
    for batch in (SHORT, LONG, SEVERAL):
        library.share_cores(1)
        expected = [row.tobytes() for row in network.run(batch)]
        for count in cores:
            library.share_cores(count)
            assert [row.tobytes() for row in network.run(batch)] == expected
    library.share_cores(1)


@cache
def question_answerer(architecture: str) -> Native:
    return Native(best(), folded(architecture, "qa"))


@pytest.mark.parametrize("architecture", first(CONFIGS, "mobilebert", "modernbert", "deberta_v2"))
@given(st.integers(1, 40), st.lists(st.integers(0, 39), max_size=60), st.integers(2, 8))
def test_lone_sequence_has_the_same_bits_on_several_cores(architecture, length, focus, cores):
    network, batch = (
        question_answerer(architecture),
        Batch.of([encoding(length, [at % length for at in focus], length)]),
    )
    best().share_cores(1)
    (expected,) = network.run(batch)
    best().share_cores(cores)
    (row,) = network.run(batch)
    assert row.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("name", "precision"), [("no positions", "int8"), ("window without positions", "int8"), ("no positions", "bf16")]
)
def test_long_sequence_has_the_same_bits_on_several_cores_and_in_a_batch(name, precision):
    """Its keys come in several blocks, and its rows in larger ones. It leaves no large memory behind."""
    network = Native(best(), variant(name, 5000), precision=precision)
    long = encoding(2600, range(0, 2600, 50), 1)
    best().share_cores(1)
    (expected,) = network.run(Batch.of([long]))
    together = network.run(Batch.of([encoding(7, [0], 2), long]))
    best().share_cores(3)
    (row,) = network.run(Batch.of([long]))

    assert row.tobytes() == expected.tobytes() == together[1].tobytes()
    assert best().c.swiftlet_workspace_bytes() <= 16 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux measures the peak of a process's memory")
def test_memory_of_a_call_is_linear_in_tokens():
    """Scores of all tokens by all tokens would take 256 MiB."""
    network, batch = Native(best(), variant("no positions", 8192)), Batch.of([encoding(8192, [0], 1)])

    def peak(field: str) -> int:
        status = Path("/proc/self/status").read_text("ascii", "replace")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))

    Path("/proc/self/clear_refs").write_text("5")
    before = peak("VmRSS:")
    network.run(batch)

    assert peak("VmHWM:") - before <= 64 << 10


def test_long_sequence_in_bf16_equals_that_beside_another_one():
    """A block of a lone long sequence has more rows than one of several sequences."""
    network = Native(best(), variant("no positions", 2304), precision="bf16")
    one = encoding(2304, [0, 2303], 1)
    together = network.run(Batch.of([one, encoding(3, [0], 2)]))
    assert network.run(Batch.of([one]))[0].tobytes() == together[0].tobytes()


@pytest.fixture(params=first(KERNELS, "plain"))  # all kernels share the code of threads
def program(request, tmp_path) -> Path:
    """Kernels as a program, with the sanitizer for threads."""
    kernel = request.param
    if kernel == "avx2" and os.uname().machine != "x86_64":
        pytest.skip("AVX2 needs an x86-64 CPU")
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-pthread", "-fsanitize=thread", *KERNELS[kernel]]
    flags.append("-fno-sanitize-recover=all")
    sources = ["-I", str(SOURCES), f'-DKERNELS="{kernel}.cpp"', str(PROGRAM)]
    return compile_kernels(compiler, [*flags, *sources], tmp_path / "program")


def stress(library: Library, network: Native, batch: Batch, callers: int, rounds: int, seed: int) -> int:
    """Returns the nanoseconds that helpers spent on calls. Asserts that every call had the same outputs."""
    arrays = np.concatenate(batch.arrays, dtype=np.int64)
    helped = ctypes.c_int64()
    counts = len(batch), len(batch.input_ids), len(batch.focus)
    outputs = len(batch.focus) * network._outputs
    limits = outputs, callers, rounds, seed
    assert library.c.stress(network._model, *counts, arrays, *limits, ctypes.byref(helped)) == 0
    return helped.value


@pytest.mark.exhaustive
def test_helpers_join_and_leave_calls_without_data_races(program):
    """Several threads make calls while the number of cores changes. A sanitizer's report ends the program."""
    helped = dict.fromkeys((SHORT, LONG, SEVERAL), 0)
    with Remote(str(program)) as library:
        library.share_cores(1, [Node(frozenset({0, 1}), 8), Node(frozenset({2, 3}), 8)])
        for seed, (architecture, task) in enumerate([("bert", "qa"), ("mobilebert", "fill-mask"), ("albert", "qa")]):
            network = Native(library, folded(architecture, task))
            for batch in helped:
                helped[batch] += stress(library, network, batch, 3, 4, seed)
    assert all(helped.values())


@pytest.mark.parametrize("batch", [SHORT, SEVERAL])
def test_helper_that_finds_a_wrong_sum_makes_the_call_run_again(batch, tmp_path):
    """On tiles that lose sums, in any thread: the answer is that of vectors."""
    faulty = Library(plain_tiles(tmp_path, "-DSWIFTLET_TILE_FAULT=3"))
    network = Native(faulty, folded("bert", "qa"))
    faulty.share_cores(4)
    for _ in range(100):
        rows = network.run(batch)
        if faulty.kernel_faults:
            break
    assert faulty.kernel_faults >= 1
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in network.run(batch)]


@pytest.mark.parametrize("length", [12, 40, 300])
def test_time_of_helpers_counts_for_the_call(length):
    """A sequence on two cores: their times together are at least the time of the call."""
    model, _ = host_model([open_artifact(BUNDLED / "albert-sst2")], "native", cores=2)
    batch = Batch.of([encoding(length, [0], 1)])
    results = [run_timed(model, batch) for _ in range(20)]
    model.engine.close()

    assert all(result.helped_s >= 0 for result in results)
    if len(os.sched_getaffinity(0)) > 1:
        assert max(result.helped_s for result in results) > 0


@pytest.mark.parametrize("on_one_node", [True, False])
def test_only_cores_of_a_node_help_with_its_calls(on_one_node, tmp_path):
    """Two NUMA nodes: this process's CPUs are on one of them, or on both."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one core")
    library = Library(Path(shutil.copy(best().file, tmp_path)))  # whose nodes are not known yet
    first, *others = sorted(os.sched_getaffinity(0))
    more = range(max(others) + 1, max(others) + 9)
    nodes = [{first, *others}, more] if on_one_node else [{first}, {*others, *more}]
    library.share_cores(8, [Node(frozenset(cpus), len(cpus)) for cpus in nodes])
    network, helped = Native(library, folded("bert", "qa")), 0.0
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {first})
    try:
        for _ in range(100):
            network.run(SEVERAL)
            helped += network.helped_s
    finally:
        os.sched_setaffinity(0, before)

    assert (helped > 0) == on_one_node


def test_engine_without_cores_to_share_reports_no_help():
    model, _ = host_model([open_artifact(BUNDLED / "albert-sst2")], "native")
    assert run_timed(model, LONG).helped_s == 0
    model.engine.close()


AFFINITY = """
import os, signal, sys, threading
from tests.support.native_kernels import best, encoding, folded
from swiftlet_serve.engines.native import Native
from swiftlet_serve.types import Batch
best().share_cores(8)
network = Native(best(), folded("bert", "qa"))
batch = Batch.of([encoding(40, [0], 1)])
expected = network.run(batch)[0].tobytes()
threads = len(os.listdir("/proc/self/task"))
cores, wrong = sorted(os.sched_getaffinity(0)), 0
for round in range(100 * int(sys.argv[1])):
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), {cores[round % len(cores)]} if round % 3 else cores)
    wrong += network.run(batch)[0].tobytes() != expected
stop = threading.Event()
def serve():
    while not stop.is_set():
        network.run(batch)
thread = threading.Thread(target=serve)
thread.start()
for _ in range(10 * int(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.alarm(20)
        os._exit(network.run(batch)[0].tobytes() != expected)
    wrong += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
stop.set()
thread.join()
# The thread that has ended may still be in the list.
print(wrong, len(os.listdir("/proc/self/task")) <= threads + 1, best().c.swiftlet_idle_cores())
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("volume", [9])
def test_cores_may_be_taken_away_and_processes_forked_while_helpers_work(volume):
    result = subprocess.run(
        [sys.executable, "-c", AFFINITY, str(volume)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert result.stdout == "0 True 8\n", result.stderr


def test_loading_and_closing_leaves_nothing_behind():
    """Under load from another thread: no threads, no descriptors, and little memory."""
    best().share_cores(4)
    serving, stop = Native(best(), folded("mobilebert", "qa")), threading.Event()
    expected, wrong = [row.tobytes() for row in serving.run(SEVERAL)], []

    def serve() -> None:
        while not stop.is_set():
            if [row.tobytes() for row in serving.run(SEVERAL)] != expected:
                wrong.append(1)

    thread = threading.Thread(target=serve)
    thread.start()
    network, states = folded("bert", "qa"), []
    for number in range(300):
        engine = Native(best(), network)
        engine.run(LONG)
        engine.close()
        if number in (60, 299):
            states.append((len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), _resident()))
    stop.set()
    thread.join()

    assert wrong == []
    threads, descriptors, memory = (after - before for before, after in zip(*states, strict=True))
    # Each of 239 networks would leave one. Other libraries of this process may start or end a few.
    assert (threads < 100, descriptors < 100, memory < 8 << 20) == (True, True, True), states


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_workspace_is_given_back():
    """After a call that needed much memory, a thread keeps at most 16 MiB."""
    network = Native(best(), folded("bert", "fill-mask"))
    network.run(Batch.of([encoding(40, range(40), n) for n in range(600)]))

    assert best().c.swiftlet_workspace_bytes() <= 16 << 20
