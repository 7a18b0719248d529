"""The parent's side of one worker process: starts it, sends batches, enforces time limits and kills it.

    WorkerProcess ─▶ WorkerConnection, one per core ═══ socket pair ═══ a thread of the worker process ─▶ Engine

The process is spawned, not forked. `codec` describes the messages.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from swiftlet_serve.models.artifact import ArtifactError
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.types import EARLIER_WRONG_SUMS, BatchResult
from swiftlet_serve.service.workers import codec
from swiftlet_serve.service.workers.worker_connection import WorkerConnection
from swiftlet_serve.service.workers.worker_main import ModelReport, WorkerConfig

log = logging.getLogger(__name__)

TICK_S: Final = 0.05  # resolution of the time limits of calls
LOAD_TIMEOUT_S: Final = 300.0


class WorkerProcess:
    """A worker process. Its life: spawned, loaded, connected to an event loop, and in the end killed or dead."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Path],
        size: int,
        log_level: str,
        log_format: str,
        module: str,
        on_lost: Callable[[WorkerProcess], None],
        on_wrong_sums: Callable[[WorkerProcess], None],
        *,
        earlier_wrong_sums: int = 0,
    ) -> None:
        """Spawns the process. Calls `on_lost` once, when the process is killed or found dead.

        Calls `on_wrong_sums` when the connected process reports wrong sums. `earlier_wrong_sums` were found by other
        processes: its engines are told.

        Raises:
            SetupError: the system cannot start the process.
        """
        self.reports: list[ModelReport] = []  # the latest, in the order of the models
        self.warned = earlier_wrong_sums > 0
        self._wrong_sums_taken = 0
        self._on_wrong_sums = on_wrong_sums
        self._received = b""  # the beginning of a line of JSON
        self._loop: asyncio.AbstractEventLoop | None = None  # while it watches for reports
        self._on_lost = on_lost
        self._lost = False
        self._call_ids = itertools.count()
        self._connections: list[WorkerConnection] = []
        self._idle: list[WorkerConnection] = []
        self._ticks_left: dict[WorkerConnection, int] = {}  # until the connection's call is overdue
        self._ticking = False
        self._control, control = socket.socketpair()
        # The service runs `size` calls at a time. One more connection is for the probe of the circuit breaker.
        pairs = [socket.socketpair() for _ in range(size + 1)]
        self._sockets = [near for near, _ in pairs]
        inherited = [control, *(far for _, far in pairs)]
        control_fd, *connection_fds = descriptors = [end.fileno() for end in inherited]
        paths = [str(path) for path in models]
        config = WorkerConfig(os.getpid(), control_fd, connection_fds, engine, paths, log_level, log_format)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        if self.warned:
            environment[EARLIER_WRONG_SUMS] = str(earlier_wrong_sums)
        try:
            self._popen = subprocess.Popen(  # noqa: S603  # this interpreter, with arguments from the settings only
                [sys.executable, "-P", "-m", module, json.dumps(asdict(config))],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                process_group=0,  # Ctrl+C in a terminal must reach the service only
            )
        except OSError as error:
            self._disconnect()
            raise SetupError(f"The worker process cannot be started: {error.strerror}.") from error
        finally:
            for end in inherited:
                end.close()

    def load(self) -> list[ModelReport]:
        """Blocks until the process has loaded its models. Returns one report per model, in the order given.

        Raises:
            ArtifactError, SetupError: the process cannot load a model. The message is the process's own.
        """
        try:
            self._control.settimeout(LOAD_TIMEOUT_S)
            with self._control.makefile("rb") as reader:
                line = reader.readline()
        except OSError:  # the time is up, or the process was killed
            line = b""
        if not line.endswith(b"\n"):
            raise SetupError("The worker process ended before the models were loaded. See its log messages.")
        report = json.loads(line)
        if isinstance(report, dict):
            raise (ArtifactError if report["kind"] == "ArtifactError" else SetupError)(report["message"])
        self.reports = [ModelReport.from_json(model) for model in report]
        return self.reports

    async def connect(self) -> None:
        """Attaches the connections to the running event loop.

        Raises:
            SetupError: the process has died.
        """
        loop = asyncio.get_running_loop()
        while self._sockets and not self._lost:
            _, connection = await loop.create_unix_connection(
                lambda: WorkerConnection(self._on_result, self._on_failure), sock=self._sockets.pop()
            )
            self._connections.append(connection)
            self._idle.append(connection)
        if self._lost:
            raise SetupError("The worker process ended after the models were loaded. See its log messages.")
        self._control.setblocking(False)
        self._loop = loop
        loop.add_reader(self._control, self._receive_reports)

    def run(self, model: int, encodings: Sequence[Encoding], timeout_s: float) -> asyncio.Future[BatchResult]:
        """Sends a batch over an idle connection. Requires at least one idle connection.

        The future fails with `WorkerLost` if the process dies, is killed, exceeds the time limit or sends an invalid
        result.
        """
        id_ = next(self._call_ids)
        message = codec.pack_call(id_, model, encodings)
        connection = self._idle.pop()
        self._ticks_left[connection] = math.ceil(timeout_s / TICK_S) + 1  # the current tick may be almost over
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return connection.send(message, id_, len(encodings))

    def kill(self, suspects: Collection[WorkerConnection] = ()) -> None:
        """Kills the process. Running calls fail with `WorkerLost`, as suspects on the connections named."""
        if self._lost:
            return
        self._lost = True
        self._popen.kill()
        self._receive_reports()  # that it sent before it was lost
        self._stop_watching()
        self._ticks_left.clear()
        for connection in self._connections:
            connection.abort(suspect=connection in suspects)
        self._disconnect()
        self._on_lost(self)

    def take_wrong_sums(self) -> int:
        """Returns how many wrong sums the process has reported since the last call of this method."""
        found = max((report.wrong_sums for report in self.reports), default=0)  # each counts for the whole process
        new = max(0, found - self._wrong_sums_taken)
        self._wrong_sums_taken += new
        return new

    def reap(self, timeout_s: float) -> bool:
        """Waits until a killed process has ended. Returns False if it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        return self.exit_status is not None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative if a signal ended the process. None until the process is reaped."""
        return self._popen.returncode

    def _on_result(self, connection: WorkerConnection) -> None:
        del self._ticks_left[connection]
        self._idle.append(connection)

    def _on_failure(self) -> None:
        """Handles a dead process and an invalid result. Every running call may have been the cause."""
        if not self._lost:
            log.error("worker process %d died during %d calls", self.pid, len(self._ticks_left))
            self.kill(suspects=set(self._ticks_left))

    def _receive_reports(self) -> None:
        """Receives what the connected process has sent since it was loaded: its reports again, after a wrong sum."""
        try:
            while self._loop is not None:
                if not (data := self._control.recv(1 << 16)):
                    self._stop_watching()
                self._received += data
        except BlockingIOError:
            pass
        except OSError:
            self._stop_watching()
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            try:
                reports = [ModelReport.from_json(model) for model in json.loads(line)]
            except Exception:  # the process may send anything
                reports = []
            if len(reports) != len(self.reports):
                self._on_failure()
                return
            self.reports = reports
            self._on_wrong_sums(self)

    def _stop_watching(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._control)
            self._loop = None

    def _tick(self) -> None:
        """Advances the time limits of all running calls by one tick.

        Counted ticks, unlike a clock, do not advance while this process or the machine is suspended.
        """
        self._ticking = False
        for connection in self._ticks_left:
            self._ticks_left[connection] -= 1
        if overdue := {connection for connection, ticks in self._ticks_left.items() if ticks < 0}:
            log.error("killing worker process %d: %d calls exceeded their time limit", self.pid, len(overdue))
            self.kill(overdue)
        elif self._ticks_left:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _disconnect(self) -> None:
        for end in (self._control, *self._sockets):
            end.close()
