"""The path of a request that only the tokenizer of a model answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pydantic import BaseModel

from swiftlet_serve.inference import partial_results
from swiftlet_serve.inference.pipeline import Pipeline, Together
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Priority


class TokenizerTask(Protocol):
    """The parts of a task that a tokenizer answers. It has no sequences, and gets no rows."""

    def encode(self, request: Any, /) -> list[Any]: ...

    def decode(self, request: Any, encodings: Sequence[Any], rows: Sequence[Any], /) -> object: ...


class TokenizerPipeline(Pipeline):
    """Answers requests without the engine. They need admission and have deadlines, and the queue never holds them.

    The statistics of the model do not count them, and no shadow version answers them.
    """

    def __init__(self, pipeline: Pipeline, task: TokenizerTask, write: Callable[[Any], bytes]) -> None:
        """Creates the pipeline of one request.

        Args:
            pipeline: the pipeline of the model.
            task: the task of the tokenizer.
            write: returns the body of the response, given the task's answer.
        """
        model = replace(pipeline.model, task=task)  # type: ignore[arg-type]  # no other part of a task is used
        super().__init__(model, pipeline._scheduler, pipeline._threads, pipeline._settings, version=pipeline.version)
        self._timer = pipeline._timer  # a timer of its own would stay in the loop until the deadline
        self._write = write

    async def answer(
        self,
        request: BaseModel,
        deadline: Deadline,
        priority: Priority = "interactive",  # noqa: ARG002  # the threads have no order
        record: RequestRecord | None = None,
        together: Together | None = None,  # noqa: ARG002  # there is no engine to share
        max_bytes: int | None = None,  # noqa: ARG002  # nor one to save
    ) -> bytes:
        """Returns the body of the response to a request, with the arguments of `Pipeline.answer`.

        Raises:
            DeadlineExceeded: the deadline has passed.
            SwiftletError: the task failed.
        """
        started = time.monotonic()
        with self._timer.limit(deadline):
            answer = await self.run_in_thread(self._run, request)
        if record is not None:
            record.add_stage("encode", started, time.monotonic())
        return answer

    def _run(self, request: BaseModel) -> bytes:
        task = self.model.task
        return self._write(task.decode(request, partial_results.encode_whole(task, request), ()))
