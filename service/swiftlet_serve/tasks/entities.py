"""Entities: the spans of a text that a network labels, such as names of people and places.

With a token classifier, the semantics match `TokenClassificationPipeline` in transformers 4.57.1. `start` and `end`
count code points of the text as sent. If `aggregation_strategy` is left out, it is `simple`, as in the hosted Inference
API. (The pipeline itself does not aggregate by default.)

A model of GLiNER finds entities of labels that the request names, as `GLiNER.predict_entities` of gliner 0.2.29 does.
The package reads `max_len` words of a text. Here, a long text is read in windows, and the entities of all windows are
selected together. Two more differences are deliberate. A word without a token, such as U+FE0F behind an emoji, is no
word, and does not move the words after it. A label that looks like a special token stays text. The manifest tells which
of the two an artifact is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Labelling, Manifest
from swiftlet_models.encodings import Chunk, Ids, TokenizedText, TooManyWindows
from swiftlet_models.labelling import LabelledText, NoRoom, Reader, Scorer, Words
from swiftlet_models.probabilities import softmax
from swiftlet_models.tensors import Floats
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks._requests import (
    Failure,
    Request,
    Strict,
    Texts,
    empty_input,
    input_too_long,
    is_blank,
    pointers,
    too_many_tokens,
)
from swiftlet_serve.tasks._spans import Numbers, Spans, joined, of_spans, of_words, select
from swiftlet_serve.types import Row

HEAD: Final = "token"
OUTPUTS: Final = "labels"

MAX_CHARACTERS: Final = 1 << 18  # of all texts of a request: tokenising them takes about 0.25 s
MAX_SEQUENCES: Final = 256  # of one request
MAX_LABELS: Final = 256  # that a request may name
MAX_LABEL: Final = 1000  # characters
MAX_PAIRS: Final = 1 << 17  # of a word and a label in one request: the head takes seconds to score them
STRIDE: Final = "/parameters/stride"
LABELS: Final = "/parameters/labels"

Strategy = Literal["none", "simple", "first", "average", "max"]
SchemeName = Literal["bio", "bilou"]

# The prefixes of labels, and whether a token with such a label begins an entity.
PREFIXES: Final[dict[SchemeName, dict[str, bool]]] = {
    "bio": {"B-": True, "I-": False},
    "bilou": {"B-": True, "U-": True, "S-": True, "I-": False, "L-": False, "E-": False},
}


class EntitiesParameters(Strict):
    """Options for the grouping of tokens, and for long texts."""

    aggregation_strategy: Annotated[
        Strategy,
        Field(
            description="How tokens become entities. none: not at all. simple: adjacent tokens of one label. first, "
            "average, max: as simple, but a word has one label, that of its first token, of its tokens' mean scores, "
            "or of its most certain token."
        ),
    ] = "simple"
    ignore_labels: Annotated[
        list[Annotated[str, Field(max_length=200)]], Field(description="Labels to leave out.", max_length=1000)
    ] = ["O"]  # noqa: RUF012  # the model is frozen, and copies its defaults
    stride: Annotated[
        int | None,
        Field(
            description="Overlap of the windows of a long text in tokens. Default: only one window is read. For a "
            "model that reads labels, it is in words, the default is the widest entity, and all windows are read.",
            ge=0,
        ),
    ] = None
    label_scheme: Annotated[
        SchemeName,
        Field(
            description="Prefixes of labels. bio: B- begins an entity, I- continues it, as in the pipeline. bilou: "
            "also L- or E- for the last token, U- or S- for the only one."
        ),
    ] = "bio"
    truncation: Annotated[
        bool,
        Field(description="Without a stride: truncates a text that exceeds the token limit. If false, rejects it."),
    ] = True
    labels: Annotated[
        list[Annotated[str, Field(max_length=MAX_LABEL)]] | None,
        Field(
            description="The labels to find. Only for a model that reads labels. Default: those of the model.",
            min_length=1,
            max_length=MAX_LABELS,
        ),
    ] = None
    threshold: Annotated[
        float, Field(description="Lowest score of an entity. Only for a model that reads labels.", ge=0.01, le=1)
    ] = 0.5
    flat: Annotated[
        bool,
        Field(description="Entities do not overlap. If false, one may lie in another. For a model that reads labels."),
    ] = True
    multi_label: Annotated[
        bool, Field(description="A span may have several labels. Only for a model that reads labels.")
    ] = False


DEFAULTS: Final = EntitiesParameters()
# Parameters that one kind of model has no use for.
OF_LABELS: Final = ("labels", "threshold", "flat", "multi_label")
OF_TOKENS: Final = ("aggregation_strategy", "label_scheme")


class EntitiesRequest(Request):
    """A token classification request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"inputs": "Clara lives in Bern.", "parameters": {"aggregation_strategy": "first"}}]
        }
    )

    inputs: Annotated[
        str | Texts,
        Field(description="A text, or a list of texts."),
    ]
    parameters: Annotated[EntitiesParameters | None, Field(description="Optional parameters.")] = None


