"""Entities: the spans of a text that a network labels, such as names of people and places.

With a token classifier, the semantics match `TokenClassificationPipeline` in transformers 4.57.1. `start` and `end`
count code points of the text as sent. If `aggregation_strategy` is left out, it is `simple`, as in the hosted Inference
API. (The pipeline itself does not aggregate by default.)

A model of GLiNER finds entities of labels that the request names (`_labelled_entities.py`). The manifest tells which of
the two an artifact is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from pydantic_core import to_json

from swiftlet_models.artifact import Manifest
from swiftlet_models.encodings import Chunk, Ids, TokenizedText
from swiftlet_models.probabilities import softmax
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import invalid_value
from swiftlet_serve.tasks._entities_requests import (
    DEFAULTS,
    MAX_CHARACTERS,
    MAX_SEQUENCES,
    OF_LABELS,
    STRIDE,
    EntitiesParameters,
    EntitiesRequest,
    EntitiesTask,
    changed,
    too_many_windows,
)
from swiftlet_serve.tasks._labelled_entities import LabelledEntities
from swiftlet_serve.tasks._requests import empty_input, listed, pointers, too_many_tokens
from swiftlet_serve.tasks._token_labels import PREFIXES, Marks, Scheme, Tokens, merge_overlaps
from swiftlet_serve.types import Row, json_text

HEAD: Final = "token"
OUTPUTS: Final = "labels"
READS_HEAD: Final = True
READS_LABELS: Final = True


def create(
    tokenizer: Tokenizer,
    manifest: Manifest,
    head: HeadWeights | None = None,
    label_tokenizer: Tokenizer | None = None,
) -> Entities | LabelledEntities:
    """Makes the task of one artifact. A model that reads labels needs `head` for decoding.

    Raises:
        ValueError: the artifact has no labels, or its tokenizer lacks the tokens around them.
    """
    if manifest.labelling is not None:
        return LabelledEntities(tokenizer, manifest, manifest.labelling, head, label_tokenizer)
    if not manifest.labels:
        raise ValueError("a token classifier needs labels.")
    return Entities(tokenizer, manifest)


class Entities(EntitiesTask):
    """One sequence for each window of each text. Its row holds the logits of its text tokens, (F, labels)."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer = tokenizer
        self.labels = manifest.labels
        self.max_tokens = manifest.max_tokens
        self._size = manifest.max_tokens - tokenizer.special_count(pair=False)  # text tokens of one sequence
        self._groups = [label.split("-", 1)[-1] for label in manifest.labels]
        self._schemes = {name: Scheme.of(manifest.labels, name) for name in PREFIXES}

    def encode(self, request: EntitiesRequest) -> list[Chunk]:
        """Encodes each window of each text as one sequence.

        Raises:
            Unprocessable: a text is empty or too long, or the stride does not fit the model or the strategy.
        """
        parameters = request.parameters or DEFAULTS
        if unused := changed(parameters, OF_LABELS):
            detail = f"This model finds the labels {_named(self.labels)}, and reads none. Leave this parameter out."
            raise invalid_value(f"/parameters/{unused}", "fixed_labels", detail)
        self._check_stride(parameters)
        places = pointers(request.inputs)
        texts = listed(request.inputs)
        self.check_lengths(texts, places, None if parameters.stride is None else MAX_CHARACTERS)
        tokenized = self.tokenizer.tokenize(texts, self._size if parameters.stride is None else None)
        chunks: list[Chunk] = []
        for index, (text, pointer) in enumerate(zip(tokenized, places, strict=True)):
            chunks += self._chunks(text, index, pointer, parameters, MAX_SEQUENCES - len(chunks))
        return chunks

    def decode(self, request: EntitiesRequest, encodings: Sequence[Chunk], rows: Sequence[Row]) -> object:
        """Returns the entities of each text, or of the only one if `inputs` is a text."""
        parameters, texts = request.parameters or DEFAULTS, listed(request.inputs)
        entities: list[list[dict[str, Any]]] = [[] for _ in texts]
        for chunk, row in in_turns(zip(encodings, rows, strict=True)):
            entities[chunk.text_index] += self._find(texts[chunk.text_index], chunk, row, parameters)
        windows = Counter(chunk.text_index for chunk in encodings)
        merged = [merge_overlaps(spans) if windows[i] > 1 else spans for i, spans in enumerate(entities)]
        return merged if isinstance(request.inputs, list) else merged[0]

    def least_encoded_bytes(self, request: EntitiesRequest, encodings: Sequence[Chunk]) -> int:
        """Returns a lower bound of the size of the response to texts that are encoded.

        Only without aggregation and ignored labels is it known that each token is in the response.
        """
        parameters = request.parameters or DEFAULTS
        if parameters.aggregation_strategy != "none" or not {*self.labels}.isdisjoint(parameters.ignore_labels):
            return 0
        if not encodings:
            return 0
        shortest = min(self.labels, key=lambda label: len(to_json(label)))
        item = {"entity": shortest, "score": 0.0, "index": 0, "word": "", "start": 0, "end": 0}
        indices = np.concatenate([each.focus for each in encodings])
        offsets = np.concatenate([each.tokens.offsets for each in encodings])
        return json_text.least_bytes(item, (indices, *offsets.T))

    def _check_stride(self, parameters: EntitiesParameters) -> None:
        if parameters.stride is None:
            return
        if parameters.aggregation_strategy == "none":
            raise invalid_value(STRIDE, "no_aggregation", "A stride needs an aggregation_strategy.")
        if parameters.stride >= self._size:
            detail = "The stride is too large: a window has no room for new tokens. Lower it."
            raise invalid_value(STRIDE, "less_than_equal", detail, self._size - 1)

    def _chunks(
        self, text: TokenizedText, index: int, pointer: str, parameters: EntitiesParameters, room: int
    ) -> list[Chunk]:
        """Splits one text into windows. There may be at most `room` of them."""
        size, stride = self._size, parameters.stride
        if not len(text):
            raise empty_input(pointer)
        if stride is None:
            if text.left_out and not parameters.truncation:
                raise too_many_tokens(pointer, self.max_tokens, self.max_tokens + text.left_out)
            return self.tokenizer.chunks(text, index, size, 0)
        if max(1, -(-(len(text) - stride) // (size - stride))) > room:
            raise too_many_windows(pointer)
        return self.tokenizer.chunks(text, index, size, stride)

    def _find(self, text: str, chunk: Chunk, row: Row, parameters: EntitiesParameters) -> list[dict[str, Any]]:
        """Returns the entities of one window, except entities of ignored labels."""
        probabilities, strategy = softmax(row), parameters.aggregation_strategy
        tokens = Tokens(text, chunk.tokens.ids.tolist(), chunk.tokens.offsets.tolist())
        if strategy == "none":
            return self._tokens(tokens, Marks.of_tokens(probabilities), chunk.focus, parameters.ignore_labels)
        by_token = strategy == "simple"
        marks = (
            Marks.of_tokens(probabilities)
            if by_token
            else Marks.of_words(probabilities, self._begin_words(tokens), strategy)
        )
        places = self._schemes[parameters.label_scheme].first_of_entities(marks.label)
        groups = [self._groups[label] for label in marks.label[places].tolist()]
        ends = [*places[1:].tolist(), len(marks.label)]
        first, stop = marks.first.tolist(), marks.stop.tolist()
        entities = []
        for group, start, end in in_turns(zip(groups, places.tolist(), ends, strict=True), 16):
            if group in parameters.ignore_labels:
                continue
            if by_token:
                word = self._written(tokens, start, end)
            else:
                word = self.tokenizer.join([self._written(tokens, first[i], stop[i]) for i in range(start, end)])
            score = float(marks.score[start] if end == start + 1 else marks.score[start:end].mean())
            where = {"word": word, "start": tokens.spans[first[start]][0], "end": tokens.spans[stop[end - 1] - 1][1]}
            entities.append({"entity_group": group, "score": score, **where})
        return entities

    def _tokens(self, tokens: Tokens, marks: Marks, focus: Ids, ignored: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the tokens of one window, except those with ignored labels."""
        columns = marks.label.tolist(), marks.score.tolist(), focus.tolist(), tokens.spans
        return [
            {
                "entity": self.labels[label],
                "score": score,
                "index": index,
                "word": self._token(tokens, i),
                "start": start,
                "end": end,
            }
            for i, (label, score, index, (start, end)) in enumerate(in_turns(zip(*columns, strict=True), 16))
            if self.labels[label] not in ignored
        ]

    def _begin_words(self, tokens: Tokens) -> list[bool]:
        """Returns which tokens begin a word. The first one does."""
        text, unknown = tokens.text, self.tokenizer.unknown_id
        if self.tokenizer.marks_continuation:
            begins = [
                number == unknown or len(self.tokenizer.token(number)) == len(text[start:end])
                for number, (start, end) in zip(tokens.ids, tokens.spans, strict=True)
            ]
        else:  # the pipeline's guess for other tokenizers: only a space begins a word
            begins = [
                number == unknown or start == 0 or " " in text[start - 1 : start + 1]
                for number, (start, _) in zip(tokens.ids, tokens.spans, strict=True)
            ]
        return [True, *begins[1:]]

    def _written(self, tokens: Tokens, first: int, stop: int) -> str:
        """Returns some tokens as text."""
        ids = tokens.ids[first:stop]
        if self.tokenizer.unknown_id in ids:
            return self.tokenizer.join([self._token(tokens, i) for i in range(first, stop)])
        return self.tokenizer.join_ids(ids)

    def _token(self, tokens: Tokens, number: int) -> str:
        """Returns a token as it is in the vocabulary, or the text that has no token there."""
        if tokens.ids[number] == self.tokenizer.unknown_id:
            start, end = tokens.spans[number]
            return tokens.text[start:end]
        return self.tokenizer.token(tokens.ids[number])


def _named(labels: Sequence[str], most: int = 10) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


TASK: Final = Entities
