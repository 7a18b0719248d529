"""The path of a request through one model: encode, admit, submit, decode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from pydantic import BaseModel

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service import partial_results, tasks
from swiftlet_serve.service.deadlines import Deadlines
from swiftlet_serve.service.errors import DeadlineExceeded, FieldError, Internal, Unavailable, Unprocessable
from swiftlet_serve.service.loading import ServedModel
from swiftlet_serve.service.partial_results import Input
from swiftlet_serve.service.scheduling.admission import AdmissionController
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from swiftlet_serve.service.topk import Ranked
from swiftlet_serve.service.types import Deadline, Outcome, Priority, Row

MAX_INLINE_CHARACTERS: Final = 300  # encoding up to this many takes no longer than a thread switch (0.15 ms)
MAX_INLINE_VALUES: Final = 256  # decoding up to this many numbers takes no longer than a thread switch (0.1 ms)
# Of one request, whose rows stay in memory until the last one is there. A task with small rows may allow more.
MAX_SEQUENCES: Final = 256

Submit = Callable[[Sequence[Encoding], Deadline, Priority, RequestRecord | None], Sequence[Awaitable[Row]]]
"""Queues all sequences of a request and returns an awaitable for the row of each.

`Dispatcher.submit` is one, for a given model. The caller cancels the rows that it no longer needs.
"""

P = ParamSpec("P")
T = TypeVar("T")


class Pipeline:
    """Answers the requests of one served model."""

    def __init__(
        self,
        model: ServedModel,
        admission: AdmissionController,
        submit: Submit,
        stats: RequestStats,
        threads: ThreadPoolExecutor,
        max_tokens: int,
    ) -> None:
        """Creates the pipeline of a model.

        Args:
            model: the model and its task.
            admission: decides whether a request is admitted.
            submit: queues the sequences of an admitted request.
            stats: counts the accepted requests.
            threads: encode and decode long requests.
            max_tokens: limit of one request.
        """
        self.model = model
        self._admission = admission
        self._submit = submit
        self._stats = stats
        self._threads = threads
        self._max_tokens = max_tokens
        self._deadlines = Deadlines()

    async def answer(
        self,
        request: BaseModel,
        deadline: Deadline,
        priority: Priority = "interactive",
        record: RequestRecord | None = None,
    ) -> Any:
        """Returns the response to a request of this model's task, as JSON-serialisable values.

        Args:
            request: the parsed request.
            deadline: the time at which the call raises at the latest.
            priority: the priority of its sequences.
            record: its record, which is marked as accepted and counted once the request is admitted.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: the request is not admitted.
            SwiftletError: the task or the engine failed.
        """
        sequences: list[Encoding] = []
        try:
            with self._deadlines.limit(deadline):
                inputs = await self._encode(request, record)
                sequences += [sequence for one in inputs for sequence in one.encodings]
                self._admit(sequences, deadline, priority, record)
                rows = self._submit(sequences, deadline, priority, record)
                outcomes = await _gather(rows if len(inputs) == 1 else [_row_or_error(row) for row in rows])
                return await self._decode(inputs, sequences, outcomes, record)
        except (DeadlineExceeded, Unavailable):
            if record is not None and sequences:
                lengths = [len(sequence.input_ids) for sequence in sequences]
                record.least_s = self._admission.least_s(self.model.manifest.name, lengths)
            raise

    async def _encode(self, request: BaseModel, record: RequestRecord | None) -> list[Input[Any, Any]]:
        started = time.monotonic()
        if tasks.characters(request) <= MAX_INLINE_CHARACTERS:
            inputs = partial_results.encode(self.model.task, request)
        else:
            inputs = await self._run_in_thread(partial_results.encode, self.model.task, request)
        if record is not None:
            record.add_stage("encode", started, time.monotonic())
        return inputs

    def _admit(
        self, sequences: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> None:
        """Admits the request, marks its record as accepted and counts it.

        Raises:
            Unprocessable: the request is larger than any request may be.
            Unavailable: the request is not admitted.
        """
        lengths = [len(sequence.input_ids) for sequence in sequences]
        self._check_size(lengths)
        left_s = deadline - time.monotonic()
        self._admission.commit(record, self.model.manifest.name, lengths, left_s, priority)
        if record is not None:
            record.accept(len(lengths), sum(lengths))
            self._stats.accept(record)

    async def _decode(
        self,
        inputs: Sequence[Input[Any, Any]],
        sequences: Sequence[Encoding],
        outcomes: Sequence[Outcome],
        record: RequestRecord | None,
    ) -> object:
        started = time.monotonic()
        if sum(map(_values, sequences, outcomes)) <= MAX_INLINE_VALUES:
            answer = partial_results.decode(self.model.task, inputs, outcomes)
        else:
            answer = await self._run_in_thread(partial_results.decode, self.model.task, inputs, outcomes)
        if record is not None:
            record.add_stage("decode", started, time.monotonic())
        return answer

    async def _run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on a thread. Long texts must not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def _check_size(self, lengths: Sequence[int]) -> None:
        """Raises Unprocessable for a request that could never be admitted. A retry would be of no use."""
        for count, limit, unit in (
            (len(lengths), getattr(self.model.task, "max_sequences", MAX_SEQUENCES), "sequences"),
            (sum(lengths), self._max_tokens, "tokens"),
        ):
            if count > limit:
                fault = FieldError("/inputs", "input_too_long", limit)
                detail = f"The inputs have more than {limit} {unit} in total. Send fewer or shorter inputs."
                raise Unprocessable("input_too_long", detail, field_errors=[fault])


def _values(sequence: Encoding, outcome: Outcome) -> int:
    """Returns the number of values to decode. A ranked value is written with its text, and counts for each token."""
    if isinstance(outcome, Internal):
        return 0
    return outcome.size * len(sequence.input_ids) if isinstance(sequence, Ranked) else outcome.size


async def _row_or_error(row: Awaitable[Row]) -> Outcome:
    """Returns the engine's error instead of raising it, so that the other inputs are still answered."""
    try:
        return await row
    except Internal as error:
        return error


async def _gather(rows: Sequence[Awaitable[Outcome]]) -> list[Outcome]:
    """Returns all outcomes in order. If one raises or the caller is cancelled, the others are cancelled."""
    futures = [asyncio.ensure_future(row) for row in rows]
    try:
        if len(futures) == 1:
            return [await futures[0]]
        return await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()
