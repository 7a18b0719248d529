"""Tests of AMX tiles in the native engine: permission, self-test, wrong sums, signals; and of selecting a kernel."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from swiftlet_models.artifact import open_artifact
from swiftlet_serve.engines import _kernel_selection, native
from swiftlet_serve.engines._kernel_library import Library
from swiftlet_serve.engines._matrices import PRECISIONS
from swiftlet_serve.engines.native import Native
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.types import EARLIER_WRONG_SUMS, Batch
from swiftlet_serve.workers.hosted_model import EngineModel, host_model
from swiftlet_serve.workers.thread_executor import ThreadExecutor
from tests.support.native_kernels import best, encoding, folded, plain_tiles
from tests.support.paths import ROOT
from tests.support.tiers import first

BATCH = Batch.of([encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(40, [23, 5, 5], 3)])

KERNELS_ON_VECTORS = [name for name in _kernel_selection.KERNELS if name != "amx"]

has_amx_kernel = pytest.mark.skipif(
    not _kernel_selection._library("amx"), reason="the kernel for AMX is not compiled on this platform"
)
has_amx = pytest.mark.skipif(
    not any(Library(file).supported for file in _kernel_selection.LIBRARIES.glob("amx.so")),
    reason="this CPU has no AMX",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Library:
    """Kernels with tiles in software."""
    return Library(plain_tiles(tmp_path_factory.mktemp("sound")))


@pytest.fixture
def faulty(tmp_path) -> Library:
    """Kernels in which every third tile that is stored is wrong."""
    return Library(plain_tiles(tmp_path, "-DSWIFTLET_TILE_FAULT=3"))


def test_self_test_passes_on_sound_tiles(sound):
    sound.test_tiles(0.01)

    assert sound.tiles
    assert sound.kernel_faults == 0


@pytest.mark.exhaustive
def test_self_test_finds_wrong_sums(faulty):
    faulty.test_tiles(5)  # ends at the first wrong sum

    assert faulty.kernel_faults > 0


@pytest.mark.parametrize("precision", first(PRECISIONS, "int8"))
def test_wrong_sum_is_counted_and_the_call_is_computed_without_tiles(sound, faulty, precision, caplog):
    engines = [Native(library, folded("bert", "qa"), precision=precision) for library in (sound, faulty)]
    network = engines[1]
    for _ in range(100):
        rows = network.run(BATCH)
        if faulty.kernel_faults:
            break
    expected = np.concatenate(engines[0].run(BATCH))

    assert faulty.kernel_faults == 1
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.ERROR, native.__name__)]
    # Attention on vectors adds in another order, and quantisation may amplify that by a step.
    assert np.abs(np.concatenate(rows) - expected).max() <= 0.05 * np.abs(expected).max()
    kernel = "plain" if precision == "int8" else "plain; bf16"
    assert network.title == f"native ({kernel}; without tiles, which computed a wrong sum)"
    executor = ThreadExecutor({"bert": EngineModel(network, [2]), "other": EngineModel(engines[0], [2])}, 1)
    assert (executor.kernel_faults, executor.runtime("bert")) == (1, network.title)


def test_process_uses_no_tiles_after_a_wrong_sum(faulty):
    faulty.test_tiles(5)
    found = faulty.kernel_faults
    network = Native(faulty, folded("bert", "qa"))
    together = network.run(BATCH)

    for row, one in zip(together, BATCH.encodings(), strict=True):
        for _ in range(3):
            assert network.run(Batch.of([one]))[0].tobytes() == row.tobytes()
    assert faulty.kernel_faults == found


def test_kernel_with_tiles_is_passed_over_after_a_wrong_sum_in_an_earlier_process(sound, monkeypatch):
    monkeypatch.delenv(_kernel_selection.CHOICE, raising=False)
    monkeypatch.setattr(_kernel_selection, "LIBRARIES", sound.file.parent)
    monkeypatch.setattr(_kernel_selection, "KERNELS", (sound.file.stem,))
    monkeypatch.setattr(_kernel_selection, "TEST_SECONDS", 0.01)
    assert _kernel_selection.select().library.kernel == "plain"
    monkeypatch.setenv(EARLIER_WRONG_SUMS, "1")

    assert _kernel_selection.select() == (None, (f"{sound.file.stem}: an earlier worker process found a wrong sum",))


def test_better_kernel_that_is_passed_over_is_logged_once(monkeypatch, caplog):
    best()
    monkeypatch.setenv(_kernel_selection.CHOICE, "avx1024")
    native._warn_once.cache_clear()
    loaded = [
        host_model([open_artifact(BUNDLED / name)], "native")[0].engine for name in ("albert-sst2", "mobilebert-qa")
    ]

    (message,) = caplog.messages
    assert message.endswith(f"because better kernels do not: avx1024: {_kernel_selection.CHOICE} names no kernel")
    assert {engine.title for engine in loaded} == {
        f"native ({best().kernel}; avx1024: {_kernel_selection.CHOICE} names no kernel)"
    }


@has_amx_kernel
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"permitted": False}, "the operating system does not permit AMX tiles"),
        ({"permitted": True, "kernel_faults": 1}, "its self-test found a wrong sum"),
    ],
)
def test_next_kernel_serves_if_the_cpu_lies_about_tiles(monkeypatch, found, reason):
    """The CPU reports AMX, and the operating system refuses it or the sums are wrong."""
    monkeypatch.delenv(_kernel_selection.CHOICE, raising=False)
    monkeypatch.setattr(_kernel_selection, "_test_once", lambda _: None)
    next_kernel = next(
        library for name in KERNELS_ON_VECTORS if (library := _kernel_selection._library(name)) and library.supported
    )
    for name, value in {"supported": True, **found}.items():
        own = getattr(Library, name).fget
        monkeypatch.setattr(
            Library, name, property(lambda library, own=own, value=value: value if library.tiles else own(library))
        )
    library, passed_over = _kernel_selection.select()

    assert library.kernel == next_kernel.kernel
    assert passed_over == (f"amx: {reason}",)
    title = f"native ({library.kernel}; amx: {reason})"
    assert Native(library, folded("bert", "qa"), passed_over).title == title


def test_named_kernel_whose_instructions_the_cpu_lacks_gives_a_reason(monkeypatch):
    own = best().kernel
    monkeypatch.setenv(_kernel_selection.CHOICE, own)
    monkeypatch.setattr(Library, "supported", property(lambda library: library.kernel not in (own, "amx")))
    library, passed_over = _kernel_selection.select()

    assert library is None or library.kernel != own
    assert passed_over == (f"{own}: the CPU lacks its instructions",)


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("avx1024", f"{_kernel_selection.CHOICE} names no kernel"),
        (
            "neon" if sys.platform == "linux" and os.uname().machine == "x86_64" else "avx2",
            "it is not compiled for this platform",
        ),
    ],
)
def test_named_kernel_that_is_not_there_gives_a_reason(monkeypatch, named, reason):
    best()
    monkeypatch.delenv(_kernel_selection.CHOICE, raising=False)
    own = _kernel_selection.select().library.kernel
    monkeypatch.setenv(_kernel_selection.CHOICE, named)
    library, passed_over = _kernel_selection.select()

    assert library.kernel == own
    assert passed_over == (f"{named}: {reason}",)


SMALL_SIGNAL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(4096)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, 4096)), None) == 0
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.engines._matrices import PRECISIONS
library, passed_over = _kernel_selection.select()
print(library.kernel, passed_over)
"""


