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

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import Head, Labelling, Manifest, Outputs
from swiftlet_models.encodings import Encoding, TextTooLong, TooManyWindows, kept
from swiftlet_models.label_names import names_in_words
from swiftlet_models.label_reader import LabelledText, NoRoom, Reader
from swiftlet_models.label_scorer import Scorer
from swiftlet_models.probabilities import sigmoid, softmax
from swiftlet_models.relations import find_entailment
from swiftlet_models.tensors import Floats, HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks import _windows
from swiftlet_serve.tasks._kept_labels import KeptLabels
from swiftlet_serve.tasks._requests import MAX_HIDDEN_NUMBERS, characters, listed, pointers
from swiftlet_serve.tasks._vector_forms import Forms, normalized
from swiftlet_serve.tasks._zero_shot_requests import (
    DEFAULT_TEMPLATE,
    LABELS,
    MAX_PAIRS,
    ZeroShotRequest,
    ZeroShotTask,
    check_labels,
    fill,
)
from swiftlet_serve.types import Row

HEAD: Final[Head] = "classification"
OUTPUTS: Final[Outputs] = "labels"
OTHER_HEADS: Final[Mapping[Head, Outputs]] = {"embedding": "hidden"}
READS_VECTOR: Final = True
READS_HEAD: Final = True

# An embedding model gives a label the log-odds SCALE * (cosine - THRESHOLD). The vectors of label and text have this
# cosine. The scale calibrates the bundled model for labels that it never saw (docs/benchmarks/defaults.md).
SCALE: Final = 20.0
THRESHOLD: Final = 0.3


def create(
    tokenizer: Tokenizer, manifest: Manifest, head: HeadWeights | None = None
) -> ZeroShot | EmbeddingZeroShot | LabelledZeroShot:
    """Makes the task of one artifact. A model that reads labels needs `head` for decoding.

    Raises:
        ValueError: the artifact is neither a model of natural language inference nor an embedding model, nor one that
            reads labels with a text.
    """
    if manifest.labelling is not None:
        return LabelledZeroShot(tokenizer, manifest, manifest.labelling, head)
    if manifest.embedding is not None and not manifest.embedding.vector:
        raise ValueError("zero-shot needs an embedding model with a dense vector.")
    if manifest.embedding is not None:
        return EmbeddingZeroShot(tokenizer, manifest)
    if manifest.problem != "single_label" or len(manifest.labels) < 2 or tasks.reads_last(manifest):
        raise ValueError("zero-shot needs an encoder that classifies pairs of texts, or an embedding model.")
    entailment = find_entailment(manifest.labels)
    if entailment is None:
        raise ValueError("zero-shot needs a label that begins with 'entail'. Name the labels in config.json.")
    return ZeroShot(tokenizer, manifest, entailment)


class ZeroShot(ZeroShotTask):
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
        texts, labels = self.checked(request)
        template = request.parameters.hypothesis_template
        hypotheses = fill(DEFAULT_TEMPLATE if template is None else template, labels)
        truncation = request.parameters.truncation
        try:
            if truncation == _windows.WINDOW:
                pairs = [(text, hypothesis) for text in texts for hypothesis in hypotheses]
                return self.tokenizer.encode_windows(pairs, self.max_tokens, MAX_PAIRS, split=0)
            return self.tokenizer.encode_product(texts, hypotheses, self.max_tokens, truncate=truncation)
        except TextTooLong as error:  # in windows, a hypothesis leaves no room
            index = len(texts) if truncation == _windows.WINDOW else error.index
            raise self.too_long(request, index, error.tokens) from None
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


class EmbeddingZeroShot(ZeroShotTask):
    """One sequence for each text, then one for each label. Its row holds a vector, (1, D)."""

    max_sequences: ClassVar[int] = MAX_PAIRS + 1  # of one text with all labels
    compares_rows: ClassVar[bool] = True

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        super().__init__(tokenizer, manifest)
        assert manifest.embedding is not None  # noqa: S101  # for the type checker
        self._prompt = manifest.embedding.default_prompt_text()
        self._forms = Forms(tokenizer, manifest, manifest.embedding)
        self.known = self._kept = KeptLabels(self._read)

    def encode(self, request: ZeroShotRequest) -> list[Encoding]:
        """Encodes the texts and the labels.

        Raises:
            Unprocessable: as with an NLI model.
        """
        texts, _ = self.checked(request)
        prompted = [self._prompt + text for text in texts]
        limits, most = (self.max_tokens, request.parameters.truncation), self.max_sequences
        places = pointers(request.inputs)
        windows = _windows.encode(self.tokenizer, prompted, *limits, places, most, prefix=self._prompt)
        encodings = self._forms.pooled(windows)
        for i, hypothesis in enumerate(in_turns(_hypotheses(request)), start=len(texts)):
            encoding = self._kept[hypothesis]
            if len(encoding.input_ids) > self.max_tokens:
                raise self.too_long(request, i, len(encoding.input_ids))
            encodings.append(encoding)
        return encodings

    def unread(self, request: ZeroShotRequest) -> int:
        """Returns the number of characters that `encode` tokenises."""
        try:
            labels = check_labels(request, len(listed(request.inputs)), times=1)
            hypotheses = _hypotheses(request)
        except Unprocessable:
            return characters(request)
        return characters(request.inputs) + sum(
            [len(text) for text in {*labels, *hypotheses} if text not in self._kept]
        )

    def _read(self, hypothesis: str) -> Encoding:
        """Returns the sequence of a hypothesis, with names such as `PlayMusic` in words.

        A hypothesis stays as it is if its words take more tokens: `iPhone` is a word of most vocabularies.
        """
        (own,) = self.tokenizer.ids([self._prompt + hypothesis])
        if (words := names_in_words(hypothesis)) != hypothesis:
            (other,) = self.tokenizer.ids([self._prompt + words])
            own = other if 0 < len(other) <= len(own) else own
        sequence, types, _ = self.tokenizer.wrap(own)
        (encoding,) = self._forms.pooled([Encoding(sequence, types, np.zeros(1, np.int64))])
        return kept(encoding)

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


