"""Zero-shot classification: labels that the request names.

With a model of natural language inference (NLI), each label becomes a hypothesis ("This example is sports."), and the
model says whether the text entails it. The semantics match `ZeroShotClassificationPipeline` in transformers 4.57.1.
With an embedding model, the score grows with the cosine of the text's vector and the label's. It reads each label once,
and each text once. A model of GLiClass reads all labels with the text, as the pipeline of gliclass 0.1.21 does. The
manifest tells which of the three an artifact is.

The response is a list of labels with scores, best first, as of the hosted Inference API. (The pipeline returns labels
and scores as two lists.)
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Head, Labelling, Manifest, Outputs
from swiftlet_models.encodings import Encoding, TextTooLong, TooManyWindows
from swiftlet_models.labelling import LabelledText, NoRoom, Reader, Scorer
from swiftlet_models.probabilities import sigmoid, softmax
from swiftlet_models.relations import find_entailment
from swiftlet_models.tensors import Floats
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks import _windows
from swiftlet_serve.tasks._requests import (
    LEAST_ITEM_BYTES,
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
from swiftlet_serve.tasks._vector_forms import Forms, normalized
from swiftlet_serve.types import Row

HEAD: Final[Head] = "classification"
OUTPUTS: Final[Outputs] = "labels"
OTHER_HEADS: Final[Mapping[Head, Outputs]] = {"embedding": "hidden"}
READS_VECTOR: Final = True

MAX_PAIRS: Final = 256  # texts times labels of one request
MAX_LABELS_CHARACTERS: Final = 65_536  # of labels with commas between them, which take milliseconds to split
MAX_CHARACTERS: Final = 1 << 20  # of all hypotheses: a template may repeat a label, and each input of a partial request
# An embedding model gives a label the log-odds SCALE * (cosine - THRESHOLD). The vectors of label and text have this
# cosine. The scale calibrates the bundled model for labels that it never saw (docs/benchmarks/defaults.md).
SCALE: Final = 20.0
THRESHOLD: Final = 0.3
LABELS: Final = "/parameters/candidate_labels"
TEMPLATE: Final = "/parameters/hypothesis_template"
DEFAULT_TEMPLATE: Final = "This example is {}."

Label = Annotated[str, Field(max_length=1000)]


class ZeroShotParameters(Strict):
    """The labels, how they become hypotheses, and how they relate."""

    candidate_labels: Annotated[
        Annotated[str, Field(max_length=MAX_LABELS_CHARACTERS)]
        | Annotated[list[Label], Field(min_length=1, max_length=MAX_PAIRS)],
        Field(description="The labels: a list, or a text with commas between them."),
    ]
    hypothesis_template: Annotated[
        str | None,
        Field(
            description=f"The hypothesis, with {{}} for the label. Default: {DEFAULT_TEMPLATE} "
            "Other models than those of inference have no default, and read the label alone.",
            max_length=1000,
        ),
    ] = None
    multi_label: Annotated[
        bool,
        Field(description="If true, each label has a probability of its own. If false, the probabilities sum to 1."),
    ] = False
    truncation: _windows.Truncation = True
    window: Annotated[
        _windows.Combination,
        Field(
            description="What counts of the windows, with truncation window: their mean, weighted by their tokens, or "
            "the largest. With multi_label, these are probabilities, else the log-odds before labels compete."
        ),
    ] = "mean"
    _labels: list[str] | None = None  # split once

    @property
    def labels(self) -> list[str]:
        """The labels as a list."""
        if self._labels is None:
            labels = self.candidate_labels
            if isinstance(labels, str):
                labels = [label for part in labels.split(",") if (label := part.strip())]
            self._labels = labels
        return self._labels


class ZeroShotRequest(Request):
    """A zero-shot classification request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "inputs": "The new phone has a better camera.",
                    "parameters": {"candidate_labels": ["technology", "cooking"]},
                }
            ]
        }
    )

    inputs: Annotated[
        str | Texts,
        Field(description="A text, or a list of texts."),
    ]
    parameters: Annotated[ZeroShotParameters, Field(description="The labels, and options.")]


class ScoredLabel(BaseModel):
    """A label and its score."""

    label: Annotated[str, Field(description="The label, as the request names it.")]
    score: Annotated[float, Field(description="Probability of the label.")]


Ranking = list[ScoredLabel]


