"""Shadow traffic: copies of answered requests go to a candidate version, whose answers are compared and dropped.

A copy runs only while a core is idle and nothing is queued, one sequence at a time and at the lowest priority. It can
delay another request by at most one call with one sequence. Under load, copies are dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import BaseModel

from swiftlet_models.encodings import Encoding
from swiftlet_serve.errors import SwiftletError, Unavailable, log_exception
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.repository.agreement import compare
from swiftlet_serve.repository.desired import Wanted
from swiftlet_serve.repository.version import Version
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.shadow_stats import ShadowStats
from swiftlet_serve.types import Deadline, Priority, Row

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
MAX_RUNNING: Final = 1  # copies at the same time
RANDOM: Final = random.Random()  # noqa: S311  # samples requests, and is not a secret


class Shadow:
    """Sends copies of one model's requests to one candidate."""

    def __init__(self, runtime: LocalRuntime, candidate: Pipeline, share: float, stats: ShadowStats) -> None:
        """Creates the shadow traffic of a candidate.

        Args:
            runtime: runs the candidate.
            candidate: the pipeline of the candidate.
            share: share of the answered requests that are copied, from 0 to 1.
            stats: counts the comparisons.
        """
        self.share = share
        self.candidate = candidate
        self.stats = stats
        self._runtime = runtime
        self._pipeline = runtime.copy_pipeline(candidate, _OneByOne(runtime, candidate.key))
        self._tasks: set[asyncio.Task[None]] = set()

    def offer(self, request: BaseModel, answer: Any, record: RequestRecord) -> None:
        """Copies an answered request, or drops the copy. Returns at once."""
        if RANDOM.random() >= self.share:
            return
        if len(self._tasks) >= MAX_RUNNING or not self._runtime.has_idle_core():
            self.stats.results["dropped"] += 1
            return
        task = asyncio.get_running_loop().create_task(self._run(request, answer, replace(record)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Drops the copies that run."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, request: BaseModel, answer: Any, served: RequestRecord) -> None:
        record = RequestRecord(model=served.model)
        try:
            pipeline = self._pipeline.for_task(served.task)
            candidate_answer = await pipeline.answer(request, time.monotonic() + TIMEOUT_S, "bulk", record)
        except Unavailable:
            self.stats.results["dropped"] += 1
            return
        except SwiftletError:
            self.stats.results["failed"] += 1
            return
        except Exception as error:
            log_exception(log, f"the candidate {served.model} {self.candidate.version} failed", error)
            self.stats.results["failed"] += 1
            return
        several = isinstance(getattr(request, "inputs", None), list)
        self.stats.add(compare(answer, candidate_answer, several=several), _engine_s(served), _engine_s(record))


class _OneByOne:
    """A scheduler that runs the sequences of a copy one after another, and counts it in no statistics."""

    def __init__(self, runtime: LocalRuntime, model: str) -> None:
        """`model` is the name of the model in the dispatcher."""
        self._runtime = runtime
        self._model = model
        self._turn = asyncio.Lock()

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[Awaitable[Row]]:
        lengths = [len(encoding.input_ids) for encoding in encodings]
        self._runtime.admission.commit(record, self._model, lengths, deadline - time.monotonic(), priority)
        return [self._run(encoding, deadline, priority, record) for encoding in encodings]

    def minimum_s(self, lengths: Sequence[int]) -> float:
        return self._runtime.admission.minimum_s(self._model, lengths)

    async def _run(
        self, encoding: Encoding, deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Row:
        async with self._turn:
            (row,) = self._runtime.dispatcher.submit(self._model, [encoding], deadline, priority, record)
            try:
                return await row
            finally:
                row.cancel()


class Shadows:
    """The shadow traffic of all models."""

    def __init__(self, runtime: LocalRuntime) -> None:
        self._runtime = runtime
        self._current: dict[str, Shadow] = {}  # by model
        self._ended: list[Shadow] = []  # that may still run copies

    def update(self, serving: Mapping[str, Wanted], versions: Mapping[tuple[str, int], Version]) -> None:
        """Starts and ends shadow traffic.

        Args:
            serving: the desired versions of each served model.
            versions: the versions by model and number.
        """
        for name in serving.keys() | self._current.keys():
            wanted = serving[name].shadow if name in serving else None
            candidate = None if wanted is None else versions[name, wanted.version].pipeline
            if (now := self._current.get(name)) is not None and now.candidate is not candidate:
                self._ended.append(self._current.pop(name))
            if wanted is not None and candidate is not None:
                if name not in self._current:
                    self._current[name] = Shadow(self._runtime, candidate, wanted.share, ShadowStats())
                self._current[name].share = wanted.share
        for version in versions.values():
            if version.pipeline is not None:
                shadow = self._current.get(version.name)
                copies = shadow is not None and version.pipeline is not shadow.candidate
                version.pipeline.on_answer = shadow.offer if shadow is not None and copies else None

    def stats(self) -> dict[tuple[str, int], ShadowStats]:
        """Returns a copy of the statistics by model and version of the candidate."""
        return {(name, shadow.candidate.version or 0): shadow.stats.copy() for name, shadow in self._current.items()}

    async def close_ended(self) -> None:
        """Drops the copies of shadow traffic that has ended. Must precede the release of a candidate."""
        while self._ended:
            await self._ended.pop().close()

    async def close(self) -> None:
        """Ends all shadow traffic."""
        self._ended += self._current.values()
        self._current.clear()
        await self.close_ended()


def _engine_s(record: RequestRecord) -> float:
    span = record.stages.get("infer")
    return 0.0 if span is None else span.duration_s
