"""Swiftlet as a process, for as long as a block lasts."""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
STAND_IN = Path(__file__).parent / "stand_in"
STOP_S = 60.0
LOOK_S = 0.25  # between two looks at what a server does
IDLE_SHARE = 0.2  # of a core


def family(pid: int) -> list[int]:
    """A process and those that it started, oldest first."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def resident_kib(pid: int) -> int:
    """The resident memory of a process and of those that it started."""
    lines = (Path(f"/proc/{one}/status").read_text() for one in family(pid))
    return sum(int(found[1]) for text in lines if (found := re.search(r"VmRSS:\s+(\d+)", text)))


def settle(pid: int) -> None:
    """Waits until a process and those that it started have nothing to do: some work on for callers who have gone."""
    before, now = -math.inf, cpu_seconds(pid)
    while now - before > IDLE_SHARE * LOOK_S:
        time.sleep(LOOK_S)  # nobody is told when a process falls idle: what it took has to be looked at
        before, now = now, cpu_seconds(pid)


def cpu_seconds(pid: int) -> float:
    """The CPU time that a process and those that it started have taken so far."""
    fields = (Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family(pid))
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


@contextmanager
def announced(script: str, *arguments: str) -> Iterator[tuple[str, int]]:
    """A server of this folder that prints its address once it listens: that, and its process."""
    command = [sys.executable, "-m", script, *arguments]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            address = process.stdout.readline().strip()
            if not address:
                raise SystemExit(f"{script} ended with status {process.wait()}")
            yield address, process.pid
        finally:
            process.kill()


@dataclass(frozen=True, eq=False)
class Served:
    """A server that answers."""

    process: subprocess.Popen[str]
    port: int
    log: IO[str]
    admin_port: int | None = None

    def family(self) -> list[int]:
        """Its process and those that it started, oldest first."""
        return family(self.process.pid)

    def resident_kib(self) -> int:
        """The resident memory of all its processes."""
        return resident_kib(self.process.pid)

    def stop(self) -> int:
        """Tells it to stop, and says with which status it did."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def said(self) -> str:
        """Everything it logged."""
        self.log.seek(0)
        return self.log.read()


@contextmanager
def serving(
    models: Sequence[str | Path],
    engine: str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    port: int = 0,
) -> Iterator[Served]:
    """A server of these models, or of the embedded ones, on a port that the system chose; it is ended in any case."""
    command = [sys.executable, "-m", "swiftlet_serve.service", "serve", "--port", str(port), "--engine", engine]
    command += [*(["--models", ",".join(map(str, models))] if models else []), *options]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    paths = os.pathsep.join([str(STAND_IN), str(ROOT)])
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
            assert process.stdout is not None  # noqa: S101  # it is a pipe
            found = re.findall(r"http://\S+?:(\d+)", process.stdout.readline())
            if not found:
                log.seek(0)
                raise SystemExit(f"the server did not start:\n{log.read()}")
            yield Served(process, int(found[0]), log, int(found[1]) if found[1:] else None)
        finally:
            process.kill()