def _hypotheses(request: ZeroShotRequest) -> Sequence[str]:
    """Returns what a model of vectors reads of each label.

    Raises:
        Unprocessable: the template has no place for a label.
    """
    template, labels = request.parameters.hypothesis_template, request.parameters.labels
    return labels if template is None else fill(template, labels)


def joined(request: ZeroShotRequest, encodings: Sequence[Encoding], scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the scores of texts, given those of their windows: the first axis of both."""
    if request.parameters.truncation != _windows.WINDOW:
        return scores
    return np.array(_windows.joined(encodings, list(scores), _windows.JOINS[request.parameters.window]))


class LabelledZeroShot(ZeroShotTask):
    """One sequence for each text with all labels. Its row holds hidden states (`swiftlet_models/label_scorer.py`)."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest, labelling: Labelling, head: HeadWeights | None):
        """Without `head`, the task only encodes.

        Raises ValueError if the tokenizer lacks the tokens around labels, or the model scores no texts."""
        if labelling.scores != "text":
            raise ValueError("a model that scores spans classifies no texts.")
        super().__init__(tokenizer, manifest)
        self.scorer = None if head is None else Scorer(labelling, head, manifest.width)
        self._reader = Reader(tokenizer, labelling, manifest.max_tokens)
        self.max_positions = MAX_HIDDEN_NUMBERS // manifest.width

    def encode(self, request: ZeroShotRequest) -> list[LabelledText]:
        """Encodes each text with all labels as one sequence.

        Raises:
            Unprocessable: a text or a label is empty, a text is too long, there are no labels or too many, a label
                occurs twice, they leave no room for a text, or the template has no place for a label.
        """
        texts, labels = self.checked(request)
        if request.parameters.truncation == _windows.WINDOW:
            detail = "A model that reads labels with the text has no windows. Set truncation to true or false."
            raise invalid_value("/parameters/truncation", "unsupported", detail)
        if len({*labels}) < len(labels):
            raise invalid_value(LABELS, "duplicate", "A label occurs twice. Name each label once.")
        if (template := request.parameters.hypothesis_template) is not None:
            labels = fill(template, labels)
        ids = self._reader.labels(labels)
        try:
            sequences = [
                self._reader.whole(ids, text.ids.tolist(), i) for i, text in enumerate(self.tokenizer.tokenize(texts))
            ]
        except NoRoom:
            raise self.too_long(request, len(texts), self.max_tokens) from None
        for sequence in sequences:
            if sequence.left_out and not request.parameters.truncation:
                raise self.too_long(request, sequence.text_index, len(sequence.input_ids) + sequence.left_out)
        return sequences

    def decode(self, request: ZeroShotRequest, encodings: Sequence[LabelledText], rows: Sequence[Row]) -> Any:
        """Returns the labels of each text, or of the only one if `inputs` is a text, best first."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        labels = request.parameters.labels
        logits = np.array([*map(self.scorer.logits, encodings, in_turns(rows))], np.float64)
        several = request.parameters.multi_label or len(labels) == 1
        return answer(request, labels, sigmoid(logits) if several else softmax(logits))

    def scores(self, encodings: Sequence[LabelledText], rows: Sequence[Row]) -> list[Floats]:
        """Returns the probabilities of the labels of each text, each by itself."""
        assert self.scorer is not None  # noqa: S101  # for the type checker
        return [*map(self.scorer.probabilities, encodings, rows)]


def answer(request: ZeroShotRequest, labels: Sequence[str], scores: NDArray[np.float64]) -> Any:
    """Returns the ranking of each text from scores (N, labels), or one ranking if `inputs` is a text."""
    rankings = [_ranking(labels, row) for row in scores]
    return rankings if isinstance(request.inputs, list) else rankings[0]


def _ranking(labels: Sequence[str], scores: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Returns the labels, best first. Of equal scores, the last label is first, as in the pipeline."""
    order = np.argsort(scores, kind="stable")[::-1]
    return [{"label": labels[i], "score": float(scores[i])} for i in order.tolist()]


TASK: Final = ZeroShot
