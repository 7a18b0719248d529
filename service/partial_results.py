"""Requests with several inputs of which each may fail by itself: `"partial": true`.

Every input is answered as if it had been sent alone. What is wrong with one of them, its text or the model's answer to
it, stands in its answer's place; what concerns the request (its parameters, admission, the deadline) still fails it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Generic

from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import Internal, SwiftletError, Unprocessable
from swiftlet_serve.service.types import EncodingT, RequestT, Row, Task

OF_THE_TEXT: Final = frozenset({"empty_input", "input_too_long", "no_mask"})  # codes that blame one input alone


@dataclass(frozen=True)
class Part(Generic[RequestT, EncodingT]):
    """One input: a request with it alone, and its encodings or why it has none."""

    request: RequestT
    encodings: Sequence[EncodingT]
    error: Unprocessable | None = None


def encode(task: Task[RequestT, EncodingT], request: RequestT) -> list[Part[RequestT, EncodingT]]:
    """The inputs by themselves where that is asked for and there are several; else all of them as one part.

    Raises:
        Unprocessable: as the task says of the one part, or of what concerns the whole request.
    """
    requests = task.split(request) if isinstance(request, tasks.Request) and request.partial else []
    if len(requests) < 2:
        return [Part(request, task.encode(request))]
    return [_encode(task, one) for one in requests]


def decode(task: Task[Any, Any], parts: Sequence[Part[Any, Any]], outcomes: Sequence[Row | Internal]) -> object:
    """The response; the outcomes are of all parts' encodings, in their order.

    Raises:
        Internal: there is one part, and it failed.
    """
    left = iter(outcomes)
    found = [(part, list(islice(left, len(part.encodings)))) for part in parts]
    if len(found) == 1:
        ((part, own),) = found
        return _answer(task, part, own)
    return [_answer_or_failure(task, part, own) for part, own in found]


def _encode(task: Task[RequestT, EncodingT], request: RequestT) -> Part[RequestT, EncodingT]:
    try:
        return Part(request, task.encode(request))
    except Unprocessable as error:
        if error.code not in OF_THE_TEXT:
            raise
        return Part(request, [], error)


def _answer(task: Task[Any, Any], part: Part[Any, Any], outcomes: Sequence[Row | Internal]) -> object:
    rows: list[Row] = []
    for outcome in outcomes:
        if isinstance(outcome, Internal):
            raise outcome
        rows.append(outcome)
    return task.decode(part.request, part.encodings, rows)


def _answer_or_failure(task: Task[Any, Any], part: Part[Any, Any], outcomes: Sequence[Row | Internal]) -> object:
    try:
        if part.error is not None:
            raise part.error
        return task.single(_answer(task, part, outcomes))
    except SwiftletError as error:
        return tasks.Failure(error=error.detail, error_type=error.code, code=error.code).model_dump()