class Entity(BaseModel):
    """Adjacent tokens of one label."""

    entity_group: Annotated[str, Field(description="The label, without its prefix.")]
    score: Annotated[float, Field(description="Mean probability of the label over the tokens or words.")]
    word: Annotated[str, Field(description="The tokens as text. Case and spaces may differ from text[start:end].")]
    start: Annotated[int, Field(description="Start of the entity in the text, in code points.")]
    end: Annotated[int, Field(description="End of the entity, exclusive.")]


class LabelledToken(BaseModel):
    """A token and its label, with the strategy none."""

    entity: Annotated[str, Field(description="The label.")]
    score: Annotated[float, Field(description="Probability of the label.")]
    index: Annotated[int, Field(description="Position of the token in the sequence, special tokens included.")]
    word: Annotated[str, Field(description="The token as it is in the vocabulary.")]
    start: Annotated[int, Field(description="Start of the token in the text, in code points.")]
    end: Annotated[int, Field(description="End of the token, exclusive.")]


Found = list[Entity] | list[LabelledToken]


def create(tokenizer: Tokenizer, manifest: Manifest) -> Entities | LabelledEntities:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has no labels, or its tokenizer lacks the tokens around them.
    """
    if manifest.labelling is not None:
        return LabelledEntities(tokenizer, manifest, manifest.labelling)
    if not manifest.labels:
        raise ValueError("a token classifier needs labels.")
    return Entities(tokenizer, manifest)


class Tokens(NamedTuple):
    """The tokens of a window."""

    text: str  # the whole text
    ids: list[int]
    spans: list[list[int]]  # start and end of each token in the text


class Marks(NamedTuple):
    """M tokens or words of a window, each with its label."""

    label: Numbers  # (M,): the number of the label
    score: Floats  # (M,): its probability
    first: Numbers  # (M,): the first token
    stop: Numbers  # (M,): behind the last token

    @classmethod
    def of_tokens(cls, probabilities: Floats) -> Marks:
        """Returns the most probable label of each token, from its probabilities, (F, labels)."""
        label, places = probabilities.argmax(axis=1), np.arange(len(probabilities))
        return cls(label, probabilities[places, label], places, places + 1)

    @classmethod
    def of_words(cls, probabilities: Floats, begins: Sequence[bool], strategy: Strategy) -> Marks:
        """Returns the label of each word, from the probabilities of its tokens. Some of them begin a word."""
        first = np.flatnonzero(begins)
        stop = np.append(first[1:], len(begins))
        if strategy == "first":
            own = probabilities[first]
        else:
            words = [probabilities[start:end] for start, end in zip(first.tolist(), stop.tolist(), strict=True)]
            if strategy == "average":
                own = np.array([word.mean(axis=0) for word in words])
            else:
                own = np.array([word[word.max(axis=1).argmax()] for word in words])
        return cls.of_tokens(own)._replace(first=first, stop=stop)


class Scheme(NamedTuple):
    """What each label of a model means to a label scheme."""

    begins: NDArray[np.bool_]  # whether a token with the label begins an entity
    kind: Numbers  # the number of its kind: labels of one kind continue an entity

    @classmethod
    def of(cls, labels: Sequence[str], name: SchemeName) -> Scheme:
        tags = [tag(label, name) for label in labels]
        kinds = [kind for _, kind in tags]
        return cls(np.array([begins for begins, _ in tags]), np.array([kinds.index(kind) for kind in kinds]))

    def first_of_entities(self, label: Numbers) -> Numbers:
        """Returns where entities begin, given the labels of tokens or words: adjacent ones of one kind are one."""
        kind, begins = self.kind[label], self.begins[label]
        begins[1:] |= kind[1:] != kind[:-1]
        begins[:1] = True
        return np.flatnonzero(begins)


class _Shared:
    """The parts that do not depend on the kind of model."""

    Request = EntitiesRequest
    Response = Found | list[Found | Failure]

    def split(self, request: EntitiesRequest) -> list[EntitiesRequest]:
        """Returns one request for each text."""
        return [request.model_copy(update={"inputs": text}) for text in _texts(request)]

    def single(self, response: object) -> object:
        """Returns the entities of the only text."""
        return response

    def _check_lengths(self, texts: Sequence[str], places: Sequence[str], most: int | None) -> None:
        """Raises Unprocessable if a text is empty, or the texts have more than `most` characters."""
        total = 0
        for text, pointer in zip(texts, places, strict=True):
            if not text.strip():
                raise empty_input(pointer)
            total += len(text)
            if most is not None and total > most:
                detail = f"The texts have more than {most} characters. Send less text in one request."
                raise input_too_long(pointer, detail, most)


class Entities(_Shared):
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
        if unused := _changed(parameters, OF_LABELS):
            detail = f"This model finds the labels {_listed(self.labels)}, and reads none. Leave this parameter out."
            raise invalid_value(f"/parameters/{unused}", "fixed_labels", detail)
        self._check_stride(parameters)
        places = pointers(request.inputs)
        texts = _texts(request)
        self._check_lengths(texts, places, None if parameters.stride is None else MAX_CHARACTERS)
        tokenized = self.tokenizer.tokenize(texts, self._size if parameters.stride is None else None)
        chunks: list[Chunk] = []
        for index, (text, pointer) in enumerate(zip(tokenized, places, strict=True)):
            chunks += self._chunks(text, index, pointer, parameters, MAX_SEQUENCES - len(chunks))
        return chunks

    def decode(self, request: EntitiesRequest, encodings: Sequence[Chunk], rows: Sequence[Row]) -> object:
        """Returns the entities of each text, or of the only one if `inputs` is a text."""
        parameters, texts = request.parameters or DEFAULTS, _texts(request)
        entities: list[list[dict[str, Any]]] = [[] for _ in texts]
        for chunk, row in zip(encodings, rows, strict=True):
            entities[chunk.text_index] += self._find(texts[chunk.text_index], chunk, row, parameters)
        windows = Counter(chunk.text_index for chunk in encodings)
        merged = [merge_overlaps(spans) if windows[i] > 1 else spans for i, spans in enumerate(entities)]
        return merged if isinstance(request.inputs, list) else merged[0]

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
            raise _too_many_windows(pointer)
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
        for group, start, end in zip(groups, places.tolist(), ends, strict=True):
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
            for i, (label, score, index, (start, end)) in enumerate(zip(*columns, strict=True))
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


class LabelledEntities(_Shared):
    """One sequence for each window of each text, with the labels. Its row holds hidden states (`labelling.py`)."""

    EXAMPLE: ClassVar = {"inputs": "Clara lives in Bern.", "parameters": {"labels": ["person", "city"]}}
    scorer: Scorer | None = None  # `tasks.create` sets it, for decoding

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, labelling: Labelling):
        """Raises ValueError if the tokenizer lacks the tokens around labels, or the model scores no spans."""
        if labelling.scores == "text":
            raise ValueError("a model that scores texts finds no entities.")
        self.tokenizer, self.labelling, self.max_tokens = tokenizer, labelling, manifest.max_tokens
        self._reader = Reader(tokenizer, labelling, manifest.max_tokens)
        self._find = of_spans if labelling.scores == "spans" else of_words

    def encode(self, request: EntitiesRequest) -> list[LabelledText]:
        """Encodes each window of each text with the labels as one sequence.

        Raises:
            Unprocessable: a text is empty or too long, there are no labels, a label is empty or occurs twice, the
                labels leave no room for a text, or a parameter does not fit the model.
        """
        parameters = request.parameters or DEFAULTS
        if unused := _changed(parameters, OF_TOKENS):
            detail = "This model finds spans, and groups no tokens. Leave this parameter out."
            raise invalid_value(f"/parameters/{unused}", "reads_labels", detail)
        labels = self._labels(parameters)
        overlap = min(self.labelling.max_width, self.labelling.max_words - 1)
        if parameters.stride is not None and (overlap := parameters.stride) >= self.labelling.max_words:
            detail = "The stride is too large: a window has no room for new words. Lower it."
            raise invalid_value(STRIDE, "less_than_equal", detail, self.labelling.max_words - 1)
        texts, places = _texts(request), pointers(request.inputs)
        self._check_lengths(texts, places, MAX_CHARACTERS)
        windows: list[LabelledText] = []
        pairs = 0
        for index, (text, pointer) in enumerate(zip(texts, places, strict=True)):
            if not len(words := Words(self.tokenizer, text)):
                raise empty_input(pointer)
            if (pairs := pairs + len(words) * len(labels)) > MAX_PAIRS:
                detail = f"The texts and labels make more than {MAX_PAIRS} pairs of a word and a label. Send less text."
                raise input_too_long(pointer, detail, MAX_PAIRS)
            try:
                own = list(self._reader.windows(labels, words, index, overlap, MAX_SEQUENCES - len(windows)))
            except TooManyWindows:
                raise _too_many_windows(pointer) from None
            except NoRoom:
                detail = f"The labels take all of the model's {self.max_tokens} tokens. Name fewer or shorter labels."
                raise input_too_long(LABELS, detail, self.max_tokens) from None
            if not parameters.truncation and (left_out := sum(window.left_out for window in own)):
                raise too_many_tokens(pointer, self.max_tokens, self.max_tokens + left_out)
            windows += own
        return windows

    def decode(self, request: EntitiesRequest, encodings: Sequence[LabelledText], rows: Sequence[Row]) -> object:
        """Returns the entities of each text, or of the only one if `inputs` is a text."""
        parameters, texts = request.parameters or DEFAULTS, _texts(request)
        found: list[list[tuple[LabelledText, Spans]]] = [[] for _ in texts]
        for window, row in zip(encodings, rows, strict=True):
            spans = self._find(self.scores(window, row), parameters.threshold)
            found[window.text_index].append((window, spans.moved(window.first_word)))
        answers = [self._entities(text, parts, parameters) for text, parts in zip(texts, found, strict=True)]
        return answers if isinstance(request.inputs, list) else answers[0]

    def scores(self, window: LabelledText, row: Row) -> Floats:
        """Returns the probabilities of the labels of a window, as in `Scorer.probabilities`."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        return self.scorer.probabilities(window, row)

    def _labels(self, parameters: EntitiesParameters) -> list[list[int]]:
        """Returns the ids of the labels."""
        names = parameters.labels or self.labelling.labels
        if not names:
            detail = "The model has no labels of its own. Name those to find, such as person and city."
            raise invalid_value(LABELS, "missing_labels", detail)
        if len({*names}) < len(names):
            raise invalid_value(LABELS, "duplicate", "A label occurs twice. Name each label once.")
        labels = self._reader.labels(names)
        for i, (name, ids) in enumerate(zip(names, labels, strict=True)):
            if is_blank(name) or not ids:
                raise invalid_value(f"{LABELS}/{i}", "empty", "A label is empty. Send labels that are not blank.")
        return labels

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


