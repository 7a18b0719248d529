"""The path of a request through one model: encode, submit to a scheduler, decode."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel

from swiftlet_models.encodings import Encoding, distinct
from swiftlet_serve.errors import DeadlineExceeded, FieldError, Internal, NotFound, Unavailable, Unprocessable
from swiftlet_serve.inference import partial_results, text_threads
from swiftlet_serve.inference.kept_rows import KeptRows
from swiftlet_serve.inference.loading import OpenModel
from swiftlet_serve.inference.partial_results import Input
from swiftlet_serve.inference.task_timer import TaskTimer
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks._requests import characters, texts
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Outcome, Priority, Row, Task
from swiftlet_serve.types.topk import Ranked

MAX_INLINE_CHARACTERS: Final = 300  # encoding up to this many takes no longer than a thread switch (0.15 ms)
MAX_INLINE_ASCII: Final = 4000  # the same for ASCII and a tokenizer in compiled code
MAX_INLINE_TEXTS: Final = 2  # of so many characters
MAX_INLINE_VALUES: Final = 2048  # decoding up to this many numbers takes no longer than a few thread switches (0.3 ms)
NO_ROW: Final = np.zeros((1, 0), np.float32)  # of a sequence whose answer is looked up
VALUES_OF_A_ROW: Final = 32  # numbers that take as long as a row, however short
# Limit of one request, whose rows stay in memory until the last one arrives. A task with small rows may allow more.
MAX_SEQUENCES: Final = 256

P = ParamSpec("P")
T = TypeVar("T")


class Scheduler(Protocol):
    """Admits the requests of one model and runs their sequences."""

    def submit(
        self, encodings: Sequence[Encoding], deadline: Deadline, priority: Priority, record: RequestRecord | None
    ) -> Sequence[Awaitable[Row]]:
        """Admits a request as a whole, queues its sequences and returns an awaitable for the row of each.

        Marks its record as accepted and counts it once it is admitted. The caller cancels the rows that it no longer
        needs. A scheduler in another process refuses a request later: each row then raises the error.

        Raises:
            DeadlineExceeded: the deadline has passed.
            TooManyRequests: the client exceeds its rate limit.
            Unavailable: the request is not admitted.
        """
        ...

    def minimum_s(self, lengths: Sequence[int]) -> float:
        """Predicts the seconds that the engine needs for a request alone, given the tokens of each sequence."""
        ...


class Together:
    """Lets requests go on in the same iteration of the event loop, once each one is encoded or has failed."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._complete = asyncio.Event()

    def arrive(self) -> None:
        """Notes that a request is encoded, or has failed."""
        self._left -= 1
        if not self._left:
            self._complete.set()

    async def wait(self) -> None:
        """Waits for all requests."""
        await self._complete.wait()


