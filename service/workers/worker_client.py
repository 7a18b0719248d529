"""One engine process, as the service sees it: how it is started, asked, found dead or overdue, and ended.

    Process ─▶ a line for each core ═══ socket pair ═══ a thread of the engine process ─▶ Engine

It is started afresh rather than forked. What goes over the lines is described in `service.workers.codec`.
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
from typing import Final, cast

from swiftlet_serve.models.artifact import ArtifactError
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.types import BatchResult, Cost, TimedCall, WorkerLost
from swiftlet_serve.service.workers import codec
from swiftlet_serve.service.workers.worker_main import Loaded, Order

log = logging.getLogger(__name__)

TICK_S: Final = 0.05  # patience is counted in these
START_S: Final = 300.0  # after which a process that has not loaded is given up


class Process:
    """An engine process: spawned, then loaded, then attached to an event loop, and lost in the end."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Path],
        size: int,
        log_level: str,
        log_format: str,
        main: str,
        on_lost: Callable[[Process], None],
    ) -> None:
        """Spawns it. `on_lost` is called once, as soon as it is of no more use.

        Raises:
            SetupError: the system starts no more processes.
        """
        self._on_lost = on_lost
        self._lost = False
        self._numbers = itertools.count()
        self._lines: list[Line] = []
        self._free: list[Line] = []
        self._patience: dict[Line, int] = {}  # ticks that the call on a line may still take
        self._ticking = False
        self._control, control = socket.socketpair()
        # The service runs `size` calls at a time; the line more is for its probe.
        pairs = [socket.socketpair() for _ in range(size + 1)]
        self._sockets = [near for near, _ in pairs]
        lines = [far for _, far in pairs]
        handed = [end.fileno() for end in (control, *lines)]
        order = Order(os.getpid(), handed[0], handed[1:], engine, [str(path) for path in models], log_level, log_format)
        try:
            self._popen = subprocess.Popen(  # noqa: S603  # this interpreter, and nothing that anybody sent
                [sys.executable, "-P", "-m", main, json.dumps(asdict(order))],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=handed,
                process_group=0,  # ^C in a terminal is for the service alone
            )
        except OSError as error:
            self._disconnect()
            raise SetupError(f"The engine process cannot be started: {error.strerror}.") from error
        finally:
            for end in (control, *lines):
                end.close()

    def load(self) -> list[Loaded]:
        """Blocks until it has loaded its models; what it says of each, in the order given.

        Raises:
            ArtifactError, SetupError: it cannot; the sentence is the process's own.
        """
        try:
            self._control.settimeout(START_S)
            with self._control.makefile("rb") as reader:
                line = reader.readline()
        except OSError:  # time is up, or it was lost
            line = b""
        if not line.endswith(b"\n"):
            raise SetupError("The engine process ended before the models were loaded; the log may say why.")
        said = json.loads(line)
        if isinstance(said, dict):
            raise (ArtifactError if said["kind"] == "ArtifactError" else SetupError)(said["message"])
        return [
            Loaded(model["name"], Cost(**model["cost"]), [TimedCall(*call) for call in model["timed"]], model["trial"])
            for model in said
        ]

    async def attach(self) -> None:
        """Connects the lines to the running event loop.

        Raises:
            SetupError: it has died meanwhile.
        """
        loop = asyncio.get_running_loop()
        while self._sockets and not self._lost:
            made = await loop.create_unix_connection(lambda: Line(self._answered, self._died), sock=self._sockets.pop())
            self._lines.append(made[1])
            self._free.append(made[1])
        if self._lost:
            raise SetupError("The engine process ended as soon as the models were loaded; the log may say why.")

    def call(self, model: int, encodings: Sequence[Encoding], patience_s: float) -> asyncio.Future[BatchResult]:
        """Sends a batch down a line that is free, at once; there must be one.

        The future fails with `WorkerLost` where the process is lost before it has answered, or makes no sense.
        """
        number = next(self._numbers)
        message = codec.pack_call(number, model, encodings)
        line = self._free.pop()
        self._patience[line] = math.ceil(patience_s / TICK_S) + 1  # a tick may be about to end
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return line.ask(message, number, len(encodings))

    def lose(self, suspects: Collection[Line] = ()) -> None:
        """Kills the process; all calls that run are lost, those on `suspects` lines because of what they asked."""
        if self._lost:
            return
        self._lost = True
        self._popen.kill()
        self._patience.clear()
        for line in self._lines:
            line.cut(suspects=line in suspects)
        self._disconnect()
        self._on_lost(self)

    def reap(self, grace_s: float) -> bool:
        """Waits for the end of a process that was lost; says whether it has come."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(grace_s)
        return self.status is not None

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """How it has ended, negative where a signal ended it; None while it has not been reaped."""
        return self._popen.returncode

    def _answered(self, line: Line) -> None:
        """A call has ended, and its line is free."""
        del self._patience[line]
        self._free.append(line)

    def _died(self) -> None:
        """It has hung up, or talks nonsense. Nobody can say which call was the cause."""
        if not self._lost:
            log.error("engine process %d has died, with %d calls under way", self.pid, len(self._patience))
            self.lose(suspects=set(self._patience))

    def _tick(self) -> None:
        """Takes a tick of everybody's patience, while there are calls.

        Ticks are counted rather than read off a clock: when this process or the whole machine has been stopped for a
        while, one tick was long, and nothing else is known.
        """
        self._ticking = False
        for line in self._patience:
            self._patience[line] -= 1
        if overdue := {line for line, ticks in self._patience.items() if ticks < 0}:
            log.error("%d calls of engine process %d are overdue; it is killed", len(overdue), self.pid)
            self.lose(overdue)
        elif self._patience:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _disconnect(self) -> None:
        for end in (self._control, *self._sockets):
            end.close()


class Line(asyncio.Protocol):
    """One connection to an engine process: a call goes out, its answer comes in, one at a time."""

    def __init__(self, on_answer: Callable[[Line], None], on_end: Callable[[], None]) -> None:
        """`on_end` is told of nonsense, too; it ends with `cut`."""
        self._on_answer = on_answer
        self._on_end = on_end
        self._received = bytearray()
        self._asked = 0, 0  # the call's number, and how many rows it has
        self._answer: asyncio.Future[BatchResult] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not say what they are

    def ask(self, message: bytes, number: int, rows: int) -> asyncio.Future[BatchResult]:
        """The answer to come to a call of that number, for so many rows; fails with `WorkerLost`."""
        self._asked, self._answer = (number, rows), asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < codec.HEAD_BYTES:
            return
        missing = codec.HEAD_BYTES + codec.length_of(self._received) - len(self._received)
        if missing > 0 and self._answer is not None:
            return
        ran = self._read() if missing == 0 else None
        if ran is None or self._answer is None:
            self._on_end()
            return
        answer, self._answer, self._received = self._answer, None, bytearray()
        self._on_answer(self)
        if not answer.done():
            answer.set_result(ran)

    def _read(self) -> BatchResult | None:
        """What has come; None where it is no answer to what was asked."""
        with suppress(ValueError, IndexError):
            number, ran = codec.unpack_answer(memoryview(self._received)[codec.HEAD_BYTES :])
            if (number, len(ran.outcomes)) == self._asked:
                return ran
        return None

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # any end is one too early
        self._on_end()

    def cut(self, *, suspects: bool) -> None:
        """Ends the connection, and the call under way as `WorkerLost`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(WorkerLost(suspect=suspects))
        self._answer = None
        self._transport.abort()