def _changed(parameters: EntitiesParameters, names: Sequence[str]) -> str | None:
    """Returns the first of some parameters that has another value than the default."""
    return next((name for name in names if getattr(parameters, name) != getattr(DEFAULTS, name)), None)


def _listed(labels: Sequence[str], most: int = 10) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" if len(labels) > most else "")


def _too_many_windows(pointer: str) -> Unprocessable:
    detail = f"The texts make more than {MAX_SEQUENCES} windows. Send less text in one request."
    return input_too_long(pointer, detail, MAX_SEQUENCES)


def tag(label: str, scheme: SchemeName) -> tuple[bool, str]:
    """Returns whether a label begins an entity, and its kind. A label without a known prefix continues one."""
    begins = PREFIXES[scheme].get(label[:2])
    return (False, label) if begins is None else (begins, label[2:])


def merge_overlaps(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the entities of overlapping windows in order. Of two that overlap, the longer or more certain one stays.

    As in the pipeline, an entity is compared with the last one that stayed only.
    """
    merged: list[dict[str, Any]] = []
    ordered = sorted(entities, key=lambda entity: entity["start"])
    last = ordered[0] if ordered else {}
    for entity in ordered:
        if last["start"] <= entity["start"] < last["end"]:
            last = max(last, entity, key=lambda entity: (entity["end"] - entity["start"], entity["score"]))
        else:
            merged.append(last)
            last = entity
    return [*merged, last] if last else []


def _texts(request: EntitiesRequest) -> list[str]:
    return list(request.inputs) if isinstance(request.inputs, list) else [request.inputs]


TASK: Final = Entities
