"""A toy task: a label for each word of a text. `tests/tasks/test_new_task.py` adds this file to the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Encoding
from swiftlet_models.probabilities import softmax
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.tasks._requests import MAX_INPUTS, Failure, Request, empty_input, pointers
from swiftlet_serve.types import Row

HEAD: Final = "token"
OUTPUTS: Final = "labels"


class TagWordsRequest(Request):
    """A request to label the words of a text."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"inputs": "Clara lives in Bern."}]})

    inputs: Annotated[
        str | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A text, or a list of texts."),
    ]


class Tag(BaseModel):
    """A word and its label."""

    word: str
    label: str
    score: float


def create(tokenizer: Tokenizer, manifest: Manifest) -> TagWords:
    """Makes the task of one artifact. Raises ValueError if the artifact has no labels."""
    if not manifest.labels:
        raise ValueError("tag-words needs labels.")
    return TagWords(tokenizer, manifest)


class TagWords:
    """One sequence for each text. Its row holds the logits of the labels for each token, (L - 2, labels)."""

    Request = TagWordsRequest
    Response = list[list[Tag] | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer, self.max_tokens, self.labels = tokenizer, manifest.max_tokens, manifest.labels

    def encode(self, request: TagWordsRequest) -> list[Encoding]:
        """Encodes each text. Raises Unprocessable if one is empty."""
        texts = _texts(request)
        for text, pointer in zip(texts, pointers(request.inputs), strict=True):
            if not text.strip():
                raise empty_input(pointer)
        encodings = self.tokenizer.encode(texts, self.max_tokens)
        return [replace(encoding, focus=np.arange(1, len(encoding.input_ids) - 1)) for encoding in encodings]

    def decode(self, request: TagWordsRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> object:
        """Returns the label of each word of each text, taken from its first token."""
        del encodings
        return [self._tags(text, row) for text, row in zip(_texts(request), rows, strict=True)]

    def split(self, request: TagWordsRequest) -> list[TagWordsRequest]:
        """Returns one request for each text."""
        return [request.model_copy(update={"inputs": text}) for text in _texts(request)]

    def single(self, response: list[object]) -> object:
        """Returns the words of the only text."""
        return response[0]

    def _tags(self, text: str, row: Row) -> list[dict[str, Any]]:
        (tokens,) = self.tokenizer.tokenize([text])
        _, first = np.unique(tokens.word_ids[: len(row)], return_index=True)
        scores = softmax(row.astype(np.float64))
        tags = []
        for token in first:
            start, end = tokens.offsets[tokens.word_ids == tokens.word_ids[token]][[0, -1], [0, 1]]
            best = int(scores[token].argmax())
            tags.append({"word": text[start:end], "label": self.labels[best], "score": float(scores[token, best])})
        return tags


def _texts(request: TagWordsRequest) -> list[str]:
    return request.inputs if isinstance(request.inputs, list) else [request.inputs]


TASK: Final = TagWords
