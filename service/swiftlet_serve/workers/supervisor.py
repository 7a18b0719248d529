"""Keeps a worker process available: starts it, keeps a spare and replaces a process that was lost.

One process hosts all models: weights are in memory once. The spare has loaded the same models. It shares the weights of
the native engine, which the first process puts into sealed files. If the serving process is lost, the spare takes over
at once and the supervisor starts another process. A process is lost when it dies, when a call exceeds its time limit,
or when the circuit breaker finds its engine broken.

If a process finds a wrong sum in its own work, it goes on without the part of the kernel that computed it. Processes
that start later avoid that part, too. A spare that started before is replaced.

Models come and go while the processes run. The spare loads a new model first. A model that crashes the process or fails
its golden answers thus costs no call. The spare then takes the calls while the other process loads the model, because a
load delays the calls of its process: both need the interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from swiftlet_serve.errors import SetupError, engine_unavailable
from swiftlet_serve.machine.child_process import back_off_s, exit_text, make_spawner
from swiftlet_serve.machine.sealed_files import open_sealed, path_of
from swiftlet_serve.workers.worker_main import ModelReport
from swiftlet_serve.workers.worker_process import WorkerProcess

log = logging.getLogger(__name__)

MAX_START_FAILURES: Final = 3  # consecutive failures to start a process, after which waiting callers get an error
RETRY_S: Final = 1.0  # between two looks for a spare


class Supervisor:
    """Owns the worker processes. At most one of them serves, and at most one is the spare."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Sequence[Path]],
        size: int,
        log_level: str,
        log_format: str,
        module: str,
        environment: Mapping[str, str],
        *,
        spare: bool,
        signer_key: Path | None = None,
    ) -> None:
        """Starts the first process. Call `load` to wait for it, then `open` on the event loop."""
        self.restarts = 0
        self.kernel_faults = 0  # the sum over all processes
        self.models = dict(enumerate(models))  # that every process has or is about to have, by index
        self._next_index = len(self.models)  # no index is used twice
        self._changing_models = asyncio.Lock()
        self.serving: WorkerProcess | None = None
        self.spare: WorkerProcess | None = None
        self._wants_spare = spare
        self._weights: dict[int, list[int]] = {}  # descriptors of sealed files, by model
        self._make_process = partial(
            WorkerProcess,
            engine,
            size=size,
            log_level=log_level,
            log_format=log_format,
            module=module,
            environment=environment,
            signer_key=signer_key,
            on_lost=self._on_lost,
            on_reports=self._take_reports,
        )
        self._processes: set[WorkerProcess] = set()  # not yet reaped
        self._start_failures = 0
        self._closed = False
        self._changed = asyncio.Event()  # set if a process serves, or if none can be expected soon
        self._starting: asyncio.Task[None] | None = None
        self._spawner = make_spawner()
        self._first = self._spawner.submit(self._spawn)

    def load(self) -> Mapping[int, ModelReport]:
        """Blocks until the first process is ready. Returns one report per model, by index.

        Raises:
            ArtifactError, SetupError: the process cannot load these models. The message is the worker's.
        """
        try:
            process = self._first.result()
            process.load()
        except BaseException:
            self.abandon()
            raise
        self._take_reports(process)
        self.serving = process
        self._changed.set()
        return process.reports

    def abandon(self) -> None:
        """Kills the processes before `open` was called."""
        self._closed = True
        self._spawner.shutdown()
        for process in self._processes:
            process.kill()
            process.reap()
        self._close_weights(*self._weights)

    async def open(self) -> None:
        """Connects the first process to the running event loop and starts the spare."""
        with suppress(SetupError):  # if the process has died since it was loaded, another one is started
            await self._first.result().connect()
        self._start_missing()

    async def wait_until_serving(self) -> WorkerProcess:
        """Waits until a worker process is ready. Fails immediately if none can be expected soon.

        Raises:
            Unavailable: processes repeatedly failed to start, or the supervisor is closed.
        """
        while self.serving is None:
            if self._closed or self._start_failures >= MAX_START_FAILURES:
                raise engine_unavailable()
            await self._changed.wait()
        return self.serving

    async def add_model(self, path: Path) -> ModelReport:
        """Loads another model into the spare, and then into the process that serves. Returns the latter's report.

        Raises:
            ArtifactError, SetupError: a process cannot load the model. No process has it then.
            Unavailable: there is no process to load it, and none can be expected soon.
        """
        async with self._changing_models:
            index, self._next_index = self._next_index, self._next_index + 1
            await self._wait_until_complete()
            try:
                if self.spare is not None:
                    await self.spare.load_model(index, [path], self._offered(index))
                self.models[index] = [path]  # processes that start from now on have it
                with self._exchanged():
                    serving = await self.wait_until_serving()
                    while without := [
                        process for process in (serving, self.spare) if process and index not in process.reports
                    ]:
                        await without[0].load_model(index, [path], self._offered(index))
                        serving = await self.wait_until_serving()
            except BaseException:
                self._forget(index)
                raise
            return serving.reports[index]

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        """Lets the spare serve during the block. Afterwards each has its role again, unless one was lost."""
        before = self.serving, self.spare
        if self.spare is not None:
            self.serving, self.spare = self.spare, self.serving
        try:
            yield
        finally:
            if (self.spare, self.serving) == before:
                self.serving, self.spare = before

    async def remove_model(self, index: int) -> None:
        """Releases a model whose last call has ended."""
        async with self._changing_models:
            self._forget(index)

    def _forget(self, index: int) -> None:
        self.models.pop(index, None)
        self._close_weights(index)
        for process in (self.serving, self.spare):
            if process is not None and index in process.reports:
                process.unload_model(index)

    async def _wait_until_complete(self) -> None:
        """Waits until a process serves and, if wanted, one is the spare.

        Raises:
            Unavailable: none can be expected soon.
        """
        await self.wait_until_serving()
        while self._wants_spare and self.spare is None:
            if self._closed or self._start_failures >= MAX_START_FAILURES or self._starting is None:
                raise engine_unavailable()
            self._start_missing()
            await asyncio.wait([self._starting], timeout=RETRY_S)

    async def close(self, grace_s: float) -> bool:
        """Kills all processes. Returns whether all of them ended within `grace_s`."""
        loop = asyncio.get_running_loop()
        self._closed = True
        self._changed.set()
        if self._starting is not None:
            self._starting.cancel()
        for process in list(self._processes):
            process.kill()
        await loop.run_in_executor(self._spawner, self._spawner.shutdown, False)  # a process may still be starting
        remaining = list(self._processes)
        for process in remaining:
            process.kill()
        self._close_weights(*self._weights)
        reaping = [loop.run_in_executor(None, process.reap, grace_s) for process in remaining]
        return all(await asyncio.gather(*reaping))

    def _on_lost(self, process: WorkerProcess) -> None:
        """Replaces a lost process by the spare, and starts another spare."""
        if process is self.serving:
            self.serving, self.spare = self.spare, None
        elif process is self.spare:
            self.spare = None
        if self._closed:
            return
        self.restarts += 1
        if self.serving is None:
            self._changed.clear()
        asyncio.get_running_loop().run_in_executor(None, self._reap, process)
        self._start_missing()

    def _take_reports(self, process: WorkerProcess) -> None:
        """Opens the files that a process has put weights into, and counts the wrong sums that it has reported.

        A spare that does not avoid tiles is replaced after a wrong sum.
        """
        for index, descriptors in process.take_weights().items():
            opened = [open_sealed(path_of(process.pid, descriptor)) for descriptor in descriptors]
            self._close_weights(index)
            self._weights[index] = [descriptor for descriptor in opened if descriptor is not None]
        if not (faults := process.take_kernel_faults()):
            return
        self.kernel_faults += faults
        log.error(
            "worker process %d found %d wrong sums. Later worker processes avoid their cause.", process.pid, faults
        )
        if self.spare is not None and not self.spare.avoids_tiles:
            self.spare.kill()

    def _offered(self, index: int) -> list[str]:
        """Returns the paths of the files with a model's weights."""
        return [path_of(os.getpid(), descriptor) for descriptor in self._weights.get(index, ())]

    def _close_weights(self, *indices: int) -> None:
        for descriptor in chain.from_iterable(self._weights.pop(index, ()) for index in indices):
            os.close(descriptor)

    def _reap(self, process: WorkerProcess) -> None:
        process.reap()
        self._processes.discard(process)
        log.info("worker process %d ended %s", process.pid, exit_text(process.exit_status))

    def _start_missing(self) -> None:
        if self._starting is None or self._starting.done():
            self._starting = asyncio.get_running_loop().create_task(self._start_until_complete())

    async def _start_until_complete(self) -> None:
        """Starts processes until one serves and, if wanted, one is the spare."""
        while self.serving is None or (self._wants_spare and self.spare is None):
            try:
                process = await self._start()
            except Exception as error:  # this loop must not end
                self._start_failures += 1
                log.error("worker process failed to start (attempt %d): %s", self._start_failures, error)  # noqa: TRY400  # the message suffices
                if self._start_failures >= MAX_START_FAILURES:
                    self._changed.set()
                await asyncio.sleep(back_off_s(self._start_failures))
                continue
            self._start_failures = 0
            if self.kernel_faults and not process.avoids_tiles:  # it was started before the first one was found
                process.kill()
                continue
            if self.serving is None:
                self.serving = process
                self._changed.set()
            else:
                self.spare = process

    async def _start(self) -> WorkerProcess:
        """Starts a process and waits until it is ready.

        Raises:
            ArtifactError, SetupError: the process cannot be started or cannot load a model.
        """
        loop = asyncio.get_running_loop()
        process = await loop.run_in_executor(self._spawner, self._spawn)
        try:
            await loop.run_in_executor(self._spawner, process.load)
            await process.connect()
            self._take_reports(process)  # first, so that the weights of a model that was removed meanwhile are closed
            await self._update_models(process)
        except BaseException:
            process.kill()
            raise
        return process

    async def _update_models(self, process: WorkerProcess) -> None:
        """Gives a new process the models that changed since it was spawned.

        Raises:
            ArtifactError, SetupError: it cannot load one, or was lost.
        """
        while added := [index for index in self.models if index not in process.reports]:
            await process.load_model(added[0], self.models[added[0]], self._offered(added[0]))
        for index in process.reports.keys() - self.models.keys():
            process.unload_model(index)
            self._close_weights(index)

    def _spawn(self) -> WorkerProcess:
        models = dict(self.models)
        weights = {index: self._offered(index) for index in models}
        process = self._make_process(models, earlier_kernel_faults=self.kernel_faults, weights=weights)
        self._processes.add(process)
        return process
