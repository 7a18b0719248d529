"""Fill-mask: the most likely tokens at the positions of the mask token.

The semantics match `FillMaskPipeline` in transformers 4.57.1: probabilities are over the whole vocabulary, even
if `targets` restricts the tokens. The answer to a text with one mask is a flat list. The answer to a text with several
masks is one list for each mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Encoding, TextTooLong
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import FieldError, Unprocessable, invalid_value
from swiftlet_serve.tasks._requests import (
    LEAST_ITEM_BYTES,
    Failure,
    OneByOne,
    Request,
    Strict,
    Texts,
    input_too_long,
    is_blank,
    listed,
    pointers,
    too_many_tokens,
)
from swiftlet_serve.types import Row
from swiftlet_serve.types.topk import Ranked, Ranking

HEAD: Final = "masked_lm"
OUTPUTS: Final = "vocabulary"

MAX_MASKS: Final = 64  # in one request: each mask needs a top-k over the vocabulary and a list in the response
MAX_WRITTEN: Final = 1 << 18  # characters of all sequences of a response: decoding them takes about 0.2 s
USUAL_CHARACTERS: Final = 8  # per token, at most, in prose
DEFAULT_TOP_K: Final = 5

TARGETS: Final = "/parameters/targets"
Target = Annotated[str, Field(max_length=200)]


class FillMaskParameters(Strict):
    """Options for the tokens, their number, and long texts."""

    top_k: Annotated[int, Field(description="Number of tokens to return for each mask, best first.", ge=1, le=100)] = (
        DEFAULT_TOP_K
    )
    targets: Annotated[
        Target | Annotated[list[Target], Field(min_length=1, max_length=256)] | None,
        Field(description="Words to choose from. A word of several tokens stands for its first token, which names it."),
    ] = None
    truncation: Annotated[
        bool, Field(description="Truncates a text that exceeds the model's token limit. If false, rejects it.")
    ] = True


DEFAULTS: Final = FillMaskParameters()


def _example(mask: str) -> dict[str, Any]:
    return {"inputs": f"Paris is the {mask} of France.", "parameters": {"top_k": 3}}


class FillMaskRequest(Request):
    """A fill-mask request in the Hugging Face Inference format."""

    model_config = ConfigDict(json_schema_extra={"examples": [_example("[MASK]")]})

    inputs: Annotated[
        str | Texts,
        Field(description="A text with at least one mask token, or a list of such texts."),
    ]
    parameters: Annotated[FillMaskParameters | None, Field(description="Optional parameters.")] = None
    _targets: dict[int, list[str]] | None = None  # the targets by token, which are tokenised once


class Token(BaseModel):
    """A token for a mask."""

    score: Annotated[float, Field(description="Probability of the token, over the whole vocabulary.")]
    token: Annotated[int, Field(description="Id of the token.")]
    token_str: Annotated[str, Field(description="The token as text.")]
    sequence: Annotated[str, Field(description="The whole text with the token in place of the mask.")]
    targets: Annotated[
        list[str] | None,
        Field(
            description="With targets: those that the token stands for. One that is not the token is no token of this "
            "model, and the token is its beginning."
        ),
    ] = None


Tokens = list[Token] | list[list[Token]]
"""The answer to one text: its tokens, or the tokens of each of its masks."""


def create(tokenizer: Tokenizer, manifest: Manifest) -> FillMask:
    """Makes the task of one artifact.

    Raises:
        ValueError: the tokenizer has no mask token, or the artifact has labels.
    """
    tasks.check_unlabelled(manifest)
    return FillMask(tokenizer, manifest)


class FillMask(OneByOne):
    """One sequence per text. Its row holds the top tokens of each mask, in the shape that `types.topk` describes."""

    Request = FillMaskRequest
    Response = Tokens | list[Tokens | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        if tokenizer.mask is None:
            raise ValueError("fill-mask needs a tokenizer that has a mask token.")
        self.tokenizer = tokenizer
        self.mask = tokenizer.mask  # as it is written in a text
        self.example = _example(self.mask)
        self.max_tokens = manifest.max_tokens

    def encode(self, request: FillMaskRequest) -> list[Ranked]:
        """Encodes each text as one sequence.

        Raises:
            Unprocessable: a text has no mask or has one beyond the token limit, there are too many masks, a target is
                blank, or the response would be too long.
        """
        texts = listed(request.inputs)
        places = pointers(request.inputs)
        parameters = request.parameters or DEFAULTS
        targets = np.array(sorted(self._targets(request)), np.int64)
        masks = self._count_masks(texts)
        for count, pointer in zip(masks, places, strict=True):
            if count == 0:
                detail = f"The text has no {self.mask} token. Write {self.mask} in place of a word."
                raise Unprocessable("no_mask", detail, field_errors=[FieldError(pointer, "no_mask")])
        try:
            encodings = self.tokenizer.encode(texts, self.max_tokens, truncate=parameters.truncation, mask=True)
        except TextTooLong as error:
            raise too_many_tokens(places[error.index], self.max_tokens, error.tokens) from None
        for encoding, expected, pointer in zip(encodings, masks, places, strict=True):
            if len(encoding.focus) < expected:
                detail = f"A mask is beyond the {self.max_tokens} tokens that the model reads. Shorten the text."
                raise input_too_long(pointer, detail, self.max_tokens)
        _check_written(texts, encodings, parameters.top_k)
        return [Ranked(**vars(encoding), top_k=parameters.top_k, candidates=targets) for encoding in encodings]

    def least_response_bytes(self, request: FillMaskRequest) -> int:
        """Returns a lower bound of the size of the response.

        Raises:
            Unprocessable: there are too many masks.
        """
        parameters = request.parameters or DEFAULTS
        targets = 1 if isinstance(parameters.targets, str) else len(parameters.targets or ())
        masks = sum(self._count_masks(listed(request.inputs)))
        return masks * min(parameters.top_k, targets or parameters.top_k) * LEAST_ITEM_BYTES

    def decode(self, request: FillMaskRequest, encodings: Sequence[Ranked], rows: Sequence[Row]) -> object:
        """Returns the tokens for each mask of each text, best first. A single text has no outer list."""
        targets = self._targets(request)
        pairs = in_turns(zip(encodings, rows, strict=True))
        filled = [self._fill(encoding, Ranking.of(row), targets) for encoding, row in pairs]
        return filled[0] if len(filled) == 1 else filled

    def split(self, request: FillMaskRequest) -> list[FillMaskRequest]:
        """Returns one request for each text.

        Raises:
            Unprocessable: the texts have too many masks in total, or the response would be too long.
        """
        texts = listed(request.inputs)
        self._count_masks(texts)
        self._targets(request)
        encodings = self.tokenizer.encode(texts, self.max_tokens, mask=True)
        _check_written(texts, encodings, (request.parameters or DEFAULTS).top_k)
        return super().split(request)

    def _count_masks(self, texts: Sequence[str]) -> list[int]:
        """Counts the masks of each text, and checks their limit."""
        masks = [text.count(self.mask) for text in texts]
        if sum(masks) > MAX_MASKS:
            detail = f"The texts have more than {MAX_MASKS} masks in total. Send fewer in one request."
            error = FieldError("/inputs", "too_many_masks", MAX_MASKS)
            raise Unprocessable("too_many_masks", detail, field_errors=[error])
        return masks

    def _fill(self, encoding: Encoding, ranking: Ranking, targets: Mapping[int, list[str]]) -> list[Any]:
        """Returns the tokens for each mask of one text. A text with one mask has no outer list."""
        scores = np.exp(ranking.largest - ranking.total, dtype=np.float64)
        masks = zip(encoding.focus.tolist(), ranking.columns.tolist(), scores.tolist(), strict=True)
        ids, dropped = encoding.input_ids.tolist(), {self.tokenizer.pad_id}
        if len(encoding.focus) == 1:  # the remaining masks are special tokens too, and the pipeline shows them
            dropped |= self.tokenizer.special_ids
        lists = []
        for position, tokens, own in masks:
            before, after = ([i for i in part if i not in dropped] for part in (ids[:position], ids[position + 1 :]))
            sequences = [[*before, *([] if token in dropped else [token]), *after] for token in tokens]
            written = self.tokenizer.decode([*([token] for token in tokens), *sequences])
            lists.append(
                [
                    {"score": score, "token": token, "token_str": word, "sequence": sequence}
                    | ({"targets": targets[token]} if targets else {})
                    for score, token, word, sequence in zip(
                        own, tokens, written[: len(tokens)], written[len(tokens) :], strict=True
                    )
                ]
            )
        return lists[0] if len(lists) == 1 else lists

    def _targets(self, request: FillMaskRequest) -> dict[int, list[str]]:
        """Returns the targets by the token that they stand for, or an empty mapping if every token is allowed.

        Raises:
            Unprocessable: a target is blank.
        """
        targets = None if request.parameters is None else request.parameters.targets
        if request._targets is None and targets is not None:
            words = [targets] if isinstance(targets, str) else targets
            by_token: dict[int, list[str]] = {}
            for i, (word, tokens) in enumerate(zip(words, self.tokenizer.tokenize(words), strict=True)):
                if is_blank(word) or not len(tokens):
                    place = TARGETS if isinstance(targets, str) else f"{TARGETS}/{i}"
                    raise invalid_value(place, "no_target", "A target is empty. Send targets that are not blank.")
                identity = self.tokenizer.token_to_id(word)
                by_token.setdefault(int(tokens.ids[0]) if identity is None else identity, []).append(word)
            request._targets = by_token
        return request._targets or {}


def _check_written(texts: Sequence[str], encodings: Sequence[Encoding], top_k: int) -> None:
    """Limits the response, which repeats the whole text for each token: kilobytes could ask for megabytes.

    Raises:
        Unprocessable: the response would be too long.
    """
    length = 0
    for text, encoding in zip(texts, encodings, strict=True):
        length += len(encoding.focus) * min(len(text), USUAL_CHARACTERS * len(encoding.input_ids))
    if length * top_k > MAX_WRITTEN:
        detail = f"The response would repeat the texts to more than {MAX_WRITTEN} characters. Lower top_k."
        error = FieldError("/parameters/top_k", "answer_too_large", MAX_WRITTEN // length)
        raise Unprocessable("answer_too_large", detail, field_errors=[error])


TASK: Final = FillMask
