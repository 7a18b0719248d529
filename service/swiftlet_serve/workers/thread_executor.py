"""Executor that runs batches on threads of this process, for the command line, tests and benchmarks.

An engine that hangs or crashes here cannot be replaced: it keeps its thread or ends the process. A call therefore never
raises `WorkerLost` and has no time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch, BatchResult, Cost, TimedCall
from swiftlet_serve.workers.hosted_model import EngineModel, host_model, kernel_faults, run_timed, runtime_title
from swiftlet_serve.workers.signature import open_signed


class ThreadExecutor:
    """Runs at most `size` batches at a time, each on one thread."""

    restarts = 0

    def __init__(
        self, models: Mapping[str, EngineModel], size: int, engine: str = "native", signer_key: Path | None = None
    ) -> None:
        """`engine` is the name of the engine for models that are added later, and `signer_key` as in `open_signed`."""
        self.size = size
        self._engine, self._signer_key = engine, signer_key
        self._models = dict(models)
        self._threads = ThreadPoolExecutor(size, "core")
        self._running = 0
        self._kernel_faults = 0

    @property
    def kernel_faults(self) -> int:
        # Each engine counts for the whole process.
        self._kernel_faults = max(
            [self._kernel_faults, *(kernel_faults(model.engine) for model in self._models.values())]
        )
        return self._kernel_faults

    @property
    def workers(self) -> Mapping[str, int]:
        return {}

    def runtime(self, model: str) -> str:
        return runtime_title(self._models[model].engine)

    def cost(self, model: str) -> Cost:
        return self._models[model].engine.cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return self._models[model].timed_calls

    async def open(self) -> None:
        pass

    async def add_model(self, model: str, path: Path) -> None:
        artifact = open_signed(path, self._signer_key)
        self._models[model], _ = await asyncio.to_thread(host_model, [artifact], self._engine)

    async def remove_model(self, model: str) -> None:
        self._models.pop(model).engine.close()

    async def run(self, model: str, encodings: Sequence[Encoding], timeout_s: float) -> BatchResult:  # noqa: ARG002  # no time limit, see above
        batch = Batch.of(encodings)
        self._running += 1
        call = asyncio.get_running_loop().run_in_executor(self._threads, run_timed, self._models[model], batch)
        call.add_done_callback(self._on_call_end)
        return await call

    def _on_call_end(self, _: object) -> None:
        self._running -= 1

    @property
    def ready(self) -> bool:
        return True

    async def close(self, grace_s: float) -> bool:  # noqa: ARG002  # the scheduler has already waited for its calls
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._running:
            return False
        for model in self._models.values():
            model.engine.close()
        return True