@has_amx
def test_refused_permission_selects_the_next_kernel():
    """Linux refuses tiles to a process with a signal stack that cannot hold them."""
    environment = {name: value for name, value in os.environ.items() if name != _kernel_selection.CHOICE}
    result = subprocess.run(
        [sys.executable, "-c", SMALL_SIGNAL_STACK],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert result.stdout == "avx512bf16 ('amx: the operating system does not permit AMX tiles',)\n", result.stderr


SECCOMP = """
import ctypes, struct, sys
from swiftlet_serve.engines import _kernel_selection
from swiftlet_serve.engines._matrices import PRECISIONS

ARCH_PRCTL, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 158, 38, 22, 2
program = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),  # load the number of the system call
        (0x15, 0, 1, ARCH_PRCTL),
        (0x06, 0, 0, 0x00050000 | int(sys.argv[1])),  # return this error
        (0x06, 0, 0, 0x7FFF0000),  # allow all others
    )
)
memory = ctypes.create_string_buffer(program, len(program))
descriptor = ctypes.create_string_buffer(struct.pack("HL", len(program) // 8, ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, descriptor, 0, 0) == 0, ctypes.get_errno()
amx = _kernel_selection._library("amx")
print(amx.permitted)
if not amx.permitted:
    library, passed_over = _kernel_selection.select()
    print(library.kernel, passed_over)
"""


@has_amx_kernel
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, 0])
def test_filter_of_system_calls_decides_on_tiles(error):
    """With error 0 the filter skips the system call and says that it succeeded: the kernel relies on the answer."""
    environment = {name: value for name, value in os.environ.items() if name != _kernel_selection.CHOICE}
    result = subprocess.run(
        [sys.executable, "-c", SECCOMP, str(error)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    if error:
        next_kernel = next(
            one for name in KERNELS_ON_VECTORS if (one := _kernel_selection._library(name)) and one.supported
        )
        has = bool((one := _kernel_selection._library("amx")) and one.supported)
        passed_over = ("amx: the operating system does not permit AMX tiles",) if has else ()
        assert result.stdout == f"False\n{next_kernel.kernel} {passed_over}\n", result.stderr
    else:
        assert result.stdout == "True\n", result.stderr


class SignalStack(ctypes.Structure):
    """`stack_t` in sigaltstack(2)."""

    _fields_ = (("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def move(thread: int) -> None:
    """Moves a thread to another core, if there is one."""
    allowed = os.sched_getaffinity(0)
    try:
        for core in allowed:
            os.sched_setaffinity(thread, {core})
        os.sched_setaffinity(thread, allowed)
    except ProcessLookupError:  # the thread has ended
        pass


INTERRUPTIONS = ["signal", "signal on a stack of its own", "move"]


@pytest.mark.parametrize("interruption", first(INTERRUPTIONS, "signal on a stack of its own", "move"))
def test_interruptions_change_no_result(interruption):
    """The operating system saves and restores the tiles around a signal handler, and when a thread moves.

    `faulthandler` runs its handlers on a stack of their own.
    """
    network = Native(best(), folded("bert", "qa"))
    expected = [row.tobytes() for row in network.run(BATCH)]
    results: list[list[bytes]] = []
    finished, released = threading.Event(), threading.Event()

    memory = ctypes.create_string_buffer(1 << 16)  # for the state of every register, also of the tiles

    def compute() -> None:
        if interruption == "signal on a stack of its own":
            stack = SignalStack(ctypes.addressof(memory), 0, len(memory))
            assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
        results.extend([row.tobytes() for row in network.run(BATCH)] for _ in range(500))
        finished.set()
        released.wait()  # a signal to a thread that has ended is undefined

    handled: list[int] = []
    moves: list[int] = []
    earlier = signal.signal(signal.SIGUSR2, lambda *_: handled.append(1))
    thread = threading.Thread(target=compute, daemon=True)
    try:
        thread.start()
        while not finished.is_set() and thread.is_alive():
            if interruption == "move":
                move(thread.native_id)
                moves.append(1)
            else:
                signal.pthread_kill(thread.ident, signal.SIGUSR2)
    finally:
        released.set()
        thread.join()
        signal.signal(signal.SIGUSR2, earlier)

    assert moves if interruption == "move" else handled
    assert results == [expected] * 500
