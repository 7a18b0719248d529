"""Entry point of a worker process: loads its models and runs one batch at a time on each connection.

The parent can have models loaded and unloaded while calls run. Each message on the control socket is a line of JSON:

    parent ─▶ worker    {"load": index, "paths": directories, "weights": files} or {"unload": index}
    worker ─▶ parent    the reports of all models, or {"index", "kind", "message"} if a model could not be loaded

An index never means another model later. The parent unloads a model after its last call.

Workers share the weights of a model, if its engine can. The first one puts them into sealed files and names these in
its report. The parent keeps them open and offers them to later workers.

`supervisor` starts the process and ends it with SIGKILL. The process ignores SIGHUP, SIGINT and SIGTERM, because the
parent may have calls to finish. It exits by itself as soon as the parent is gone, for any reason.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve.errors import SetupError, log_exception
from swiftlet_serve.machine import child_process, memory
from swiftlet_serve.machine.cores import physical_cores
from swiftlet_serve.machine.sealed_files import SealedFiles
from swiftlet_serve.telemetry.logging_setup import QueuedLogHandler
from swiftlet_serve.types import Cost, TimedCall
from swiftlet_serve.workers import golden, messages
from swiftlet_serve.workers.hosted_model import EngineModel, host_model, kernel_faults, run_timed, runtime_title
from swiftlet_serve.workers.signature import open_signed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker process, which it reads as JSON."""

    control_fd: int  # a `Reporter` sends here; end of file means that the parent is gone
    connection_fds: Sequence[int]  # calls arrive and results leave here, one at a time on each
    engine: str
    cores: int  # that all calls may use together
    models: Mapping[str, Sequence[str]]  # directories of artifacts that share a trunk, by index (in JSON, a text)
    log_level: str
    log_format: str
    signer_key: str | None = None  # a file with the key that must have signed each artifact
    weights: Mapping[str, Sequence[str]] = field(default_factory=dict)  # paths of sealed files, by index


@dataclass(frozen=True)
class ModelReport:
    """Description of one loaded model, sent to the parent as JSON."""

    index: int  # that calls name the model by
    name: str  # of the first model, if several share a trunk
    cost: Cost
    timed_calls: Sequence[TimedCall]
    probe: Sequence[Sequence[int]]  # an encoding that the engine must be able to run: ids, token types, focus
    runtime: str  # the engine's title
    kernel_faults: int  # found in this process, according to the engine
    weights: Sequence[int] = ()  # descriptors of sealed files, if the process made one since the report before

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ModelReport:
        """Returns the report whose JSON object is `fields`."""
        timed_calls = [TimedCall(*call) for call in fields["timed_calls"]]
        runtime, faults = str(fields["runtime"]), int(fields["kernel_faults"])
        cost = Cost(**fields["cost"])
        about = runtime, faults, [*map(int, fields["weights"])]
        return cls(int(fields["index"]), fields["name"], cost, timed_calls, fields["probe"], *about)