def create(tokenizer: Tokenizer, manifest: Manifest) -> ZeroShot | EmbeddingZeroShot | LabelledZeroShot:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact is neither a model of natural language inference nor an embedding model, nor one that
            reads labels with a text.
    """
    if manifest.labelling is not None:
        return LabelledZeroShot(tokenizer, manifest, manifest.labelling)
    if manifest.embedding is not None and not manifest.embedding.vector:
        raise ValueError("zero-shot needs an embedding model with a dense vector.")
    if manifest.embedding is not None:
        return EmbeddingZeroShot(tokenizer, manifest)
    if manifest.problem != "single_label" or len(manifest.labels) < 2 or tasks.is_causal(manifest):
        raise ValueError("zero-shot needs an encoder that classifies pairs of texts, or an embedding model.")
    entailment = find_entailment(manifest.labels)
    if entailment is None:
        raise ValueError("zero-shot needs a label that begins with 'entail'. Name the labels in config.json.")
    return ZeroShot(tokenizer, manifest, entailment)


class _Shared:
    """The parts that do not depend on the kind of model."""

    Request = ZeroShotRequest
    Response = Ranking | list[Ranking | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer = tokenizer
        self.manifest = manifest
        self.max_tokens = manifest.max_tokens

    def least_response_bytes(self, request: ZeroShotRequest) -> int:
        """Returns a lower bound of the size of the response, which repeats the labels for each text."""
        return len(_texts(request)) * sum([LEAST_ITEM_BYTES + len(label) for label in request.parameters.labels])

    def split(self, request: ZeroShotRequest) -> list[ZeroShotRequest]:
        """Returns one request for each text.

        Raises:
            Unprocessable: there are too many texts and labels, or their hypotheses are too long.
        """
        texts = _texts(request)
        _check_labels(request, len(texts), times=len(texts))
        return [request.model_copy(update={"inputs": text}) for text in texts]

    def single(self, response: Any) -> Any:
        """Returns the labels of the only text."""
        return response

    def _checked(self, request: ZeroShotRequest) -> tuple[list[str], list[str]]:
        """Returns the texts and the labels of a request.

        Raises:
            Unprocessable: a text or a label is empty, or there are no labels or too many.
        """
        texts, labels = _checked(request)
        for i, (label, ids) in enumerate(zip(labels, self.tokenizer.ids(labels), strict=True)):
            if is_blank(label) or not len(ids):
                place = f"{LABELS}/{i}" if isinstance(request.parameters.candidate_labels, list) else LABELS
                raise invalid_value(place, "empty", "A label is empty. Send labels that are not blank.")
        return texts, labels

    def _too_long(self, request: ZeroShotRequest, index: int, tokens: int = 0) -> Unprocessable:
        """Returns the error of a text or hypothesis. The indices of hypotheses follow the indices of texts."""
        places = pointers(request.inputs)
        if index < len(places):
            return too_many_tokens(places[index], self.max_tokens, tokens)
        detail = f"A hypothesis has too many of the model's {self.max_tokens} tokens. Shorten the label."
        return input_too_long(LABELS, detail, self.max_tokens)


class ZeroShot(_Shared):
    """One sequence for each text with each hypothesis. Its row holds the logits of the NLI labels, (1, labels)."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, entailment: int):
        super().__init__(tokenizer, manifest)
        self.entailment = entailment
        self._contradiction = -1 if entailment == 0 else 0  # as the pipeline has it

    def encode(self, request: ZeroShotRequest) -> list[Encoding]:
        """Encodes each text with each hypothesis as a pair, text by text.

        Raises:
            Unprocessable: a text is empty or too long, there are no labels or too many, a label is too long, or the
                template has no place for a label.
        """
        texts, labels = self._checked(request)
        template = request.parameters.hypothesis_template
        hypotheses = [fill(DEFAULT_TEMPLATE if template is None else template, label) for label in labels]
        truncation = request.parameters.truncation
        try:
            if truncation == _windows.WINDOW:
                pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
                return self.tokenizer.encode_windows(pairs, self.max_tokens, MAX_PAIRS, split=0)
            return self.tokenizer.encode_product(texts, hypotheses, self.max_tokens, truncate=truncation)
        except TextTooLong as error:  # in windows, a hypothesis leaves no room
            index = len(texts) if truncation == _windows.WINDOW else error.index
            raise self._too_long(request, index, error.tokens) from None
        except TooManyWindows:
            raise _windows.too_many_windows(MAX_PAIRS) from None

    def decode(self, request: ZeroShotRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> Any:
        """Returns the labels of each text, or of the only one if `inputs` is a text, best first."""
        labels = request.parameters.labels
        independent = request.parameters.multi_label or len(labels) == 1
        logits = np.array([row[0] for row in rows], np.float64)  # in fp64, scores near 1 differ
        if independent:
            scores = softmax(logits[..., [self._contradiction, self.entailment]])[..., 1]
        else:
            scores = logits[..., self.entailment]
        scores = joined(request, encodings, scores).reshape(-1, len(labels))
        return answer(request, labels, scores if independent else softmax(scores))


class EmbeddingZeroShot(_Shared):
    """One sequence for each text, then one for each label. Its row holds a vector, (1, D)."""

    max_sequences: ClassVar[int] = MAX_PAIRS + 1  # of one text with all labels

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        super().__init__(tokenizer, manifest)
        assert manifest.embedding is not None  # noqa: S101  # for the type checker
        self._prompt = manifest.embedding.default_prompt_text()
        self._forms = Forms(tokenizer, manifest, manifest.embedding)

    def encode(self, request: ZeroShotRequest) -> list[Encoding]:
        """Encodes the texts and the labels.

        Raises:
            Unprocessable: as with an NLI model.
        """
        texts, labels = self._checked(request)
        template = request.parameters.hypothesis_template
        if template is not None:
            labels = [fill(template, label) for label in labels]
        prompted = [self._prompt + text for text in texts]
        limits, most = (self.max_tokens, request.parameters.truncation), self.max_sequences
        places = pointers(request.inputs)
        encodings = _windows.encode(self.tokenizer, prompted, *limits, places, most, prefix=self._prompt)
        try:
            more = self.tokenizer.encode([self._prompt + label for label in labels], self.max_tokens, truncate=False)
        except TextTooLong as error:
            raise self._too_long(request, len(texts) + error.index, error.tokens) from None
        return [*encodings, *(replace(label, kept=True) for label in more)]

    def decode(self, request: ZeroShotRequest, encodings: Sequence[Encoding], rows: Sequence[Row]) -> Any:
        """Returns the labels of each text, or of the only one if `inputs` is a text, best first."""
        labels = request.parameters.labels
        vectors = normalized(self._forms.dense(rows))
        scores = SCALE * (vectors[: -len(labels)] @ vectors[-len(labels) :].T - THRESHOLD)
        independent = request.parameters.multi_label or len(labels) == 1
        if independent:
            scores = softmax(np.stack([np.zeros_like(scores), scores], axis=-1))[..., 1]
        scores = joined(request, encodings[: -len(labels)], scores)
        return answer(request, labels, scores if independent else softmax(scores))


def joined(request: ZeroShotRequest, encodings: Sequence[Encoding], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the scores of texts, given those of their windows: the first axis of both."""
    if request.parameters.truncation != _windows.WINDOW:
        return scores
    return np.array(_windows.joined(encodings, list(scores), _windows.JOINS[request.parameters.window]))


class LabelledZeroShot(_Shared):
    """One sequence for each text with all labels. Its row holds hidden states (`swiftlet_models/labelling.py`)."""

    scorer: Scorer | None = None  # `tasks.create` sets it, for decoding

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, labelling: Labelling):
        """Raises ValueError if the tokenizer lacks the tokens around labels, or the model scores no texts."""
        if labelling.scores != "text":
            raise ValueError("a model that scores spans classifies no texts.")
        super().__init__(tokenizer, manifest)
        self._reader = Reader(tokenizer, labelling, manifest.max_tokens)

    def encode(self, request: ZeroShotRequest) -> list[LabelledText]:
        """Encodes each text with all labels as one sequence.

        Raises:
            Unprocessable: a text or a label is empty, a text is too long, there are no labels or too many, a label
                occurs twice, they leave no room for a text, or the template has no place for a label.
        """
        texts, labels = self._checked(request)
        if request.parameters.truncation == _windows.WINDOW:
            detail = "A model that reads labels with the text has no windows. Set truncation to true or false."
            raise invalid_value("/parameters/truncation", "unsupported", detail)
        if len({*labels}) < len(labels):
            raise invalid_value(LABELS, "duplicate", "A label occurs twice. Name each label once.")
        if (template := request.parameters.hypothesis_template) is not None:
            labels = [fill(template, label) for label in labels]
        ids = self._reader.labels(labels)
        try:
            sequences = [
                self._reader.whole(ids, text.ids.tolist(), i) for i, text in enumerate(self.tokenizer.tokenize(texts))
            ]
        except NoRoom:
            raise self._too_long(request, len(texts), self.max_tokens) from None
        for sequence in sequences:
            if sequence.left_out and not request.parameters.truncation:
                raise self._too_long(request, sequence.text_index, len(sequence.input_ids) + sequence.left_out)
        return sequences

    def decode(self, request: ZeroShotRequest, encodings: Sequence[LabelledText], rows: Sequence[Row]) -> Any:
        """Returns the labels of each text, or of the only one if `inputs` is a text, best first."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        labels = request.parameters.labels
        logits = np.array([*map(self.scorer.logits, encodings, rows)], np.float64)
        several = request.parameters.multi_label or len(labels) == 1
        return answer(request, labels, sigmoid(logits) if several else softmax(logits))

    def scores(self, text: LabelledText, row: Row) -> Floats:
        """Returns the probabilities of the labels of a text, each by itself."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        return self.scorer.probabilities(text, row)


def _checked(request: ZeroShotRequest) -> tuple[list[str], list[str]]:
    """Returns the texts and the labels of a request.

    Raises:
        Unprocessable: a text is empty, or there are no labels or too many, or their hypotheses are too long.
    """
    texts = _texts(request)
    for text, pointer in zip(texts, pointers(request.inputs), strict=True):
        if not text.strip():
            raise empty_input(pointer)
    return texts, _check_labels(request, len(texts), times=1)


def _check_labels(request: ZeroShotRequest, texts: int, *, times: int) -> list[str]:
    """Returns the labels of this number of texts. Their hypotheses are tokenised `times` times.

    Raises:
        Unprocessable: there are no labels or too many, or their hypotheses are too long.
    """
    labels = request.parameters.labels
    if not labels:
        raise invalid_value(LABELS, "too_short", "There are no labels. Name one in candidate_labels.", 1)
    if texts * len(labels) > MAX_PAIRS:
        detail = f"The texts and labels make more than {MAX_PAIRS} pairs. Send fewer of them in one request."
        raise invalid_value(LABELS, "too_many_pairs", detail, MAX_PAIRS)
    template = request.parameters.hypothesis_template or DEFAULT_TEMPLATE
    # An upper bound, computed without making the hypotheses.
    characters = sum(len(template) + template.count("{") * len(label) for label in labels)
    if times * characters > MAX_CHARACTERS:
        detail = f"The hypotheses have more than {MAX_CHARACTERS} characters in total. Shorten the labels."
        raise input_too_long(LABELS, detail, MAX_CHARACTERS)
    return labels


def fill(template: str, label: str) -> str:
    """Returns a hypothesis. The template's fields are `{}` or `{0}`, without formats, which could be of any length.

    Raises:
        Unprocessable: the template has no field, or another one.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        parts = []
    fields = [field for _, field, _, _ in parts if field is not None]
    plain = all(not spec and conversion is None for _, field, spec, conversion in parts if field is not None)
    if not plain or not (fields == [""] or (fields and set(fields) == {"0"})):
        detail = "The template has no place for the label. Write {} there, and no other braces."
        raise invalid_value(TEMPLATE, "no_placeholder", detail)
    return "".join(literal + (label if field is not None else "") for literal, field, _, _ in parts)


def _texts(request: ZeroShotRequest) -> list[str]:
    return request.inputs if isinstance(request.inputs, list) else [request.inputs]


def answer(request: ZeroShotRequest, labels: Sequence[str], scores: NDArray[np.float64]) -> Any:
    """Returns the ranking of each text from scores (N, labels), or one ranking if `inputs` is a text."""
    rankings = [_ranking(labels, row) for row in scores]
    return rankings if isinstance(request.inputs, list) else rankings[0]


def _ranking(labels: Sequence[str], scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Returns the labels, best first. Of equal scores, the last label is first, as in the pipeline."""
    order = np.argsort(scores, kind="stable")[::-1]
    return [{"label": labels[i], "score": float(scores[i])} for i in order.tolist()]


TASK: Final = ZeroShot
