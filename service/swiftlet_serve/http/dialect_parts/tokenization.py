"""Texts to tokens and back, as a model's tokenizer does it. Only the protocols of other servers have such routes.

The tokens are those that the model reads: a text that looks like a special token is text. Offsets count code points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from swiftlet_models.encodings import TokenizedText
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import invalid_value
from swiftlet_serve.http.endpoints.model_endpoint import TaskResponse, Translation
from swiftlet_serve.http.wording import Wording
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.tokenizer_pipeline import TokenizerPipeline
from swiftlet_serve.tasks._requests import Request, Texts, input_too_long
from swiftlet_serve.tasks.embed import TokenIds
from swiftlet_serve.telemetry.request_record import RequestRecord

MAX_TOKENS: Final = 1 << 16
"""The most tokens of a request, which a thread writes in 0.1 s."""
TOKEN_BYTES: Final = 128  # of a usual token in an answer, at most
PART: Final = 64  # tokens that are made and written at a time


class TokenizeRequest(Request):
    """Texts to tokenise. Dialects construct it from a valid body."""

    inputs: Texts
    special_tokens: bool


class DetokenizeRequest(Request):
    """Token ids of texts to write. Dialects construct it from a valid body: 120,000 ids take 9 ms to validate again."""

    inputs: list[TokenIds]
    skip_special_tokens: bool


Token = dict[str, Any]
"""A token: `id`, `text`, `special`, and its code points from `start` up to `stop`. A special one has no place."""
Parts = Iterator[list[Token]]
"""The tokens of a text, a few at a time: all of them would stop other threads when they are freed at once."""


class _TokenizerTask:
    """The part of both tasks that follows from one tokenizer."""

    max_response_bytes: ClassVar[int] = MAX_TOKENS * TOKEN_BYTES

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer


class Tokenize(_TokenizerTask):
    """Returns the tokens of each text."""

    def encode(self, request: TokenizeRequest) -> list[Any]:
        """Returns the tokens of each text, without special ones.

        Raises:
            Unprocessable: there are more than `MAX_TOKENS`.
        """
        texts = self.tokenizer.tokenize(request.inputs)
        if sum(map(len, texts)) > MAX_TOKENS:
            detail = f"The inputs have more than {MAX_TOKENS} tokens in total. Send fewer or shorter inputs."
            raise input_too_long("/inputs", detail, MAX_TOKENS)
        return texts

    def decode(self, request: TokenizeRequest, encodings: Sequence[Any], _: Sequence[Any]) -> Iterator[Parts]:
        """Yields the tokens of each text."""
        for text, tokens in zip(request.inputs, encodings, strict=True):
            yield self._parts(text, tokens, special_tokens=request.special_tokens)

    def _parts(self, text: str, tokens: TokenizedText, *, special_tokens: bool) -> Parts:
        before, after = self.tokenizer.special_ends if special_tokens else ([], [])
        yield self._special(before)
        for start in in_turns(range(0, len(tokens), PART)):
            yield _tokens(text, tokens.part(start, start + PART))
        yield self._special(after)

    def _special(self, ids: Sequence[int | None]) -> list[Token]:
        return [
            {"id": number, "text": self.tokenizer.token(number), "special": True, "start": None, "stop": None}
            for number in ids
            if number is not None
        ]


class Detokenize(_TokenizerTask):
    """Returns the text of each row of token ids."""

    def encode(self, request: DetokenizeRequest) -> list[Any]:
        """Returns the ids to write of each row.

        Raises:
            Unprocessable: an id is not in the vocabulary.
        """
        for row, ids in enumerate(request.inputs):
            wrong = [number for number in dict.fromkeys(ids) if not self.tokenizer.token(number)]
            if wrong:
                detail = "A token id is not in the vocabulary of the model. Send ids of its tokens."
                raise invalid_value(f"/inputs/{row}/{ids.index(wrong[0])}", "unknown_token", detail)
        skipped = self.tokenizer.special_ids if request.skip_special_tokens else frozenset()
        return [[number for number in ids if number not in skipped] for ids in request.inputs]

    def decode(self, request: DetokenizeRequest, encodings: Sequence[Any], _: Sequence[Any]) -> list[str]:  # noqa: ARG002
        """Returns the text of each row."""
        return self.tokenizer.decode(encodings)


def translation(
    pipeline: Pipeline,
    task: Tokenize | Detokenize,
    request: TokenizeRequest | DetokenizeRequest,
    write: Callable[[Any], bytes],
    wording: Wording,
) -> Translation:
    """Returns a translation with a request to the tokenizer of a model.

    Args:
        pipeline: the pipeline of the model.
        task: the task.
        request: its request.
        write: returns the body of the response, given the task's answer. A thread runs it.
        wording: puts errors of the request in the client's terms.
    """

    def render(body: bytes, _: RequestRecord) -> TaskResponse:
        return TaskResponse(body)

    return Translation(TokenizerPipeline(pipeline, task, write), request, render, wording=wording)


def _tokens(text: str, tokens: TokenizedText) -> list[Token]:
    return [
        {"id": number, "text": text[start:stop], "special": False, "start": start, "stop": stop}
        for number, start, stop in zip(tokens.ids.tolist(), *tokens.offsets.T.tolist(), strict=True)
    ]