class Models:
    """The loaded models by index, and their reports.

    The reports are sent after each change and after each wrong sum. Wrong sums are rare and affect the runtime of
    every model. The results of calls therefore hold neither.
    """

    def __init__(self, control: socket.socket, engine: str, cores: int, signer_key: Path | None = None) -> None:
        """Creates an empty collection.

        Args:
            control: the socket that the reports are sent over.
            engine: the name of the engine.
            cores: that all calls may use together.
            signer_key: as in `open_signed`.
        """
        self.hosted: dict[int, EngineModel] = {}
        self._reports: dict[int, ModelReport] = {}
        self._files: dict[int, SealedFiles] = {}  # by index; the parent opens them by their descriptors here
        self._control, self._engine, self._cores, self._signer_key = control, engine, cores, signer_key
        self._kernel_faults = 0
        self._lock = threading.Lock()

    def load(self, index: int, paths: Sequence[str], weights: Sequence[str] = ()) -> None:
        """Loads a model, or several that share a trunk, and replays the golden answers.

        `weights` are the paths of sealed files that may have its weights.

        Raises:
            ArtifactError, SetupError: as `open_signed` and `host_model`.
        """
        artifacts = [open_signed(Path(path), self._signer_key) for path in paths]
        artifact, files = artifacts[0], SealedFiles(weights)
        try:
            with memory.heap_for_loading():
                hosted, _ = host_model(artifacts, self._engine, self._cores, files)
        except MemoryError:
            files.close()
            sizes = (file.size for artifact in artifacts for file in artifact.manifest.files.values())
            needed = memory.needed_to_load(sum(sizes))
            raise SetupError(
                f"{artifact.path.name}: there is not enough memory to load it. Loading takes up to "
                f"{needed // memory.MEBIBYTE} MiB."
            ) from None
        except BaseException:
            files.close()
            raise
        example = golden.golden_inputs(artifact)[0]
        probe = [numbers.tolist() for numbers in (example.input_ids, example.token_type_ids, example.focus)]
        name, engine = artifact.manifest.name, hosted.engine
        about = runtime_title(engine), kernel_faults(engine)
        report = ModelReport(index, name, engine.cost, hosted.timed_calls, probe, *about, files.new)
        with self._lock:
            self.hosted[index], self._reports[index], self._files[index] = hosted, report, files

    def unload(self, index: int) -> None:
        """Releases a model, which no call uses any more."""
        with self._lock:
            hosted = self.hosted.pop(index)
            del self._reports[index]
        hosted.engine.close()
        self._files.pop(index).close()
        memory.release_free_memory()

    def send(self) -> None:
        """Sends the reports with the current runtimes."""
        with self._lock:
            self._send()

    def send_if_wrong(self, model: EngineModel) -> None:
        """Sends the reports if the model's engine has found a wrong sum since they were last sent."""
        if kernel_faults(model.engine) <= self._kernel_faults:
            return
        with self._lock:
            if kernel_faults(model.engine) > self._kernel_faults:  # no other thread has sent it
                self._send()

    def _send(self) -> None:
        reports = [
            replace(report, runtime=runtime_title(model.engine), kernel_faults=kernel_faults(model.engine))
            for report, model in zip(self._reports.values(), self.hosted.values(), strict=True)
        ]
        self._kernel_faults = max((report.kernel_faults for report in reports), default=self._kernel_faults)
        _send_json(self._control, [asdict(report) for report in reports])
        self._reports = {report.index: replace(report, weights=()) for report in reports}


def main() -> None:
    """Loads the models, reports them or an error, and serves until the parent is gone."""
    config = WorkerConfig(**child_process.begin())
    faulthandler.enable()  # prints the Python stack if native code crashes
    logs = QueuedLogHandler(config.log_level.upper(), kind=config.log_format)  # a full pipe must not stop the calls
    control = socket.socket(fileno=config.control_fd)
    key = Path(config.signer_key) if config.signer_key else None
    models = Models(control, config.engine, min(config.cores, physical_cores()), key)
    try:
        for index, paths in config.models.items():
            models.load(int(index), paths, config.weights.get(index, ()))
    except (ArtifactError, SetupError) as error:
        _send_json(control, {"kind": type(error).__name__, "message": str(error)})
        logs.exit(1)
    for descriptor in config.connection_fds:
        connection = socket.socket(fileno=descriptor)
        threading.Thread(target=_serve, args=(connection, models, logs), daemon=True).start()
    models.send()
    with control.makefile("rb") as commands:
        for command in commands:
            _run_command(json.loads(command), models, control)
    os._exit(0)  # the parent is gone, so unfinished calls have no reader


def _run_command(command: Mapping[str, Any], models: Models, control: socket.socket) -> None:
    """Loads or unloads a model, and reports the result."""
    if "unload" in command:
        models.unload(command["unload"])
    else:
        try:
            models.load(command["load"], command["paths"], command["weights"])
        except (ArtifactError, SetupError) as error:
            _send_json(control, {"index": command["load"], "kind": type(error).__name__, "message": str(error)})
            return
    models.send()


def _serve(connection: socket.socket, models: Models, logs: QueuedLogHandler) -> None:
    """Runs calls until the parent is gone. Any other failure ends the process, whose state is then unknown."""
    try:
        while True:
            body = _receive(connection, messages.body_bytes(_receive(connection, messages.HEADER_BYTES)))
            id_, index, batch = messages.unpack_call(body)
            model = models.hosted[index]
            result = run_timed(model, batch)
            models.send_if_wrong(model)
            connection.sendall(messages.pack_result(id_, result))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:
        log_exception(log, "worker process failed unexpectedly and exits", error)
        logs.exit(1)


def _receive(connection: socket.socket, size: int) -> bytearray:
    message = bytearray(size)
    left = memoryview(message)
    while left:
        if not (received := connection.recv_into(left, len(left), socket.MSG_WAITALL)):
            raise EOFError
        left = left[received:]  # a process that is stopped and continued receives a part
    return message


def _send_json(control: socket.socket, value: object) -> None:
    control.sendall(json.dumps(value).encode() + b"\n")


if __name__ == "__main__":
    main()