@dataclass
class _VersionState:
    """The state that the pipelines of all tasks of one version share."""

    on_answer: Callable[[BaseModel, Any, RequestRecord], None] | None = None
    last_used: float = 0.0
    in_progress: int = 0
    closed: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Pipeline:
    """Answers the requests of one task of a served model."""

    def __init__(
        self,
        model: OpenModel,
        scheduler: Scheduler,
        threads: ThreadPoolExecutor,
        settings: Settings,
        key: str | None = None,
        version: int | None = None,
        head: int = 0,
        *,
        keeps_rows: bool = False,
    ) -> None:
        """Creates the pipeline of a model.

        Args:
            model: the model and its task.
            scheduler: admits the requests and runs their sequences.
            threads: encode and decode long requests.
            settings: limit a request.
            key: the name under which the dispatcher knows the model. None: its own.
            version: its version in the model repository. None: it is from no repository.
            head: its head, if the dispatcher knows several models under the key, which share a trunk.
            keeps_rows: whether the rows of sequences that are marked as `kept` are kept for later requests.
        """
        self.model = model
        self.name = model.manifest.name
        self._scheduler = scheduler
        self._kept_rows = KeptRows(scheduler.submit) if keeps_rows else None
        self.key = key or self.name
        self.version = version
        self.head = head
        self._state = _VersionState()
        self._state.idle.set()
        self._others: dict[str, Pipeline] = {}  # by task
        self._threads = threads
        self._settings = settings
        self._longest_s = settings.longest_s
        self._timer = TaskTimer()

    def for_task(self, name: str) -> Pipeline:
        """Returns the pipeline of this version for another task that the model answers. The two share all state.

        Raises:
            NotFound: the model does not answer the task.
        """
        if name == self.model.task_name:
            return self
        if name not in self._others:
            if name not in self.model.task_names:
                raise wrong_task()
            pipeline = copy(self)
            pipeline.model = self.model.for_task(name)
            pipeline._others = {}  # not this pipeline: a circle would stay in memory after the version has gone
            self._others.setdefault(name, pipeline)  # another thread may have made it meanwhile
        return self._others[name]

    @property
    def on_answer(self) -> Callable[[BaseModel, Any, RequestRecord], None] | None:
        """Called with each answer of the version, for any of its tasks."""
        return self._state.on_answer

    @on_answer.setter
    def on_answer(self, value: Callable[[BaseModel, Any, RequestRecord], None] | None) -> None:
        self._state.on_answer = value

    @property
    def last_used(self) -> float:
        """When the last request of the version ended, on the monotonic clock; 0 before that."""
        return self._state.last_used

    async def answer(
        self,
        request: BaseModel,
        deadline: Deadline,
        priority: Priority = "interactive",
        record: RequestRecord | None = None,
        together: Together | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """Returns the response to a request of this model's task, as values for `json_text.write`.

        Args:
            request: the parsed request.
            deadline: the time at which the call raises at the latest.
            priority: the priority of its sequences.
            record: its record, which is marked as accepted and counted once the request is admitted.
            together: makes requests that are encoded wait for each other, so that those of one trunk share its work.
            max_bytes: the size beyond which a response that holds the whole answer is refused, if its texts tell so.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Unavailable: the request is not admitted.
            Unprocessable: the response would be too large.
            SwiftletError: the task or the engine failed.
        """
        lengths: list[int] = []  # of the sequences, once they are encoded
        if self._state.closed:  # after the request has chosen it
            detail = "The version of the model has just been replaced or removed. Send the request again."
            raise Unavailable("model_loading", detail, retry_after=1.0)
        self._begin()
        try:
            with self._timer.limit(deadline):
                try:
                    inputs, least_bytes = await self._encode(request, record, bounded=max_bytes is not None)
                    sequences = [sequence for input_ in inputs for sequence in input_.encodings]
                    kept_rows = self._kept_rows if any(sequence.kept for sequence in sequences) else None
                    computed = [*distinct(sequences).values()] if kept_rows is not None else sequences
                    lengths += [len(sequence.input_ids) for sequence in computed if not sequence.looked_up]
                    check_size(self.model.task, computed, self._settings.max_queued_tokens)
                    if max_bytes is not None:
                        check_response_size(least_bytes, max_bytes)
                    check_duration(lengths, self._scheduler.minimum_s, self._longest_s)
                    if len(lengths) > MAX_SEQUENCES:  # checking them takes milliseconds, and so does queueing them
                        await asyncio.sleep(0)
                finally:
                    if together is not None:
                        together.arrive()
                if record is not None and (left_out := sum([sequence.left_out for sequence in sequences])):
                    record.left_out = left_out
                    record.truncated = partial_results.truncated(self.model.task, request, inputs)
                if together is not None:
                    await together.wait()
                read = [replace(sequence, head=self.head) for sequence in sequences] if self.head else sequences
                submit = kept_rows.submit if kept_rows is not None else self._scheduler.submit
                rows = submit([each for each in read if not each.looked_up], deadline, priority, record)
                if record is not None:
                    record.tokens += sum([len(each.input_ids) for each in read if each.looked_up])
                found = iter(await _gather(rows, () if len(inputs) == 1 else Internal))
                outcomes = [NO_ROW if each.looked_up else next(found) for each in read]
                return await self._decode(inputs, sequences, outcomes, record)
        except (DeadlineExceeded, Unavailable):
            if record is not None and lengths:
                record.minimum_s = self._scheduler.minimum_s(lengths)
            raise
        finally:
            self._end()

    @property
    def version_name(self) -> str:
        """The version that clients see: the model repository's, or the artifact's without a repository."""
        return self.model.manifest.version if self.version is None else str(self.version)

    async def close(self) -> None:
        """Waits until no request of the version is in progress. Later ones are refused."""
        while self._state.in_progress:  # another one may begin before the event wakes this task
            await self._state.idle.wait()
        self._state.closed = True

    def _begin(self) -> None:
        self._state.in_progress += 1
        self._state.idle.clear()

    def _end(self) -> None:
        self._state.in_progress -= 1
        self._state.last_used = time.monotonic()
        if not self._state.in_progress:
            self._state.idle.set()

    async def _encode(
        self, request: BaseModel, record: RequestRecord | None, *, bounded: bool
    ) -> tuple[list[Input[Any, Any]], int]:
        """Returns the inputs with their sequences, and a lower bound of the size of the response, or 0 without one."""
        started = time.monotonic()
        if self._encodes_quickly(request):
            encoded = _encode(self.model.task, request, bounded=bounded)
        else:
            encoded = await self.run_in_thread(_encode, self.model.task, request, bounded=bounded)
        if record is not None:
            record.add_stage("encode", started, time.monotonic())
        return encoded

    def _encodes_quickly(self, request: BaseModel) -> bool:
        """Returns whether encoding takes no longer than a thread switch."""
        unread = getattr(self.model.task, "unread", characters)  # a task may know what earlier requests named
        length = unread(request)
        if self.model.manifest.reading.pair_prompt:  # which each text is read with
            return False
        if length <= MAX_INLINE_CHARACTERS:
            return True
        if length > MAX_INLINE_ASCII or not self.model.tokenizer.reads_ascii_quickly:
            return False
        given = texts(request)
        return len(given) <= MAX_INLINE_TEXTS and length == sum(map(len, given)) and all(map(str.isascii, given))

    async def _decode(
        self,
        inputs: Sequence[Input[Any, Any]],
        sequences: Sequence[Encoding],
        outcomes: Sequence[Outcome],
        record: RequestRecord | None,
    ) -> object:
        started = time.monotonic()
        room = MAX_INLINE_VALUES - VALUES_OF_A_ROW * len(sequences)
        compares_rows = getattr(self.model.task, "compares_rows", False)  # all at once: their numbers take no time
        if room >= 0 and (compares_rows or sum(map(_values, sequences, outcomes)) <= room):
            answer = partial_results.decode(self.model.task, inputs, outcomes)
        else:
            answer = await self.run_in_thread(partial_results.decode, self.model.task, inputs, outcomes)
        if record is not None:
            record.add_stage("decode", started, time.monotonic())
        return answer

    async def run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on a thread. Long texts must not block the event loop."""
        return await text_threads.run_in_thread(self._threads, function, *args, **kwargs)


def wrong_task() -> NotFound:
    """Returns the error for a model that does not answer the task of the request."""
    return NotFound("unknown_model", "No model of this name serves this task. See /models for the served models.")


def _encode(task: Task[Any, Any], request: BaseModel, *, bounded: bool) -> tuple[list[Input[Any, Any]], int]:
    inputs = partial_results.encode(task, request)
    least = getattr(task, "least_encoded_bytes", None) if bounded else None
    return inputs, 0 if least is None else least(request, [each for input_ in inputs for each in input_.encodings])


def check_size(task: Task[Any, Any], sequences: Sequence[Encoding], max_tokens: int) -> None:
    """Raises Unprocessable for a request that could never be admitted. A retry would be of no use."""
    positions = sum([len(sequence.focus) for sequence in sequences])
    for count, limit, unit in (
        (len(sequences), getattr(task, "max_sequences", MAX_SEQUENCES), "sequences"),
        (sum([len(sequence.input_ids) for sequence in sequences]), max_tokens, "tokens"),
        (positions, getattr(task, "max_positions", positions), "vectors"),
    ):
        if count > limit:
            fault = FieldError("/inputs", "input_too_long", limit)
            detail = f"The inputs have more than {limit} {unit} in total. Send fewer or shorter inputs."
            raise Unprocessable("input_too_long", detail, field_errors=[fault])


def check_response_size(size: int, max_bytes: int) -> None:
    """Limits the size of a response: a small request cannot cause a large one.

    Raises:
        Unprocessable: the response is larger than `max_bytes`.
    """
    if size > max_bytes:
        detail = f"The response would be larger than {max_bytes} bytes. Lower top_k or send fewer inputs."
        error = FieldError("", "answer_too_large", max_bytes)
        raise Unprocessable("answer_too_large", detail, field_errors=[error])


def check_duration(lengths: Sequence[int], minimum_s: Callable[[Sequence[int]], float], longest_s: float) -> None:
    """Raises Unprocessable for a request that takes longer than the longest deadline, even alone.

    Args:
        lengths: tokens of each of its sequences.
        minimum_s: predicts the seconds that the engine needs for sequences of some lengths.
        longest_s: the longest time to a deadline.
    """
    if not lengths or (request_s := minimum_s(lengths)) <= longest_s:
        return
    fitting = bisect_right(range(1, max(lengths) + 1), longest_s, key=lambda length: minimum_s([length]))
    if fitting < max(lengths):
        limit, what, advice = fitting, "A text", "a shorter text"
    else:
        limit, what, advice = int(sum(lengths) * longest_s / request_s), "A request", "fewer or shorter inputs"
    detail = (
        f"{what} of more than {limit} tokens takes longer on this server than the longest deadline, which is "
        f"{longest_s:g} seconds. Send {advice}."
    )
    fault = FieldError("/inputs", "input_too_long", limit)
    raise Unprocessable("input_too_long", detail, field_errors=[fault])


def _values(sequence: Encoding, outcome: Outcome) -> int:
    """Returns the number of values to decode. A ranked value is written with its text, and counts for each token."""
    if isinstance(outcome, Internal):
        return 0
    return outcome.size * len(sequence.input_ids) if isinstance(sequence, Ranked) else outcome.size


async def _gather(rows: Sequence[Awaitable[Row]], keeps: type[Exception] | tuple[()] = ()) -> list[Any]:
    """Returns all rows in order. If one raises or the caller is cancelled, the others are cancelled.

    An error of the type that `keeps` names takes the place of its row: the other inputs still get their answers.
    """
    futures = [row if isinstance(row, asyncio.Future) else asyncio.ensure_future(row) for row in rows]
    try:
        if len(futures) == 1 and not keeps:
            return [await futures[0]]
        left, failed, ended = len(futures), list[asyncio.Future[Row]](), asyncio.Event()

        def on_done(future: asyncio.Future[Row]) -> None:
            nonlocal left
            left -= 1
            if future.cancelled() or not (future.exception() is None or isinstance(future.exception(), keeps)):
                failed.append(future)
            if failed or not left:
                ended.set()

        for future in futures:  # asyncio.wait takes several times as long
            future.add_done_callback(on_done)
        if futures:
            await ended.wait()
        for future in failed:
            future.result()
        return [future.exception() or future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
