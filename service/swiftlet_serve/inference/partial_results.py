"""Requests whose inputs may fail one by one (`"partial": true`).

Each input has the answer that it would have alone. The error of an input, in its text or in the engine's output, takes
the place of its answer. An error of the request as a whole (its parameters, its admission, its deadline) still fails
the request.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, Generic, NamedTuple

from swiftlet_models.checkpoint_tokenizer import TokenizerFault
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import Internal, SwiftletError, Unprocessable
from swiftlet_serve.tasks._requests import Request, failure, pointers
from swiftlet_serve.types import EncodingT, Outcome, RequestT, Task

log = logging.getLogger(__name__)

INPUT_ERRORS: Final = frozenset({"empty_input", "input_too_long", "no_mask", "tokenizer_failed", "too_few_tokens"})
"""Error codes that concern one input alone."""


class Input(NamedTuple, Generic[RequestT, EncodingT]):
    """One input as a separate request, with its sequences or its error."""

    request: RequestT
    encodings: Sequence[EncodingT]
    error: Unprocessable | Internal | None = None


def encode(task: Task[RequestT, EncodingT], request: RequestT) -> list[Input[RequestT, EncodingT]]:
    """Encodes each input of a partial request separately, and any other request as one input.

    Raises:
        Unprocessable: the request is invalid as a whole, or an input is invalid and the request is not partial.
    """
    requests = task.split(request) if isinstance(request, Request) and request.partial else []
    if len(requests) < 2:
        return [Input(request, encode_whole(task, request))]
    return [_encode(task, part) for part in in_turns(requests)]


def encode_whole(task: Task[RequestT, EncodingT], request: RequestT) -> Sequence[EncodingT]:
    """Encodes a request.

    Raises:
        Internal: the model's tokenizer failed on a text.
        Unprocessable: the request is invalid.
    """
    try:
        return task.encode(request)
    except TokenizerFault as fault:
        raise _failed(fault) from None


def _failed(fault: TokenizerFault) -> Internal:
    """Returns the error of a request on whose text the tokenizer failed, and logs the fault without the text."""
    log.error("a model's tokenizer failed on a text: %s", type(fault.__cause__).__name__)
    detail = "The model's tokenizer failed on a text of this request. The fault is the model's: tell its operator."
    return Internal("tokenizer_failed", detail)


def truncated(task: Task[Any, Any], request: Any, inputs: Sequence[Input[Any, Any]]) -> tuple[str, ...]:
    """Returns the JSON Pointers of the texts that were cut, in order. A text in several sequences counts once."""
    if (of_task := getattr(task, "truncated", None)) is not None:  # its requests are one input each
        return tuple(of_task([sequence for input_ in inputs for sequence in input_.encodings]))
    places = pointers(request.inputs)
    if len(inputs) == 1:
        cut = {sequence.text_index for sequence in inputs[0].encodings if sequence.left_out}
    else:
        cut = {index for index, input_ in enumerate(inputs) if any(sequence.left_out for sequence in input_.encodings)}
    return tuple(places[index] for index in sorted(cut))


def decode(task: Task[Any, Any], inputs: Sequence[Input[Any, Any]], outcomes: Sequence[Outcome]) -> object:
    """Returns the response. `outcomes` holds the outcomes of all inputs' sequences, in order.

    Raises:
        Internal: the engine failed on the only input.
    """
    left = iter(outcomes)
    pairs = [(input_, list(islice(left, len(input_.encodings)))) for input_ in inputs]
    if len(pairs) == 1:
        ((only, own),) = pairs
        return _decode(task, only, own)
    return [_decode_or_error(task, input_, own) for input_, own in in_turns(pairs)]


def _encode(task: Task[RequestT, EncodingT], request: RequestT) -> Input[RequestT, EncodingT]:
    try:
        return Input(request, encode_whole(task, request))
    except (Unprocessable, Internal) as error:
        if error.code not in INPUT_ERRORS:
            raise
        return Input(request, [], error)


def _decode(task: Task[Any, Any], input_: Input[Any, Any], outcomes: Sequence[Outcome]) -> object:
    rows = []
    for outcome in outcomes:
        if isinstance(outcome, Internal):
            raise outcome
        rows.append(outcome)
    try:
        return task.decode(input_.request, input_.encodings, rows)
    except TokenizerFault as fault:
        raise _failed(fault) from None


def _decode_or_error(task: Task[Any, Any], input_: Input[Any, Any], outcomes: Sequence[Outcome]) -> object:
    try:
        if input_.error is not None:
            raise input_.error
        return task.single(_decode(task, input_, outcomes))
    except SwiftletError as error:
        return failure(error).model_dump()
