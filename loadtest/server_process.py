"""Servers in processes of their own, and the CPU time and memory that they take."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

ROOT = Path(__file__).parent.parent
STAND_IN = Path(__file__).parent / "stand_in"
STOP_S = 60.0
POLL_S = 0.25
IDLE_SHARE = 0.2  # of a core; a process that takes less is idle
ROLES: Final = {"front_main": "fronts", "worker_main": "engine"}


def process_tree(pid: int) -> list[int]:
    """Returns the ids of a process and of its descendants, oldest first."""
    pids = [pid]
    for parent in pids:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            pids += map(int, task.read_text().split())
    return pids


def resident_kib(pid: int) -> int:
    """Returns the resident memory of a process and its descendants."""
    texts = (Path(f"/proc/{process}/status").read_text() for process in process_tree(pid))
    return sum(int(match[1]) for text in texts if (match := re.search(r"VmRSS:\s+(\d+)", text)))


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of a process and its descendants so far, including those that have ended."""
    fields = (Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split() for process in process_tree(pid))
    return sum(int(ticks) for field in fields for ticks in field[11:15]) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pid: int) -> None:
    """Waits until a process and its descendants are idle. Some servers continue work after their clients have left."""
    before, now = -math.inf, cpu_seconds(pid)
    while now - before > IDLE_SHARE * POLL_S:
        time.sleep(POLL_S)  # the system sends no event when a process becomes idle
        before, now = now, cpu_seconds(pid)


@contextmanager
def module_server(module: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """Runs a module that prints its URL once it listens. Yields the URL and the process id.

    Raises:
        SystemExit: the module ended without a URL.
    """
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command, environment = [sys.executable, "-m", module, *arguments], os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = _stdout(process).readline().strip()
            if not url:
                raise SystemExit(f"{module} ended with status {process.wait()}")
            yield url, process.pid
        finally:
            for pid in process_tree(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True, eq=False)
class ServerProcess:
    """A Swiftlet server that accepts requests."""

    process: subprocess.Popen[str]
    port: int
    log: IO[str]
    admin_port: int | None = None
    grpc_address: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def logged(self) -> str:
        """Returns the whole log."""
        self.log.seek(0)
        return self.log.read()


def roles(pid: int) -> dict[str, list[int]]:
    """Returns the ids of a server's processes by their roles. Those of other servers are all `server`."""
    processes: dict[str, list[int]] = {"server": [pid], "fronts": [], "engine": []}
    for child in process_tree(pid)[1:]:
        command = Path(f"/proc/{child}/cmdline").read_text()
        processes[next((role for module, role in ROLES.items() if module in command), "server")].append(child)
    return processes


def cpu_s(pids: list[int]) -> float:
    """Returns the CPU time of processes so far, in seconds."""
    threads = [thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(1e-9 * int(thread.read_text().split()[0]) for thread in threads)


def cpu_by_role(pid: int) -> dict[str, float]:
    """Returns the CPU time that a server's processes have taken so far, in seconds, by their roles."""
    return {role: cpu_s(ids) for role, ids in roles(pid).items()}


@contextmanager
def serving(
    models: Sequence[str | Path],
    engine: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[ServerProcess]:
    """Serves these models, or the bundled ones if the list is empty, on a free port. Kills the server at the end.

    The paths in PYTHONPATH come first, also for the server's own processes. A `sitecustomize.py` there hides the one
    that registers the engine `stand_in`.

    Raises:
        SystemExit: the server did not start.
    """
    command = [sys.executable, "-m", "swiftlet_serve", "serve", "--port", str(port), "--engine", engine]
    command += [*(["--models", ",".join(map(str, models))] if models else []), *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    paths = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(STAND_IN), str(ROOT)])
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=inherited | {"PYTHONPATH": paths} | dict(environment or {}),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            announced = _stdout(process).readline()
            ports = re.findall(r"https?://\S+?:(\d+)", announced)
            if not ports:
                log.seek(0)
                raise SystemExit(f"The server did not start:\n{log.read()}")
            grpc = re.search(r"gRPC port (\S+)", announced)
            yield ServerProcess(
                process, int(ports[0]), log, int(ports[1]) if ports[1:] else None, grpc[1] if grpc else None
            )
        finally:
            process.kill()


def _stdout(process: subprocess.Popen[str]) -> IO[str]:
    if process.stdout is None:
        raise ValueError("The process has no pipe.")
    return process.stdout
