"""The parent's side of one worker process: starts it, has it load models, receives its reports and kills it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine import memory
from swiftlet_serve.machine.child_process import ChildProcess, exit_text
from swiftlet_serve.types import EARLIER_WRONG_SUMS
from swiftlet_serve.workers.worker_calls import WorkerCalls, WorkerConnection
from swiftlet_serve.workers.worker_main import ModelReport, WorkerConfig

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S: Final = 300.0
LOST_WHILE_LOADING: Final = "The worker process ended while it loaded the model. The log has its exit status."


class WorkerProcess(ChildProcess):
    """A worker process. Its life: spawned, loaded, connected to an event loop, and in the end killed or dead."""

    def __init__(
        self,
        engine: str,
        models: Mapping[int, Sequence[Path]],
        size: int,
        log_level: str,
        log_format: str,
        module: str,
        environment: Mapping[str, str],
        on_lost: Callable[[WorkerProcess], None],
        on_reports: Callable[[WorkerProcess], None],
        *,
        signer_key: Path | None = None,
        earlier_kernel_faults: int = 0,
        weights: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        """Spawns the process with models by index, each a group that shares a trunk.

        Calls `on_lost` once, when the process is killed or found dead.

        Calls `on_reports` when the connected process has sent reports. Its engines avoid tiles if there are
        `earlier_kernel_faults` of other processes. `environment` extends the environment variables of this process.
        `signer_key` is as in `open_signed`. `weights` has the paths of sealed files, by the index of the model.

        Raises:
            SetupError: the system cannot start the process.
        """
        self.reports: dict[int, ModelReport] = {}  # the latest, by the index of the model
        self._loading: tuple[int, asyncio.Future[None]] | None = None  # a model that the connected process loads
        self._unloading: set[int] = set()
        self._bytes = sum(_file_bytes(path) for paths in models.values() for path in paths)
        self.avoids_tiles = earlier_kernel_faults > 0
        self._kernel_faults_taken = 0
        self._new_weights: dict[int, Sequence[int]] = {}
        self._on_reports = on_reports
        self._received = b""  # the beginning of a line of JSON
        self._loop: asyncio.AbstractEventLoop | None = None  # while it watches for reports
        self._on_lost = on_lost
        self._lost = False
        self.calls = WorkerCalls(self._on_failure, self._on_overdue)
        self._control, control = socket.socketpair()
        # The service runs `size` calls at a time. One more connection is for the probe of the circuit breaker.
        pairs = [socket.socketpair() for _ in range(size + 1)]
        self._sockets = [near for near, _ in pairs]
        inherited = [control, *(far for _, far in pairs)]
        control_fd, *connection_fds = descriptors = [end.fileno() for end in inherited]
        directories = {str(index): [*map(str, paths)] for index, paths in models.items()}
        key = None if signer_key is None else str(signer_key)
        offered = {str(index): paths for index, paths in (weights or {}).items()}
        config = WorkerConfig(
            control_fd, connection_fds, engine, size, directories, log_level, log_format, key, offered
        )
        if self.avoids_tiles:
            environment = {**environment, EARLIER_WRONG_SUMS: str(earlier_kernel_faults)}
        try:
            super().__init__("worker", module, asdict(config), descriptors, environment)
        except SetupError:
            self._disconnect()
            raise
        finally:
            for end in inherited:
                end.close()

    def load(self) -> None:
        """Blocks until the process has loaded its models. Then `reports` has one report per model.

        Raises:
            ArtifactError, SetupError: the process cannot load a model. The message is the worker's.
        """
        try:
            self._control.settimeout(LOAD_TIMEOUT_S)
            with self._control.makefile("rb") as reader:
                line = reader.readline()
        except TimeoutError:
            raise SetupError(f"The worker process did not load the models within {LOAD_TIMEOUT_S:g} s.") from None
        except OSError:  # the process was killed
            line = b""
        if not line.endswith(b"\n"):
            self.reap()
            raise SetupError(
                f"The worker process ended before the models were loaded, {explain_exit(self.exit_status, self._bytes)}"
            )
        report = json.loads(line)
        if isinstance(report, dict):
            raise (ArtifactError if report["kind"] == "ArtifactError" else SetupError)(report["message"])
        self._take_reports(_by_index(report))

    async def connect(self) -> None:
        """Attaches the connections to the running event loop.

        Raises:
            SetupError: the process has died.
        """
        loop = asyncio.get_running_loop()
        while self._sockets and not self._lost:
            await self.calls.connect(self._sockets.pop())
        if self._lost:
            raise SetupError("The worker process ended after the models were loaded. The log has its exit status.")
        self._control.setblocking(False)
        self._loop = loop
        loop.add_reader(self._control, self._receive_reports)

    async def load_model(self, index: int, paths: Sequence[Path], weights: Sequence[str] = ()) -> None:
        """Has the connected process load another model, or a group, while calls run. One at a time.

        `weights` has the paths of sealed files.

        Raises:
            ArtifactError, SetupError: the process cannot load the model, or was lost meanwhile.
        """
        if self._lost:
            raise SetupError(LOST_WHILE_LOADING)
        loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loading = index, loaded
        try:
            self._send_command({"load": index, "paths": [*map(str, paths)], "weights": weights})
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await loaded
        except TimeoutError:
            log.error("killing worker process %d: a model took too long to load", self.pid)  # noqa: TRY400  # no trace
            self.kill()
            raise SetupError(LOST_WHILE_LOADING) from None
        except asyncio.CancelledError:
            self.kill()  # it may report the model at any time, or never
            raise
        finally:
            self._loading = None

    def unload_model(self, index: int) -> None:
        """Has the connected process release a model, whose last call has ended."""
        if not self._lost:
            self._unloading.add(index)
            self._send_command({"unload": index})

    def kill(self, suspects: Collection[WorkerConnection] = ()) -> None:
        """Kills the process. Running calls fail with `WorkerLost`, as suspects on the connections named."""
        if self._lost:
            return
        self._lost = True
        super().kill()
        self._receive_reports()  # that it sent before it was lost
        self._stop_watching()
        self.calls.abort(suspects)
        if self._loading is not None and not self._loading[1].done():
            self._loading[1].set_exception(SetupError(LOST_WHILE_LOADING))
        self._disconnect()
        self._on_lost(self)

    def take_kernel_faults(self) -> int:
        """Returns how many wrong sums the process has reported since the last call of this method."""
        # Each counts for the whole process.
        reported = max((report.kernel_faults for report in self.reports.values()), default=0)
        new = max(0, reported - self._kernel_faults_taken)
        self._kernel_faults_taken += new
        return new

    def take_weights(self) -> Mapping[int, Sequence[int]]:
        """Returns the process's descriptors of sealed files, by model, that it has named since the last call."""
        new, self._new_weights = self._new_weights, {}
        return new

    def _take_reports(self, reports: dict[int, ModelReport]) -> None:
        self.reports = reports
        self._new_weights |= {index: report.weights for index, report in reports.items() if report.weights}

    def _on_failure(self) -> None:
        """Handles a dead process and an invalid result. Every running call may have been the cause."""
        if not self._lost:
            log.error("worker process %d died during %d calls", self.pid, len(self.calls.running))
            self.kill(suspects=self.calls.running)

    def _on_overdue(self, calls: Collection[WorkerConnection]) -> None:
        log.error("killing worker process %d: %d calls exceeded their time limit", self.pid, len(calls))
        self.kill(calls)

    def _send_command(self, command: Mapping[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(command).encode() + b"\n")  # far smaller than the socket's buffer
        except OSError:
            self._on_failure()

    def _receive_reports(self) -> None:
        """Receives what the connected process has sent since it was loaded."""
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
                self._take_message(json.loads(line))
            except Exception:  # the process may send anything
                self._on_failure()
                return

    def _take_message(self, message: Any) -> None:
        """Takes the reports of all models, or the reason why a model could not be loaded.

        Raises ValueError, KeyError or TypeError if the message is neither.
        """
        index, loaded = self._loading or (None, None)
        if isinstance(message, dict):
            if message["index"] != index or loaded is None or loaded.done():
                raise ValueError("no such model was being loaded")
            kind = ArtifactError if message["kind"] == "ArtifactError" else SetupError
            loaded.set_exception(kind(str(message["message"])))
            return
        reports = _by_index(message)
        missing = self.reports.keys() - reports.keys()
        if missing - self._unloading or reports.keys() - self.reports.keys() - {index}:
            raise ValueError("the reports do not match the models")
        self._take_reports(reports)
        self._unloading -= missing
        if loaded is not None and index in reports and not loaded.done():
            loaded.set_result(None)
        self._on_reports(self)

    def _stop_watching(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._control)
            self._loop = None

    def _disconnect(self) -> None:
        for end in (self._control, *self._sockets):
            end.close()


def explain_exit(status: int | None, artifact_bytes: int, cgroup: memory.CgroupMemory | None = None) -> str:
    """Returns the end of a sentence about a process that ended by itself, and what to do.

    Args:
        status: the exit status, negative if a signal ended the process. None: it has not ended yet.
        artifact_bytes: the size of its artifacts.
        cgroup: the memory of this process's cgroup. None: it is read.
    """
    reason = f"{exit_text(status)}. "
    if status is None or status >= 0:
        return reason + "The lines of the log before this one have the cause."
    if status != -signal.SIGKILL:
        return reason + "That is a fault in native code. The log may have the stack."
    with_spare, alone = (memory.needed_to_serve(artifact_bytes, spare=spare) >> 20 for spare in (True, False))
    return (
        f"{reason}The likely cause is the memory limit: {memory.cgroup_memory() if cgroup is None else cgroup}. "
        f"These artifacts have {artifact_bytes >> 20} MiB and need a limit of {with_spare} MiB, or of {alone} MiB "
        "with spare_engine set to false."
    )


def _file_bytes(directory: Path) -> int:
    with suppress(OSError):  # the process will say so
        return sum(entry.stat().st_size for entry in os.scandir(directory))
    return 0


def _by_index(reports: Any) -> dict[int, ModelReport]:
    parsed = map(ModelReport.from_json, reports)
    return {report.index: report for report in parsed}
