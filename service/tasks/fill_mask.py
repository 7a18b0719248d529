"""Fill-mask: the likeliest tokens in the places of the mask token.

The meaning is that of transformers 4.57.1's `FillMaskPipeline`: probabilities are over the whole vocabulary, also where
only some targets are wanted. A text with one mask is answered by a flat list, one with several by a list for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_serve.models.artifact import Manifest
from swiftlet_serve.models.tokenizer import Encoding, Ids, TextTooLong, Tokenizer
from swiftlet_serve.service import tasks
from swiftlet_serve.service.errors import FieldError, Unprocessable
from swiftlet_serve.service.tasks import MAX_INPUTS, Failure, Strict
from swiftlet_serve.service.topk import NOTHING, Ranked, Ranking
from swiftlet_serve.service.types import Row

MAX_MASKS: Final = 64  # in one request: each is ranked by itself, and answered with a list of its own
MAX_WRITTEN: Final = 1 << 18  # characters of all sequences of an answer: a fifth of a second of decoding
USUAL_CHARACTERS: Final = 8  # of a token, at most, in prose: what is read of a longer text is cut off
DEFAULT_TOP_K: Final = 5

HEAD: Final = "masked_lm"
OUTPUTS: Final = "vocabulary"

Target = Annotated[str, Field(max_length=200)]


class FillMaskParameters(Strict):
    """How many tokens are wanted, and out of which."""

    top_k: Annotated[int, Field(description="How many tokens to return for each mask, best first.", ge=1, le=100)] = (
        DEFAULT_TOP_K
    )
    targets: Annotated[
        Target | Annotated[list[Target], Field(min_length=1, max_length=256)] | None,
        Field(description="Only these words; one that is not a token stands for its first token."),
    ] = None
    truncation: Annotated[
        bool, Field(description="Whether a text longer than the model can read is cut, rather than refused.")
    ] = True


class FillMaskRequest(tasks.Request):
    """A fill-mask request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "Paris is the [MASK] of France.", "parameters": {"top_k": 3}}]}
    )

    inputs: Annotated[
        str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A text with at least one mask token, or a list of such texts."),
    ]
    parameters: Annotated[FillMaskParameters | None, Field(description="All are optional.")] = None
    _targets: Ids | None = None  # of the tokenizer's ids, once they were looked for


class Token(BaseModel):
    """A token in the place of a mask."""

    score: Annotated[float, Field(description="Its probability among the whole vocabulary.")]
    token: Annotated[int, Field(description="Its id.")]
    token_str: Annotated[str, Field(description="The token as text.")]
    sequence: Annotated[str, Field(description="The whole text with the token in the mask's place.")]


Tokens = list[Token] | list[list[Token]]
"""What one text is answered with: its tokens, or those of each of its masks."""


def create(tokenizer: Tokenizer, manifest: Manifest) -> FillMask:
    """Makes the task of one artifact.

    Raises:
        ValueError: the tokenizer has no mask token, or the artifact has labels.
    """
    tasks.check_unlabelled(manifest)
    return FillMask(tokenizer, manifest)


def golden_inputs(tokenizer: Tokenizer) -> Sequence[str]:
    """Returns texts with one mask or two."""
    texts = (
        "The {mask} rises in the east and sets in the {mask}.",
        "She poured the {mask} into a cup and drank it.",
        "Two and two make {mask}.",
    )
    return [text.format(mask=tokenizer.mask) for text in texts]


