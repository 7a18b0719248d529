"""A executor in a process of its own, which can hang or die without taking the service along.

One process hosts all models, so that weights are in memory once, and runs `size` calls at a time. A second one, loaded
as well, stands by: when the first is lost it serves at once, and another is started in its place. A process is lost
when it dies, when a call of its is overdue, or when it answers nobody any more, not even a golden input (`Breaker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import Internal, SetupError, engine_unavailable
from swiftlet_serve.service.types import BatchResult, Cost, TimedCall, WorkerLost
from swiftlet_serve.service.workers.circuit_breaker import Breaker
from swiftlet_serve.service.workers.worker_client import Process
from swiftlet_serve.service.workers.worker_main import Loaded

log = logging.getLogger(__name__)

TRIES: Final = 3  # to start a process; then callers are told that there is no engine
BACK_OFF_S: Final = (0.1, 0.5, 2.0, 5.0, 10.0)  # between tries; the last goes on
REAP_S: Final = 5.0  # for a killed process to end
TRIAL_S: Final = 1.0  # between attempts to find out whether a broken engine works again


class ProcessExecutor:
    """The executor of an engine process."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Path],
        size: int,
        *,
        spare: bool,
        log_level: str = "info",
        log_format: str = "text",
        main: str = "swiftlet_serve.service.workers.worker_main",
    ) -> None:
        """Starts the process; `load` waits for it.

        Args:
            engine: name of the engine, which only the process imports.
            models: directories of artifacts.
            size: calls that run at a time.
            spare: whether a second process stands by.
            log_level, log_format: of the process, which logs to the same place.
            main: the module that it runs.
        """
        self.size = size
        self.restarts = 0
        self._make = partial(Process, engine, models, size, log_level, log_format, main, self._lost)
        self._wants_spare = spare
        self._breaker = Breaker()
        self._models: dict[str, tuple[int, Loaded]] = {}  # by name: number on the wire, what the process said of it
        self._processes: set[Process] = set()  # that have not ended yet
        self._serving: Process | None = None
        self._spare: Process | None = None
        self._failures = 0  # to start a process, in a row
        self._closed = False
        self._changed = asyncio.Event()  # set while `_call` need not wait: it has a process, or there will be none
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # To start a process takes milliseconds. The thread stays: Linux kills a child whose parent thread has ended.
        self._spawner = ThreadPoolExecutor(1, "spawner")
        self._first = self._spawner.submit(self._spawn)

    def load(self) -> None:
        """Blocks until the process is ready.

        Raises:
            ArtifactError, SetupError: it cannot host these models; the sentence is the process's own.
        """
        try:
            process = self._first.result()
            loaded = process.load()
        except BaseException:
            self.abandon()
            raise
        self._models = {model.name: (number, model) for number, model in enumerate(loaded)}
        self._serving = process
        self._changed.set()

    def abandon(self) -> None:
        """Gives up before `open`."""
        self._closed = True
        self._spawner.shutdown()
        for process in self._processes:
            process.lose()
            process.reap(REAP_S)

    def cost(self, model: str) -> Cost:
        return self._models[model][1].cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return self._models[model][1].timed

    async def open(self) -> None:
        with suppress(SetupError):  # it has died meanwhile; another is started
            await self._first.result().attach()
        self._restock()

    def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> asyncio.Future[BatchResult]:
        if self._serving is None or self._breaker.open:
            return asyncio.ensure_future(self._late(model, encodings, patience_s))
        return self._call(self._serving, model, encodings, patience_s)

    @property
    def ready(self) -> bool:
        return self._serving is not None and not self._breaker.open

    async def close(self, grace_s: float) -> bool:
        """Kills the processes, whatever they are at."""
        loop = asyncio.get_running_loop()
        self._closed = True
        self._changed.set()
        for task in self._tasks.values():
            task.cancel()
        for process in list(self._processes):
            process.lose()
        await loop.run_in_executor(self._spawner, self._spawner.shutdown, False)  # after what it was about to start
        left = list(self._processes)
        for process in left:
            process.lose()
        reaping = [loop.run_in_executor(None, process.reap, grace_s) for process in left]
        return all(await asyncio.gather(*reaping))

    async def _late(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> BatchResult:
        """Waits for a process, unless none is expected soon."""
        if self._breaker.open:
            raise engine_unavailable()
        while self._serving is None:
            if self._closed or self._failures >= TRIES:
                raise engine_unavailable()
            await self._changed.wait()
        return await self._call(self._serving, model, encodings, patience_s)

    def _call(
        self, process: Process, model: str, encodings: Sequence[Encoding], patience_s: float
    ) -> asyncio.Future[BatchResult]:
        call = process.call(self._models[model][0], encodings, patience_s)
        call.add_done_callback(partial(self._ended, model, patience_s))
        return call

    def _ended(self, model: str, patience_s: float, call: asyncio.Future[BatchResult]) -> None:
        if call.cancelled():
            return
        if isinstance(lost := call.exception(), WorkerLost):
            if lost.suspect:
                self._note(False, model, patience_s)
        else:
            self._note(not all(isinstance(one, Internal) for one in call.result().outcomes), model, patience_s)

    def _note(self, good: bool, model: str, patience_s: float) -> None:
        """Tells the breaker of a call, and does what it decides."""
        if self._breaker.note(good):
            self._keep("try", self._try, model, patience_s)

    async def _try(self, model: str, patience_s: float) -> None:
        """Asks an engine that is thought to be broken what it must be able to answer, until one does."""
        number, loaded = self._models[model]
        trial = Encoding(*(np.array(numbers, np.int64) for numbers in loaded.trial))
        good = False
        while not good:
            if (process := self._serving) is not None:
                with suppress(WorkerLost):
                    ran = await process.call(number, [trial], patience_s)
                    good = not isinstance(ran.outcomes[0], Internal)
                if self._breaker.tried(good):
                    log.error("the engine answers nothing any more, not even a golden input; it is replaced")
                    process.lose()
            if self._breaker.open or self._serving is None:
                await asyncio.sleep(TRIAL_S)

    def _lost(self, process: Process) -> None:
        """The spare takes the place of a lost process, and another is started."""
        if process is self._serving:
            self._serving, self._spare = self._spare, None
        elif process is self._spare:
            self._spare = None
        if self._closed:
            return
        self.restarts += 1
        if self._serving is None:
            self._changed.clear()
        asyncio.get_running_loop().run_in_executor(None, self._bury, process)
        self._restock()

    def _bury(self, process: Process) -> None:
        process.reap(REAP_S)
        self._processes.discard(process)
        log.info("engine process %d has ended with status %s", process.pid, process.status)

    def _restock(self) -> None:
        self._keep("restock", self._start)

    async def _start(self) -> None:
        """Starts processes until one serves and one stands by."""
        while self._serving is None or (self._wants_spare and self._spare is None):
            try:
                process = await self._started()
            except Exception as error:  # nothing may end this loop
                self._failures += 1
                log.error("an engine process did not start, try %d: %s", self._failures, error)  # noqa: TRY400  # a sentence says it
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
            ArtifactError, SetupError: it is not to be had.
        """
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(self._spawner, self._spawn)
        try:
            await loop.run_in_executor(self._spawner, process.load)
            await process.attach()
        except BaseException:
            process.lose()
            raise
        return process

    def _spawn(self) -> Process:
        process = self._make()
        self._processes.add(process)
        return process

    def _keep(self, name: str, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Runs `work`, unless it is running."""
        if name not in self._tasks or self._tasks[name].done():
            self._tasks[name] = asyncio.get_running_loop().create_task(work(*args))
