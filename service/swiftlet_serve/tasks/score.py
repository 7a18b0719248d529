"""Score: the log-likelihood of a text, or of a continuation after a prompt, under a causal language model.

Each token but the first of a text has a probability given the tokens before it. The values equal those of
`GPT2LMHeadModel` in transformers, whose loss with the text's ids as labels is the negative mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Ids, TokenizedText
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import FieldError, Unprocessable
from swiftlet_serve.tasks._requests import (
    MAX_INPUTS,
    Failure,
    OneByOne,
    Request,
    Strict,
    empty_input,
    input_too_long,
    listed,
    pointers,
)
from swiftlet_serve.types import Row, json_text
from swiftlet_serve.types.topk import Scored

HEAD: Final = "causal_lm"
OUTPUTS: Final = "vocabulary"

LEAST_TOKEN: Final = {"token": 0, "start": 0, "end": 0, "log_probability": 0.0}
MAX_EXPONENT: Final = 700.0  # the exponential of more is not a finite number


class Continuation(Strict):
    """A prompt and the text after it. Only the continuation is scored."""

    prompt: Annotated[str, Field(description="The text before the continuation. It may be empty.")]
    continuation: Annotated[
        str,
        Field(
            description="The text to score, with the space in front of it. A token that begins in the prompt counts."
        ),
    ]


class ScoreParameters(Strict):
    """Options for the response."""

    return_tokens: Annotated[bool, Field(description="Returns every scored token with its log-probability.")] = False


class ScoreRequest(Request):
    """A request for the log-likelihoods of texts."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": [{"prompt": "The capital of France is", "continuation": " Paris."}]}]
        }
    )

    inputs: Annotated[
        str | Continuation | Annotated[list[str | Continuation], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A text, a prompt with a continuation, or a list of either."),
    ]
    parameters: Annotated[ScoreParameters | None, Field(description="Optional parameters.")] = None


class ScoredToken(BaseModel):
    """A token and its log-probability given the tokens before it."""

    token: Annotated[int, Field(description="Id of the token.")]
    start: Annotated[int, Field(description="Start of the token in the prompt and continuation, in code points.")]
    end: Annotated[int, Field(description="End of the token.")]
    log_probability: Annotated[float, Field(description="Natural logarithm of its probability.")]


class Likelihood(BaseModel):
    """The log-likelihood of one text."""

    log_likelihood: Annotated[float, Field(description="Sum of the log-probabilities of the scored tokens.")]
    token_count: Annotated[int, Field(description="Number of scored tokens.")]
    mean: Annotated[float, Field(description="Log-likelihood per token.")]
    perplexity: Annotated[float, Field(description="Exponential of the negative mean.")]
    tokens: Annotated[
        list[ScoredToken] | None, Field(description="The scored tokens, if return_tokens is true; else null.")
    ] = None


def create(tokenizer: Tokenizer, manifest: Manifest) -> ScoreTask:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has labels.
    """
    tasks.check_unlabelled(manifest)
    return ScoreTask(tokenizer, manifest)


@dataclass(eq=False)
class ScoredText(Scored):
    """A text. The engine returns the log-probabilities of some of its tokens."""

    spans: Ids  # (F, 2): start and end of these tokens in the prompt and continuation, in code points


class ScoreTask(OneByOne):
    """One sequence for each text. Its row holds the log-probabilities of the scored tokens, (F, 1)."""

    Request = ScoreRequest
    Response = Likelihood | list[Likelihood | Failure]
    max_sequences: ClassVar[int] = MAX_INPUTS  # a row has a number for each token

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer = tokenizer
        self.max_tokens = manifest.max_tokens

    def encode(self, request: ScoreRequest) -> list[ScoredText]:
        """Encodes each text as one sequence.

        Raises:
            Unprocessable: a text is empty, has no token that can be scored, or exceeds the token limit.
        """
        inputs: list[str | Continuation] = listed(request.inputs)
        places = pointers(request.inputs)
        parts = [_parts(item, pointer) for item, pointer in zip(inputs, places, strict=True)]
        limit = self.max_tokens - self.tokenizer.special_count(pair=False)
        tokenized = self.tokenizer.tokenize([prompt + text for prompt, text in parts], limit)
        return [
            self._encoding(tokens, len(prompt), pointer)
            for tokens, (prompt, _), pointer in zip(tokenized, parts, places, strict=True)
        ]

    def decode(self, request: ScoreRequest, encodings: Sequence[ScoredText], rows: Sequence[Row]) -> object:
        """Returns the log-likelihood of each text. A single text has no outer list."""
        with_tokens = request.parameters is not None and request.parameters.return_tokens
        pairs = in_turns(zip(encodings, rows, strict=True))
        answers = [_likelihood(encoding, row, with_tokens) for encoding, row in pairs]
        return answers if isinstance(request.inputs, list) else answers[0]

    def least_encoded_bytes(self, request: ScoreRequest, encodings: Sequence[ScoredText]) -> int:
        """Returns a lower bound of the size of the response to texts that are encoded."""
        if not encodings or request.parameters is None or not request.parameters.return_tokens:
            return 0
        targets = np.concatenate([text.targets for text in encodings])
        spans = np.concatenate([text.spans for text in encodings])
        return json_text.least_bytes(LEAST_TOKEN, (targets, *spans.T))

    def _encoding(self, tokens: TokenizedText, prompt: int, pointer: str) -> ScoredText:
        """Encodes a text whose first `prompt` characters are not scored."""
        if tokens.left_out:
            raise self._too_long(pointer)
        input_ids, token_type_ids, first = self.tokenizer.sequence(tokens)
        positions = first + np.flatnonzero(tokens.offsets[:, 1] > prompt)
        positions = positions[positions > 0]
        if not len(positions):
            detail = "No token can be scored, because the first token of a text has no probability. Send a longer text."
            raise Unprocessable("too_few_tokens", detail, field_errors=[FieldError(pointer, "too_few_tokens")])
        return ScoredText(
            input_ids,
            token_type_ids,
            focus=positions - 1,
            targets=input_ids[positions],
            spans=tokens.offsets[positions - first],
        )

    def _too_long(self, pointer: str) -> Unprocessable:
        detail = f"The text has more than {self.max_tokens} tokens. Shorten it."
        return input_too_long(pointer, detail, self.max_tokens)


def _parts(item: str | Continuation, pointer: str) -> tuple[str, str]:
    """Returns the prompt and the text to score."""
    if isinstance(item, str):
        prompt, text = "", item
    else:
        prompt, text, pointer = item.prompt, item.continuation, f"{pointer}/continuation"
    if not text.strip():
        raise empty_input(pointer)
    return prompt, text


def _likelihood(encoding: ScoredText, row: Row, with_tokens: bool) -> dict[str, Any]:
    values = row[:, 0].astype(np.float64)
    total, mean = float(values.sum()), float(values.mean())
    tokens = None
    if with_tokens:
        columns = encoding.targets.tolist(), encoding.spans.tolist(), values.tolist()
        tokens = [
            {"token": token, "start": start, "end": end, "log_probability": value}
            for token, (start, end), value in zip(*columns, strict=True)
        ]
    perplexity = math.exp(min(-mean, MAX_EXPONENT))
    return {
        "log_likelihood": total,
        "token_count": len(values),
        "mean": mean,
        "perplexity": perplexity,
        "tokens": tokens,
    }


TASK: Final = ScoreTask