class FillMask:
    """One encoding for each text; one row, with the vocabulary's logits ranked for each mask, for each encoding."""

    Request = FillMaskRequest
    Response = Tokens | list[Tokens | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        if tokenizer.mask is None:
            raise ValueError("fill-mask needs a tokenizer that has a mask token")
        self._tokenizer = tokenizer
        self.mask = tokenizer.mask  # as it stands in a text
        self._max_tokens = manifest.max_tokens

    def encode(self, request: FillMaskRequest) -> list[Ranked]:
        """Raises errors.Unprocessable: no mask, too many, one beyond what is read, targets that mean nothing, or an
        answer that would be too long."""
        texts = _inputs(request)
        where = tasks.pointers(request.inputs)
        parameters = request.parameters or FillMaskParameters()
        targets = self._targets(request)
        masks = self._count(texts, parameters.top_k)
        for count, pointer in zip(masks, where, strict=True):
            if count == 0:
                detail = f"A text has no {self.mask}, the mask token of this model."
                raise Unprocessable("no_mask", detail, field_errors=[FieldError(pointer, "no_mask")])
        try:
            encodings = self._tokenizer.encode(texts, self._max_tokens, truncate=parameters.truncation, mask=True)
        except TextTooLong as error:
            detail = f"A text has more than {self._max_tokens} tokens."
            raise tasks.input_too_long(where[error.index], detail, self._max_tokens) from None
        for encoding, expected, pointer in zip(encodings, masks, where, strict=True):
            if len(encoding.focus) < expected:
                detail = f"A mask stands beyond the {self._max_tokens} tokens that are read."
                raise tasks.input_too_long(pointer, detail, self._max_tokens)
        return [Ranked(**vars(encoding), top_k=parameters.top_k, candidates=targets) for encoding in encodings]

    def decode(self, request: FillMaskRequest, encodings: Sequence[Ranked], rows: Sequence[Row]) -> object:  # noqa: ARG002  # a task's shape
        """For each mask of each text its tokens, best first; without the outer list where there is only one."""
        filled = [self._fill(encoding, Ranking.of(row)) for encoding, row in zip(encodings, rows, strict=True)]
        return filled[0] if len(filled) == 1 else filled

    def split(self, request: FillMaskRequest) -> list[FillMaskRequest]:
        """For each text a request with it alone.

        Raises:
            errors.Unprocessable: they have too many masks together, or their answers would be too long.
        """
        texts = _inputs(request)
        self._count(texts, (request.parameters or FillMaskParameters()).top_k)
        request._targets = self._targets(request)  # which take as long to read as a long text does
        return [request.model_copy(update={"inputs": text}) for text in texts]

    def single(self, response: object) -> object:
        """The tokens of the one text."""
        return response

    def _count(self, texts: Sequence[str], top_k: int) -> list[int]:
        """How many masks each text has, once it is clear that neither they nor the answer are too many."""
        masks = [text.count(self.mask) for text in texts]
        if sum(masks) > MAX_MASKS:
            detail = f"The texts have more than {MAX_MASKS} masks."
            raise Unprocessable(
                "too_many_masks", detail, field_errors=[FieldError("/inputs", "too_many_masks", MAX_MASKS)]
            )
        # Each token comes with the whole text: a few kilobytes could ask for megabytes.
        read = [min(len(text), USUAL_CHARACTERS * self._max_tokens) for text in texts]
        once = sum(count * length for count, length in zip(masks, read, strict=True))
        if once * top_k > MAX_WRITTEN:
            detail = f"The answer would repeat the texts to more than {MAX_WRITTEN} characters."
            fault = FieldError("/parameters/top_k", "answer_too_large", MAX_WRITTEN // once)
            raise Unprocessable("answer_too_large", detail, field_errors=[fault])
        return masks

    def _fill(self, encoding: Encoding, ranking: Ranking) -> list[Any]:
        tokens, scores = ranking.columns, np.exp(ranking.largest - ranking.total, dtype=np.float64)
        sequences = self._sequences(encoding, tokens)
        words = self._tokenizer.decode(tokens.reshape(-1, 1).tolist())
        proposals = [
            {"score": float(score), "token": int(token), "token_str": word, "sequence": sequence}
            for score, token, word, sequence in zip(scores.flat, tokens.flat, words, sequences, strict=True)
        ]
        kept = tokens.shape[1]
        lists = [proposals[start : start + kept] for start in range(0, len(proposals), kept)]
        return lists[0] if len(lists) == 1 else lists

    def _sequences(self, encoding: Encoding, tokens: Ids) -> list[str]:
        """The whole text with each token in its mask's place, mask by mask."""
        rows = []
        for place, candidates in zip(encoding.focus, tokens, strict=True):
            for token in candidates:
                ids = encoding.input_ids.copy()
                ids[place] = token
                rows.append(ids[ids != self._tokenizer.pad_id].tolist())
        # The masks that are left are special tokens too, and shall be seen.
        return self._tokenizer.decode(rows, skip_specials=len(encoding.focus) == 1)

    def _targets(self, request: FillMaskRequest) -> Ids:
        """The ids of the targets, each once; none where any token is wanted.

        Raises:
            errors.Unprocessable: not one target has a token.
        """
        if request._targets is not None:
            return request._targets
        targets = None if request.parameters is None else request.parameters.targets
        if targets is None:
            return NOTHING
        words = [targets] if isinstance(targets, str) else targets
        readings = self._tokenizer.tokenize(words)
        known = [self._tokenizer.token_to_id(word) for word in words]
        found = {
            int(reading.ids[0]) if identity is None else identity
            for identity, reading in zip(known, readings, strict=True)
            if identity is not None or len(reading)
        }
        if not found:
            fault = FieldError("/parameters/targets", "no_target")
            raise Unprocessable("validation_failed", "No target is a token of this model.", field_errors=[fault])
        return np.array(sorted(found), np.int64)


def _inputs(request: FillMaskRequest) -> list[str]:
    return request.inputs if isinstance(request.inputs, list) else [request.inputs]
