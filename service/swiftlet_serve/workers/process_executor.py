"""Executor that runs batches in a worker process, which can hang or crash without harm to the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import Internal, engine_unavailable
from swiftlet_serve.types import BatchResult, Cost, TimedCall, WorkerLost
from swiftlet_serve.workers.circuit_breaker import CircuitBreaker
from swiftlet_serve.workers.supervisor import Supervisor
from swiftlet_serve.workers.worker_main import ModelReport
from swiftlet_serve.workers.worker_process import WorkerProcess

log = logging.getLogger(__name__)

PROBE_INTERVAL_S: Final = 1.0  # between probes while the circuit breaker is open


class ProcessExecutor:
    """Runs at most `size` batches at a time in the worker process that serves."""

    def __init__(
        self,
        engine: str,
        models: Sequence[Sequence[Path]],
        size: int,
        *,
        spare: bool,
        log_level: str = "info",
        log_format: str = "text",
        worker_module: str = "swiftlet_serve.workers.worker_main",
        environment: Mapping[str, str] | None = None,
        signer_key: Path | None = None,
    ) -> None:
        """Starts the worker process. Call `load` to wait for it.

        Args:
            engine: name of the engine. Only the worker process imports it.
            models: directories of artifacts, in groups that share a trunk.
            size: maximum number of concurrent batches.
            spare: whether a second process is kept ready.
            log_level, log_format: of the worker process, which logs to the same stderr.
            worker_module: module that the worker process runs.
            environment: additional environment variables of the worker process.
            signer_key: key whose owner must have signed each artifact, whenever a process opens it. None: anybody.
        """
        self.size = size
        self.supervisor = Supervisor(
            engine,
            models,
            size,
            log_level,
            log_format,
            worker_module,
            environment or {},
            spare=spare,
            signer_key=signer_key,
        )
        self._breaker = CircuitBreaker()
        self._models: dict[str, ModelReport] = {}  # by name
        self._probing: asyncio.Task[None] | None = None

    @property
    def restarts(self) -> int:
        return self.supervisor.restarts

    @property
    def kernel_faults(self) -> int:
        return self.supervisor.kernel_faults

    @property
    def workers(self) -> Mapping[str, int]:
        roles = {"serving": self.supervisor.serving, "spare": self.supervisor.spare}
        return {role: process.pid for role, process in roles.items() if process is not None}

    def runtime(self, model: str) -> str:
        report, serving = self._models[model], self.supervisor.serving
        return (report if serving is None else serving.reports.get(report.index, report)).runtime

    def load(self) -> None:
        """Blocks until the worker process is ready.

        Raises:
            ArtifactError, SetupError: the process cannot load these models. The message is the worker's.
        """
        self._models = {report.name: report for report in self.supervisor.load().values()}

    def abandon(self) -> None:
        """Kills the worker process before `open` was called."""
        self.supervisor.abandon()

    def cost(self, model: str) -> Cost:
        return self._models[model].cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return self._models[model].timed_calls

    async def open(self) -> None:
        await self.supervisor.open()

    async def add_model(self, model: str, path: Path) -> None:
        self._models[model] = await self.supervisor.add_model(path)

    async def remove_model(self, model: str) -> None:
        await self.supervisor.remove_model(self._models.pop(model).index)

    def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> asyncio.Future[BatchResult]:
        process = self.supervisor.serving
        if process is None or self._breaker.open:
            return asyncio.ensure_future(self._run_when_ready(model, encodings, timeout_s))
        return self._run_on(process, model, encodings, timeout_s)

    @property
    def ready(self) -> bool:
        return self.supervisor.serving is not None and not self._breaker.open

    async def wait_until_ready(self) -> WorkerProcess:
        """Waits until calls are accepted. Raises Unavailable if that cannot be expected soon."""
        if self._breaker.open:
            raise engine_unavailable()
        return await self.supervisor.wait_until_serving()

    async def close(self, grace_s: float) -> bool:
        """Kills the worker processes, even if calls are running."""
        if self._probing is not None:
            self._probing.cancel()
        return await self.supervisor.close(grace_s)

    async def _run_when_ready(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:
        return await self._run_on(await self.wait_until_ready(), model, encodings, timeout_s)

    def _run_on(
        self, process: WorkerProcess, model: str, encodings: Sequence[Encoding], timeout_s: float
    ) -> asyncio.Future[BatchResult]:
        call = process.calls.run(self._models[model].index, encodings, timeout_s)
        call.add_done_callback(partial(self._on_call_end, model, timeout_s))
        return call

    def _on_call_end(self, model: str, timeout_s: float, call: asyncio.Future[BatchResult]) -> None:
        """Reports a call to the circuit breaker. A call succeeds if it returns at least one row."""
        if call.cancelled():
            return
        if isinstance(lost := call.exception(), WorkerLost):
            if not lost.suspect:
                return
            good = False
        else:
            good = not all(isinstance(outcome, Internal) for outcome in call.result().outcomes)
        if self._breaker.record_call(good) and (self._probing is None or self._probing.done()):
            self._probing = asyncio.get_running_loop().create_task(self._probe(model, timeout_s))

    async def _probe(self, model: str, timeout_s: float) -> None:
        """Runs a golden input until an engine answers it. Replaces the process when the circuit breaker says so."""
        good = False
        while not good:
            report = self._models.get(model) or next(iter(self._models.values()), None)  # the model may be removed
            if report is not None and (process := self.supervisor.serving) is not None:
                golden_input = Encoding(*(np.array(numbers, np.int64) for numbers in report.probe))
                with suppress(WorkerLost):
                    result = await process.calls.run(report.index, [golden_input], timeout_s)
                    good = not isinstance(result.outcomes[0], Internal)
                if self._breaker.record_probe(good):
                    log.error("replacing worker process %d: its engine fails on a golden input", process.pid)
                    process.kill()
            if self._breaker.open or self.supervisor.serving is None:
                await asyncio.sleep(PROBE_INTERVAL_S)
