"""A crew in a process of its own, which can hang or die without taking the service along.

    Workers ─▶ Process ─▶ a line for each core ═══ socket pair ═══ a thread of the engine process ─▶ Engine

One process hosts all models, so that weights are in memory once, and runs `size` calls at a time. A second one, loaded
as well, stands by: when the first is lost it serves at once, and another is started in its place. A process is lost
when it dies, when a call of its is overdue, or when nothing succeeds any more (`Breaker`).

The processes are started afresh rather than forked. What goes over the lines is described in `service.wire`.
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
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from models.artifact import ArtifactError
from models.tokenizer import Encoding
from service import wire
from service.breaker import Breaker
from service.engine_process import Loaded, Order
from service.errors import Internal, SetupError, Unavailable
from service.types import Cost, Lost, Outcome

log = logging.getLogger(__name__)

TICK_S: Final = 0.05  # patience is counted in these
START_S: Final = 300.0  # after which a process that has not loaded is given up
TRIES: Final = 3  # to start a process; then callers are told that there is no engine
BACK_OFF_S: Final = (0.1, 0.5, 2.0, 5.0, 10.0)  # between tries; the last goes on
REAP_S: Final = 5.0  # for a killed process to end
PROBE_S: Final = 1.0  # between attempts to find out whether a broken engine works again
PROBE: Final = Encoding(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
"""A token that every vocabulary has."""


class Workers:
    """The crew of an engine process."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Path],
        size: int,
        *,
        spare: bool = True,
        log_level: str = "info",
        main: str = "service.engine_process",
    ) -> None:
        """Starts the process; `load` waits for it.

        Args:
            engine: name of the engine, which only the process imports.
            models: directories of artifacts.
            size: calls that run at a time.
            spare: whether a second process stands by.
            log_level: of the process, which logs to the same place.
            main: the module that it runs.
        """
        self.size = size
        self._spawn = partial(Process, engine, models, size, log_level, main, self._lost)
        self._wants_spare = spare
        self._breaker = Breaker()
        self._models: dict[str, tuple[int, Cost]] = {}  # by name: number on the wire, cost
        self._serving: Process | None = None
        self._spare: Process | None = None
        self._starting: Process | None = None
        self._first = self._spawn()
        self._failures = 0  # to start a process, in a row
        self._closed = False
        self._changed = asyncio.Event()  # set whenever there is a process, or none is expected soon
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def load(self) -> None:
        """Blocks until the process is ready.

        Raises:
            ArtifactError, SetupError: it cannot host these models; the sentence is the process's own.
        """
        try:
            loaded = self._first.load()
        except BaseException:
            self.abandon()
            raise
        self._models = {model.name: (number, model.cost) for number, model in enumerate(loaded)}
        self._serving = self._first
        self._changed.set()

    def abandon(self) -> None:
        """Gives up before `open`."""
        self._closed = True
        self._first.lose()
        self._first.reap(REAP_S)

    def cost(self, model: str) -> Cost:
        return self._models[model][1]

    async def open(self) -> None:
        with suppress(SetupError):  # it has died meanwhile; another is started
            await self._first.attach()
        self._restock()

    async def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> list[Outcome]:
        if self._breaker.open:
            raise _no_engine()
        return await self._call(model, encodings, patience_s)

    @property
    def ready(self) -> bool:
        return self._serving is not None and not self._breaker.open

    async def close(self, grace_s: float) -> bool:
        """Kills the processes, whatever they are at."""
        self._closed = True
        self._changed.set()
        for task in self._tasks.values():
            task.cancel()
        processes = [one for one in (self._serving, self._spare, self._starting) if one is not None]
        for process in processes:
            process.lose()
        return all(await asyncio.gather(*(asyncio.to_thread(process.reap, grace_s) for process in processes)))

    async def _call(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> list[Outcome]:
        while self._serving is None:
            if self._closed or self._failures >= TRIES:
                raise _no_engine()
            await self._changed.wait()
        process = self._serving
        try:
            outcomes = await process.call(self._models[model][0], encodings, patience_s)
        except Lost as lost:
            if lost.guilty:
                self._note(False, process, model, patience_s)
            raise
        self._note(not all(isinstance(one, Internal) for one in outcomes), process, model, patience_s)
        return outcomes

    def _note(self, good: bool, process: Process, model: str, patience_s: float) -> None:
        """Tells the breaker of a call, and does what it decides."""
        if self._breaker.note(good) and process is self._serving:
            log.error("nothing that the engine is asked succeeds; it is replaced")
            process.lose()
        if self._breaker.open:
            self._keep("probe", self._probe, model, patience_s)

    async def _probe(self, model: str, patience_s: float) -> None:
        """Asks an engine that is thought to be broken, since nobody else does, until it answers."""
        while self._breaker.open:
            await asyncio.sleep(PROBE_S)
            with suppress(Lost, Unavailable):
                await self._call(model, [PROBE], patience_s)

    def _lost(self, process: Process) -> None:
        """The spare takes the place of a lost process, and another is started."""
        if process is self._serving:
            self._serving, self._spare = self._spare, None
        elif process is self._spare:
            self._spare = None
        if self._closed:
            return
        if self._serving is None:
            self._changed.clear()
        asyncio.get_running_loop().run_in_executor(None, process.reap, REAP_S)
        self._restock()

    def _restock(self) -> None:
        self._keep("restock", self._start)

    async def _start(self) -> None:
        """Starts processes until one serves and one stands by."""
        while self._serving is None or (self._wants_spare and self._spare is None):
            try:
                process = await self._started()
            except (ArtifactError, SetupError, OSError) as error:
                self._failures += 1
                log.error("an engine process did not start, try %d: %s", self._failures, error)  # noqa: TRY400
                if self._failures >= TRIES:
                    self._changed.set()
                await asyncio.sleep(BACK_OFF_S[min(self._failures, len(BACK_OFF_S)) - 1])
                continue
            self._failures = 0
            if self._serving is None:
                self._serving = process
                self._changed.set()
            else:
                self._spare = process

    async def _started(self) -> Process:
        """A process that is ready.

        Raises:
            ArtifactError, SetupError, OSError: it is not to be had.
        """
        self._starting = process = self._spawn()
        try:
            await asyncio.to_thread(process.load)
            await process.attach()
        except BaseException:
            process.lose()
            raise
        finally:
            self._starting = None
        return process

    def _keep(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Runs `work`, unless it is running."""
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.get_running_loop().create_task(work(*args))


class Process:
    """An engine process: spawned, then loaded, then attached to an event loop, and lost in the end."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Path],
        size: int,
        log_level: str,
        main: str,
        on_lost: Callable[[Process], None],
    ) -> None:
        """Spawns it. `on_lost` is called once, as soon as it is of no more use."""
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
        order = Order(os.getpid(), handed[0], handed[1:], engine, [str(path) for path in models], log_level)
        try:
            self._popen = subprocess.Popen(  # noqa: S603  # this interpreter, and nothing that anybody sent
                [sys.executable, "-P", "-m", main, json.dumps(asdict(order))],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=handed,
                process_group=0,  # ^C in a terminal is for the service alone
            )
        except OSError:
            self._disconnect()
            raise
        finally:
            for end in (control, *lines):
                end.close()

    def load(self) -> list[Loaded]:
        """Blocks until it has loaded its models; what it says of each, in the order given.

        Raises:
            ArtifactError, SetupError: it cannot; the sentence is the process's own.
            OSError: it took longer than anything should.
        """
        self._control.settimeout(START_S)
        with self._control.makefile("rb") as reader:
            line = reader.readline()
        if not line.endswith(b"\n"):
            raise SetupError("The engine process ended before the models were loaded; the log may say why.")
        said = json.loads(line)
        if isinstance(said, dict):
            raise (ArtifactError if said["kind"] == "ArtifactError" else SetupError)(said["message"])
        return [Loaded(model["name"], Cost(**model["cost"])) for model in said]

    async def attach(self) -> None:
        """Connects the lines to the running event loop.

        Raises:
            SetupError: it has died meanwhile.
        """
        loop = asyncio.get_running_loop()
        while self._sockets and not self._lost:
            made = await loop.create_unix_connection(lambda: Line(self._hang_up, self._died), sock=self._sockets.pop())
            self._lines.append(made[1])
            self._free.append(made[1])
        if self._lost:
            raise SetupError("The engine process ended as soon as the models were loaded; the log may say why.")

    async def call(self, model: int, encodings: Sequence[Encoding], patience_s: float) -> list[Outcome]:
        """Runs a batch on a line that is free; there must be one.

        Raises:
            Lost: the process was lost before it answered, or makes no sense.
        """
        line, number = self._free.pop(), next(self._numbers)
        answer = line.ask(wire.pack_call(number, model, encodings))
        self._patience[line] = math.ceil(patience_s / TICK_S) + 1  # a tick may be about to end
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        returned, outcomes = wire.unpack_answer(await answer)
        if (returned, len(outcomes)) != (number, len(encodings)):
            self._died()
            raise Lost(guilty=True)
        return outcomes

    def lose(self, guilty: Collection[Line] = ()) -> None:
        """Kills the process; all calls that run are lost, those on `guilty` lines because of what they asked."""
        if self._lost:
            return
        self._lost = True
        self._popen.kill()
        self._patience.clear()
        for line in self._lines:
            line.cut(guilty=line in guilty)
        self._disconnect()
        self._on_lost(self)

    def reap(self, grace_s: float) -> bool:
        """Waits for the end of a process that was lost; says whether it has come."""
        try:
            status = self._popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        log.info("engine process %d has ended with status %d", self._popen.pid, status)
        return True

    def _hang_up(self, line: Line) -> None:
        """A call has ended, and its line is free."""
        del self._patience[line]
        self._free.append(line)

    def _died(self) -> None:
        """It has hung up, or talks nonsense. Nobody can say which call was the cause."""
        if not self._lost:
            log.error("engine process %d has died, with %d calls under way", self._popen.pid, len(self._patience))
            self.lose(guilty=set(self._patience))

    def _tick(self) -> None:
        """Takes a tick of everybody's patience, while there are calls.

        Ticks are counted rather than read off a clock: when this process or the whole machine has been stopped for a
        while, one tick was long, and nothing else is known.
        """
        self._ticking = False
        for line in self._patience:
            self._patience[line] -= 1
        if overdue := {line for line, ticks in self._patience.items() if ticks < 0}:
            log.error("%d calls of engine process %d are overdue; it is killed", len(overdue), self._popen.pid)
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
        self._on_answer = on_answer
        self._on_end = on_end
        self._received = bytearray()
        self._answer: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not say what they are

    def ask(self, message: bytes) -> asyncio.Future[bytes]:
        """The answer to come, without its head; fails with `Lost`."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < wire.HEAD_BYTES:
            return
        missing = wire.HEAD_BYTES + wire.length_of(self._received) - len(self._received)
        if missing < 0 or self._answer is None:
            self._on_end()
        elif missing == 0:
            answer, self._answer = self._answer, None
            message, self._received = bytes(self._received[wire.HEAD_BYTES :]), bytearray()
            self._on_answer(self)
            if not answer.done():
                answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # any end is one too early
        self._on_end()

    def cut(self, *, guilty: bool) -> None:
        """Ends the connection, and the call under way as `Lost`."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(guilty=guilty))
        self._answer = None
        self._transport.abort()


def _no_engine() -> Unavailable:
    return Unavailable("engine_unavailable", "The engine does not work at the moment.", retry_after=PROBE_S)
