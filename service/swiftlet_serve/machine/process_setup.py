"""The standard streams, the signals and the libraries of a process."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress
from typing import Final, TextIO

from swiftlet_serve.machine import memory

FOR_THE_SERVER: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})
SWITCH_INTERVAL_S: Final = 0.0005
"""Longest wait of a thread for another one to release the interpreter. With Python's 5 ms, a model that is being loaded
raised the 99th percentile of the latency by 40 percent; with this, by 15."""


def set_up_process() -> None:
    """Sets up the allocator, the interpreter and the libraries of a process that serves requests."""
    memory.limit_heap_growth()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # The tokenizer's own threads would compete with the engine's for the same cores, and make every request wait.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ["RUST_BACKTRACE"] = "0"  # a panic of a library is one line of the log, not a hundred


def open_standard_streams() -> None:
    """Opens the null device for each standard stream that is closed.

    Otherwise a socket would get its descriptor, and code that writes to the stream would write to a client.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free descriptor, which is this one
        if getattr(sys, name) is None:  # Python's own reaction
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", closefd=False))  # noqa: SIM115  # it stays open


def hold_signals() -> None:
    """Blocks signals that are for the server in this thread, and in the processes that it starts, from the first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_SERVER)


def ignore_signals() -> None:
    """Ignores signals that are for the server in a process that it has started."""
    for number in FOR_THE_SERVER:
        signal.signal(number, signal.SIG_IGN)


def is_writable(stream: TextIO) -> bool:
    """Returns whether a stream takes a few lines without waiting for its reader. A stream without a descriptor does."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):
        return True


def signal_name(number: int) -> str:
    """Returns a signal's number with its name, as `9 (SIGKILL)`."""
    with suppress(ValueError):
        return f"{number} ({signal.Signals(number).name})"
    return str(number)
