"""Where batches run: what an engine is asked, how its answers are inspected, and an executor of threads.

A batch that fails hurts nobody but the suspects: it is halved until they stand alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import numpy as np

from swiftlet_serve.models.artifact import Artifact
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service import engines, plugins
from swiftlet_serve.service.errors import Internal, log_exception
from swiftlet_serve.service.topk import is_of
from swiftlet_serve.service.types import Batch, BatchResult, Cost, Engine, Outcome, Row, TimedCall
from swiftlet_serve.service.workers.golden import rehearse, replay

log = logging.getLogger(__name__)

FAULTS: Final = {
    "internal": "The model failed on this input.",
    "invalid_engine_output": "The model gave an answer that cannot be right.",
}
"""Why an encoding may have no row: codes of `Internal`, each with its sentence."""


class HostedModel(NamedTuple):
    """A model's engine, how many outputs its head must have, and what calls took while it was loaded."""

    engine: Engine
    width: int
    timed: Sequence[TimedCall] = ()


def host(artifact: Artifact, engine_name: str) -> tuple[HostedModel, float | None]:
    """Loads an artifact into an engine and replays its golden answers.

    Returns:
        The engine, and the largest |output - golden|; None where the engine runs no network.

    Raises:
        ArtifactError: the engine cannot run it, or answers otherwise.
        SetupError: there is no such engine, or something it needs is not installed.
    """
    # One thread a call and one call a core: two calls side by side do more than two threads in one call.
    engine: Engine = plugins.load(engines, engine_name).create(artifact, threads=1)
    deviation = replay(artifact, engine) if engine.runs_network else None
    timed = rehearse(artifact, engine) if engine.runs_network else []
    return HostedModel(engine, artifact.manifest.width, timed), deviation


class ThreadExecutor:
    """A executor of threads of this process.

    An engine that hangs or crashes here cannot be replaced: it keeps its thread, or takes the process along. So no
    call is ever `WorkerLost`, and patience has no end.
    """

    restarts = 0

    def __init__(self, models: Mapping[str, HostedModel], size: int) -> None:
        self.size = size
        self._models = dict(models)
        self._threads = ThreadPoolExecutor(size, "core")
        self._running = 0

    def cost(self, model: str) -> Cost:
        return self._models[model].engine.cost

    def timed_calls(self, model: str) -> Sequence[TimedCall]:
        return self._models[model].timed

    async def open(self) -> None:
        pass

    async def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> BatchResult:  # noqa: ARG002  # see above
        batch = Batch.of(encodings)
        self._running += 1
        call = asyncio.get_running_loop().run_in_executor(self._threads, timed, self._models[model], batch)
        call.add_done_callback(self._ended)
        return await call

    def _ended(self, _: object) -> None:
        self._running -= 1

    @property
    def ready(self) -> bool:
        return True

    async def close(self, grace_s: float) -> bool:  # noqa: ARG002  # whoever waits for calls has waited before
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._running:
            return False
        for model in self._models.values():
            model.engine.close()
        return True


def timed(model: HostedModel, batch: Batch) -> BatchResult:
    """As `run_batch`, and how long it took."""
    began = time.monotonic()
    outcomes = run_batch(model, batch)
    return BatchResult(outcomes, time.monotonic() - began)


def run_batch(model: HostedModel, batch: Batch) -> list[Outcome]:
    """Runs a batch on the calling thread: for each encoding its row, or why it has none. Never raises."""
    try:
        rows = model.engine.run(batch)
    except Exception as error:
        if len(batch) == 1:
            log_exception(log, "the engine failed on one encoding", error)
            return [_fault("internal")]
        encodings, half = batch.encodings(), len(batch) // 2
        return [one for part in (encodings[:half], encodings[half:]) for one in run_batch(model, Batch.of(part))]
    try:
        return _inspect(rows, batch, model.width)
    except Exception as error:  # what an engine gives may be anything
        log_exception(log, "the engine gave what are no rows", error)
        return [_fault("invalid_engine_output") for _ in range(len(batch))]


def _inspect(rows: Sequence[Row], batch: Batch, width: int) -> list[Outcome]:
    """Rows whose number or shapes are wrong are all refused, since there is no telling whose they are."""
    found, expected = [np.shape(row) for row in rows], batch.row_shapes(width)
    if found != expected:
        log.error("engine gave rows of shapes %s for %s", found, expected)
        return [_fault("invalid_engine_output") for _ in expected]
    fine = [
        np.isfinite(row).all() and (not top_k or is_of(row, width))
        for row, top_k in zip(rows, batch.top_k.tolist(), strict=True)
    ]
    return [row if good else _fault("invalid_engine_output") for row, good in zip(rows, fine, strict=True)]


def _fault(code: str) -> Internal:
    return Internal(code, FAULTS[code])
