"""Child processes of the server: how it starts, restarts and reaps them, and how they begin and end with it.

A child runs a module with this interpreter. It is spawned, not forked, and reads its configuration as JSON from its
standard input: an argument would show the settings, and possibly a password, in the list of processes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.process_setup import hold_signals, ignore_signals, set_up_process, signal_name

BACK_OFF_S: Final = (0.1, 0.5, 2.0, 5.0, 10.0)  # delays between attempts to start a process; the last one repeats
REAP_S: Final = 5.0  # for a process that was killed, or has closed its connections, to end
PR_SET_PDEATHSIG: Final = 1


def make_spawner() -> ThreadPoolExecutor:
    """Returns the thread that starts children. It must live as long as they do.

    Linux kills a child when the thread that started it ends (PR_SET_PDEATHSIG).
    """
    return ThreadPoolExecutor(1, "spawner", hold_signals)


def back_off_s(failures: int) -> float:
    """Returns the delay before the next attempt to start a process, after so many failures in a row."""
    return BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1]


def exit_text(status: int | None) -> str:
    """Returns the end of a sentence about a process that ended; a negative status is that of a signal."""
    if status is None or status >= 0:
        return f"with the exit status {status}"
    return f"by signal {signal_name(-status)}"


class ChildProcess:
    """A child process."""

    def __init__(
        self, name: str, module: str, config: object, descriptors: Sequence[int], environment: Mapping[str, str]
    ) -> None:
        """Spawns the process.

        Args:
            name: what the process is, for messages.
            module: the module that it runs.
            config: its configuration, as values for JSON.
            descriptors: the file descriptors that it inherits.
            environment: its environment variables beside those of this process.

        Raises:
            SetupError: the system cannot start the process.
        """
        try:
            self._popen = subprocess.Popen(  # noqa: S603  # this interpreter, with arguments of ours only
                [sys.executable, "-P", "-m", module],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))} | dict(environment),
                stdin=subprocess.PIPE,
                pass_fds=descriptors,
                process_group=0,  # Ctrl+C in a terminal must reach the server only
            )
        except OSError as error:
            raise SetupError(f"The {name} process cannot be started: {error.strerror}.") from error
        assert self._popen.stdin is not None  # noqa: S101  # for the type checker
        with suppress(OSError), self._popen.stdin as stdin:  # a process that has died already is noticed later
            stdin.write(json.dumps([os.getpid(), config]).encode())

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative if a signal ended the process. None until the process is reaped."""
        return self._popen.returncode

    def kill(self) -> None:
        """Kills the process."""
        self._popen.kill()

    def reap(self, timeout_s: float = REAP_S) -> bool:
        """Waits until the process has ended. Returns False if it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self.exit_status is not None


def begin() -> Any:
    """Sets up this process as a child, and returns its configuration.

    From then on the process ignores signals for the server, and dies with its parent, even if it hangs in a lock.
    """
    ignore_signals()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    message = sys.stdin.buffer.read()
    parent_pid, config = json.loads(message or "[0, null]")
    if os.getppid() != parent_pid:  # the parent died before the call above
        os._exit(1)
    set_up_process()
    return config
