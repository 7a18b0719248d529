"""The path of one request through one model: encode, submit, decode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from pydantic import BaseModel

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service import partial_results, tasks
from swiftlet_serve.service.errors import (
    FieldError,
    Internal,
    Unprocessable,
    deadline_exceeded,
)
from swiftlet_serve.service.loading import ServedModel
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.topk import Ranked
from swiftlet_serve.service.types import Deadline, Priority, Row, Submit

SHORT: Final = 300  # characters: to encode so few takes as long as to ask a thread for it (0.15 ms)
LIGHT: Final = 256  # numbers or tokens: to decode so few takes no longer than to ask a thread for it (0.1 ms)
MAX_ROWS: Final = 256  # of one request: what comes back of them is held until the last is there

P = ParamSpec("P")
T = TypeVar("T")


class Pipeline:
    """One served model: a request in, its answer out."""

    def __init__(self, model: ServedModel, submit: Submit, threads: ThreadPoolExecutor, max_tokens: int) -> None:
        """`threads` read and write text; `max_tokens` is the most work one request may bring."""
        self.model = model
        self._submit = submit
        self._threads = threads
        self._max_tokens = max_tokens

    async def answer(self, request: BaseModel, deadline: Deadline, priority: Priority = "interactive") -> Any:
        """The response to a request of this pipeline's task, as JSON-serialisable values.

        Raises:
            SwiftletError: as the task, the batcher or the engine says; DeadlineExceeded in any case by the deadline.
        """
        task = self.model.task
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                with request_record.measure("encode"):
                    short = tasks.characters(request) <= SHORT
                    parts = await self._run(short, partial_results.encode, task, request)
                encodings = [encoding for part in parts for encoding in part.encodings]
                self._check_size(encodings)
                work = self._submit(encodings, deadline, priority) if encodings else []
                request_record.accept(len(encodings), sum(len(encoding.input_ids) for encoding in encodings))
                outcomes = await _all(work if len(parts) == 1 else [_spared(one) for one in work])
                with request_record.measure("decode"):
                    light = sum(map(_weight, encodings, outcomes)) <= LIGHT
                    return await self._run(light, partial_results.decode, task, parts, outcomes)
        except TimeoutError:
            raise deadline_exceeded() from None

    async def _run(self, light: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function`; on a thread unless it is light, so that nobody else waits for a long text."""
        if light:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def _check_size(self, encodings: Sequence[Encoding]) -> None:
        """A request that could never be admitted is refused for good, not asked to come again."""
        for count, limit, unit in (
            (len(encodings), MAX_ROWS, "rows"),
            (sum(len(encoding.input_ids) for encoding in encodings), self._max_tokens, "tokens"),
        ):
            if count > limit:
                fault = FieldError("/inputs", "input_too_long", limit)
                detail = f"The inputs come to more than {limit} {unit}, the most that one request may bring."
                raise Unprocessable("input_too_long", detail, field_errors=[fault])


def _weight(encoding: Encoding, outcome: Row | Internal) -> int:
    """How many numbers there are to read. One that is ranked is written with its text, and counts for its tokens."""
    if isinstance(outcome, Internal):
        return 0
    return outcome.size * len(encoding.input_ids) if isinstance(encoding, Ranked) else outcome.size


async def _spared(work: Awaitable[Row]) -> Row | Internal:
    """A row that cannot be had is no reason to give up the others."""
    try:
        return await work
    except Internal as error:
        return error


async def _all(work: Sequence[Awaitable[Row | Internal]]) -> list[Row | Internal]:
    """All outcomes, in order; if one fails or the caller goes, nobody works on the rest."""
    submitted = [asyncio.ensure_future(one) for one in work]
    try:
        if len(submitted) == 1:
            return [await submitted[0]]
        return await asyncio.gather(*submitted)
    finally:
        for one in submitted:
            one.cancel()
