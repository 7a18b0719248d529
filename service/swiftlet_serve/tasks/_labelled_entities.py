"""Entities of labels that the request names, found by a model of GLiNER.

The answers are those of `GLiNER.predict_entities` of gliner 0.2.29. The package reads `max_len` words of a text. Here,
a long text is read in windows, and the entities of all windows are selected together. Two more differences are
deliberate. A word without a token, such as U+FE0F behind an emoji, is no word, and does not move the words after it.
A label that looks like a special token stays text.

A model may have a second network for labels. Each label is then a sequence of its own, and its vector is kept for later
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from swiftlet_models.artifact import Labelling, Manifest
from swiftlet_models.encodings import Encoding, TooManyWindows, kept
from swiftlet_models.label_reader import LabelledText, NoRoom, Reader, Words
from swiftlet_models.label_scorer import Scorer
from swiftlet_models.tensors import Floats, HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve.errors import invalid_value
from swiftlet_serve.tasks._entities_requests import (
    DEFAULTS,
    LABELS,
    MAX_CHARACTERS,
    MAX_LABELS,
    MAX_PAIRS,
    MAX_SEQUENCES,
    OF_TOKENS,
    STRIDE,
    EntitiesParameters,
    EntitiesRequest,
    EntitiesTask,
    changed,
    too_many_windows,
)
from swiftlet_serve.tasks._requests import (
    MAX_HIDDEN_NUMBERS,
    empty_input,
    input_too_long,
    is_blank,
    listed,
    pointers,
    too_many_tokens,
)
from swiftlet_serve.tasks._spans import Spans, joined, of_spans, of_words, select
from swiftlet_serve.types import Row


class LabelledEntities(EntitiesTask):
    """One sequence for each window of each text, with the labels. Its row holds hidden states (`label_scorer.py`).

    If the model has a second network for labels, there is one sequence for each label first, whose row is a vector,
    (1, H), and the windows have the text alone.
    """

    example: ClassVar = {"inputs": "Clara lives in Bern.", "parameters": {"labels": ["person", "city"]}}

    def __init__(
        self,
        tokenizer: Tokenizer,
        manifest: Manifest,
        labelling: Labelling,
        head: HeadWeights | None,
        label_tokenizer: Tokenizer | None = None,
    ):
        """Without `head`, the task only encodes.

        Raises ValueError if the tokenizer lacks the tokens around labels, or the model scores no spans, or it has an
        encoder of labels without a tokenizer.
        """
        if labelling.scores == "text":
            raise ValueError("a model that scores texts finds no entities.")
        if (labelling.encoder is None) != (label_tokenizer is None):
            raise ValueError("an encoder of labels needs a tokenizer of labels, and only it does.")
        self.tokenizer, self.labelling, self.max_tokens = tokenizer, labelling, manifest.max_tokens
        self.scorer = None if head is None else Scorer(labelling, head, manifest.width)
        self._reader = Reader(tokenizer, labelling, manifest.max_tokens)
        self.max_positions = MAX_HIDDEN_NUMBERS // manifest.width
        self._find = of_spans if labelling.scores == "spans" else of_words
        self._label_tokenizer = label_tokenizer
        self.max_sequences = MAX_SEQUENCES + (MAX_LABELS if label_tokenizer else 0)

    def encode(self, request: EntitiesRequest) -> list[Encoding]:
        """Encodes each window of each text with the labels as one sequence, or each label and each window.

        Raises:
            Unprocessable: a text is empty or too long, there are no labels, a label is empty, too long or occurs
                twice, the labels leave no room for a text, or a parameter does not fit the model.
        """
        parameters = request.parameters or DEFAULTS
        if unused := changed(parameters, OF_TOKENS):
            detail = "This model finds spans, and groups no tokens. Leave this parameter out."
            raise invalid_value(f"/parameters/{unused}", "reads_labels", detail)
        labels = self._labels(parameters)
        apart = self._encode_labels(labels)
        overlap = min(self.labelling.max_width, self.labelling.max_words - 1)
        if parameters.stride is not None and (overlap := parameters.stride) >= self.labelling.max_words:
            detail = "The stride is too large: a window has no room for new words. Lower it."
            raise invalid_value(STRIDE, "less_than_equal", detail, self.labelling.max_words - 1)
        texts, places = listed(request.inputs), pointers(request.inputs)
        self.check_lengths(texts, places, MAX_CHARACTERS)
        windows: list[LabelledText] = []
        pairs = 0
        for index, (text, pointer) in enumerate(zip(texts, places, strict=True)):
            if not len(words := Words(self.tokenizer, text)):
                raise empty_input(pointer)
            pairs += len(words) * len(labels)
            if pairs > MAX_PAIRS:
                detail = f"The texts and labels make more than {MAX_PAIRS} pairs of a word and a label. Send less text."
                raise input_too_long(pointer, detail, MAX_PAIRS)
            try:
                named = [] if apart else labels
                own = list(self._reader.windows(named, words, index, overlap, MAX_SEQUENCES - len(windows)))
            except TooManyWindows:
                raise too_many_windows(pointer) from None
            except NoRoom:
                detail = f"The labels take all of the model's {self.max_tokens} tokens. Name fewer or shorter labels."
                raise input_too_long(LABELS, detail, self.max_tokens) from None
            if not parameters.truncation and (left_out := sum(window.left_out for window in own)):
                raise too_many_tokens(pointer, self.max_tokens, self.max_tokens + left_out)
            windows += own
        return [*apart, *windows]

    def decode(self, request: EntitiesRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> object:
        """Returns the entities of each text, or of the only one if `inputs` is a text."""
        parameters, texts = request.parameters or DEFAULTS, listed(request.inputs)
        found: list[list[tuple[LabelledText, Spans]]] = [[] for _ in texts]
        windows = [encoding for encoding in encodings if isinstance(encoding, LabelledText)]
        for window, scores in in_turns(zip(windows, self.scores(encodings, rows), strict=True)):
            spans = self._find(scores, parameters.threshold)
            found[window.text_index].append((window, spans.moved(window.first_word)))
        answers = [self._entities(text, parts, parameters) for text, parts in zip(texts, found, strict=True)]
        return answers if isinstance(request.inputs, list) else answers[0]

    def scores(self, encodings: Sequence[Encoding], rows: Sequence[Row]) -> Iterator[Floats]:
        """Yields the probabilities of the labels of each window of a request, as in `Scorer.probabilities`."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        pairs = list(zip(encodings, rows, strict=True))
        vectors = [row for encoding, row in pairs if not isinstance(encoding, LabelledText)]
        labels = self.scorer.prepare(np.concatenate(vectors)) if vectors else None
        for window, row in pairs:
            if isinstance(window, LabelledText):
                yield self.scorer.probabilities(window, row, labels)

    def _labels(self, parameters: EntitiesParameters) -> list[list[int]]:
        """Returns the ids of the labels."""
        names = parameters.labels or self.labelling.labels
        if not names:
            detail = "The model has no labels of its own. Name those to find, such as person and city."
            raise invalid_value(LABELS, "missing_labels", detail)
        if len({*names}) < len(names):
            raise invalid_value(LABELS, "duplicate", "A label occurs twice. Name each label once.")
        if self._label_tokenizer is None:
            labels = self._reader.labels(names)
        else:
            labels = [ids.tolist() for ids in self._label_tokenizer.ids(names)]
        for i, (name, ids) in enumerate(zip(names, labels, strict=True)):
            if is_blank(name) or not ids:
                raise invalid_value(f"{LABELS}/{i}", "empty", "A label is empty. Send labels that are not blank.")
        return labels

    def _encode_labels(self, labels: Sequence[list[int]]) -> list[Encoding]:
        """Returns the sequence of each label for the second network; none if there is no such network.

        Raises:
            Unprocessable: a label is too long.
        """
        if self._label_tokenizer is None or self.labelling.encoder is None:
            return []
        encodings, most = [], self.labelling.encoder.max_tokens
        for i, ids in enumerate(labels):
            sequence, types, _ = self._label_tokenizer.wrap(ids)
            if len(sequence) > most:
                detail = f"The label has {len(sequence)} tokens, and the model reads {most} at most. Shorten it."
                raise invalid_value(f"{LABELS}/{i}", "too_long", detail, most)
            encodings.append(kept(Encoding(sequence, types, np.zeros(1, np.int64), head=1)))
        return encodings

    def _entities(
        self, text: str, parts: Sequence[tuple[LabelledText, Spans]], parameters: EntitiesParameters
    ) -> list[dict[str, Any]]:
        """Returns the entities of a text from its windows and the labels of spans in each."""
        names = parameters.labels or self.labelling.labels
        spans = joined([spans for _, spans in parts]) if len(parts) > 1 else parts[0][1]
        places = {
            window.first_word + i: span for window, _ in parts for i, span in enumerate(window.word_spans.tolist())
        }
        entities = []
        for number in select(spans, nested=not parameters.flat, multi_label=parameters.multi_label):
            name = names[spans.label[number]]
            start, end = places[int(spans.start[number])][0], places[int(spans.end[number])][1]
            where = {"word": text[start:end], "start": start, "end": end}
            if name not in parameters.ignore_labels:
                entities.append({"entity_group": name, "score": float(spans.score[number]), **where})
        return entities
