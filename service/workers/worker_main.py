"""The engine process: hosts every model once, and runs as many calls at the same time as it has lines to its parent.

`service.workers.supervisor` starts it, and ends it with SIGKILL. It ends by itself as
soon as its parent is gone, whatever that died of. Being told to stop is its parent's business: it may have calls to
finish.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from swiftlet_serve.models.artifact import ArtifactError, open_artifact
from swiftlet_serve.service.errors import SetupError, log_exception
from swiftlet_serve.service.memory import give_back
from swiftlet_serve.service.telemetry import log_format
from swiftlet_serve.service.types import Cost, TimedCall
from swiftlet_serve.service.workers import codec, golden
from swiftlet_serve.service.workers.executor import HostedModel, host, timed

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Order:
    """What the process is to do; it travels as JSON."""

    parent: int  # process id
    control: int  # file descriptor: `Loaded` goes out on it, and at its end the parent is gone
    lines: Sequence[int]  # file descriptors: calls come in, answers go out, one at a time on each
    engine: str
    models: Sequence[str]  # directories of artifacts
    log_level: str
    log_format: str


@dataclass(frozen=True)
class Loaded:
    """What the process says of one model once all are loaded; it travels as JSON."""

    name: str
    cost: Cost
    timed: Sequence[TimedCall]
    trial: Sequence[Sequence[int]]  # an encoding that it must be able to answer: its ids, their types, its focus


def main() -> None:
    """Loads, says so or why not, and serves until the parent is gone."""
    order = Order(**json.loads(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _die_with(order.parent)
    faulthandler.enable()  # a crash of native code leaves the frames it was called from
    writer = logging.StreamHandler()
    writer.setFormatter(log_format.formatter(order.log_format))
    logging.basicConfig(level=order.log_level.upper(), handlers=[writer])
    control = socket.socket(fileno=order.control)
    models, loaded = [], []
    try:
        for path in order.models:
            artifact = open_artifact(Path(path))
            hosted, _ = host(artifact, order.engine)
            models.append(hosted)
            trial = [numbers.tolist() for numbers in vars(golden.encodings(artifact)[0]).values()]
            loaded.append(asdict(Loaded(artifact.manifest.name, hosted.engine.cost, hosted.timed, trial)))
    except (ArtifactError, SetupError) as error:
        _say(control, {"kind": type(error).__name__, "message": str(error)})
        sys.exit(1)
    give_back()
    for line in order.lines:
        threading.Thread(target=_serve, args=(socket.socket(fileno=line), models), daemon=True).start()
    _say(control, loaded)
    control.recv(1)
    os._exit(0)  # calls may be running; nobody waits for them


def _serve(line: socket.socket, models: Sequence[HostedModel]) -> None:
    """Answers calls until the parent is gone. Anything else that goes wrong ends the process: nothing is right then."""
    try:
        while True:
            call = _receive(line, codec.length_of(_receive(line, codec.HEAD_BYTES)))
            id_, model, batch = codec.unpack_call(call)
            line.sendall(codec.pack_answer(id_, timed(models[model], batch)))
    except (EOFError, OSError):
        os._exit(0)
    except BaseException as error:
        log_exception(log, "the engine process made a mistake", error)
        os._exit(1)


def _receive(line: socket.socket, size: int) -> bytearray:
    message = bytearray(size)
    if line.recv_into(message, size, socket.MSG_WAITALL) < size:
        raise EOFError
    return message


def _say(control: socket.socket, what: object) -> None:
    control.sendall(json.dumps(what).encode() + b"\n")


def _die_with(parent: int) -> None:
    """Has the system kill this process when its parent dies, where it can: even if the engine then hangs in a lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was quicker
        os._exit(1)


if __name__ == "__main__":
    main()
