"""Classification: labels and scores for a text or a pair of texts.

The head reads the first token, or the last one if the network is causal: only that one has seen the whole text.

The semantics match `TextClassificationPipeline` in transformers 4.57.1. The response is a list of lists even for
one text, because Hugging Face clients expect that. If `top_k` is left out, all labels are returned, as by the hosted
Inference API. (The pipeline itself returns only the best label.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest, Problem
from swiftlet_models.encodings import Encoding, Text
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.turns import in_turns
from swiftlet_serve import tasks
from swiftlet_serve.tasks import _windows
from swiftlet_serve.tasks._requests import (
    LEAST_ITEM_BYTES,
    MAX_INPUTS,
    Failure,
    OneByOne,
    Request,
    Strict,
    empty_input,
    listed,
    pointers,
)
from swiftlet_serve.types import Row

HEAD: Final = "classification"
OUTPUTS: Final = "labels"

Function = Literal["softmax", "sigmoid", "none"]


class Pair(Strict):
    """A text or a pair of texts."""

    text: Annotated[str, Field(description="The text, or the first text of a pair.")]
    text_pair: Annotated[str | None, Field(description="The second text of a pair.")] = None


class ClassifyParameters(Strict):
    """Options for scores, their number, and long texts."""

    top_k: Annotated[
        int | None, Field(description="Number of labels to return, best first. Default: all labels.", ge=1, le=1000)
    ] = None
    function_to_apply: Annotated[
        Function | None,
        Field(description="Function that turns logits into scores. Default: the one that the model was trained with."),
    ] = None
    truncation: _windows.Truncation = True
    window: Annotated[
        _windows.Combination,
        Field(
            description="How the scores of windows become one, with truncation window: the mean, weighted by their "
            "tokens, or the largest."
        ),
    ] = "mean"


DEFAULTS: Final = ClassifyParameters()


class ClassifyRequest(Request):
    """A classification request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "A warm, funny and clever film.", "parameters": {"top_k": 2}}]}
    )

    inputs: Annotated[
        str | Pair | Annotated[list[str | Pair], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A text, a pair of texts, or a list of either. A list is always several inputs."),
    ]
    parameters: Annotated[ClassifyParameters | None, Field(description="Optional parameters.")] = None


class Label(BaseModel):
    """A label and its score."""

    label: Annotated[str, Field(description="Name of the label.")]
    score: Annotated[float, Field(description="Probability of the label. With function_to_apply none: its logit.")]


def create(tokenizer: Tokenizer, manifest: Manifest) -> Classify:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has no labels, or does not say what kind of classifier it is.
    """
    if not manifest.labels or manifest.problem is None:
        raise ValueError("a classifier needs labels and a problem.")
    return Classify(tokenizer, manifest)


class Classify(OneByOne):
    """One sequence for each text. Its row holds the logits of the labels, (1, labels)."""

    Request = ClassifyRequest
    Response = list[list[Label] | Failure]
    max_sequences: int = MAX_INPUTS  # a row is a few numbers

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer = tokenizer
        self.max_tokens = manifest.max_tokens
        self.labels = manifest.labels
        self.is_regression = manifest.problem == "regression"
        self.function = default_function(manifest.problem, len(manifest.labels))
        self._prompt = manifest.embedding.default_prompt_text() if manifest.embedding else ""
        self._reads_last = tasks.reads_last(manifest)

    def encode(self, request: ClassifyRequest) -> list[Encoding]:
        """Encodes each text as one sequence.

        Raises:
            Unprocessable: a text is empty, or is too long while truncation is off.
        """
        inputs: list[str | Pair] = listed(request.inputs)
        places = pointers(request.inputs)
        parameters = request.parameters or DEFAULTS
        texts = [_text(item, pointer, self._prompt) for item, pointer in zip(inputs, places, strict=True)]
        cut = request.cut
        tokenizer, limit = self.tokenizer.cutting(cut.side), cut.most(self.max_tokens)
        if cut.tokens is not None:
            is_pair = any(not isinstance(text, str) for text in texts)
            _windows.check_cut(tokenizer, cut, limit, self.max_tokens, prompt=self._prompt, pair=is_pair)
        limits = limit, parameters.truncation
        encodings = _windows.encode(tokenizer, texts, *limits, places, self.max_sequences, prefix=self._prompt)
        for encoding in encodings:
            if not len(encoding.input_ids):  # no special tokens, and a text of control characters
                raise empty_input(places[encoding.text_index])
        return tasks.read_last(encodings) if self._reads_last else encodings

    def least_response_bytes(self, request: ClassifyRequest) -> int:
        """Returns a lower bound of the size of the response."""
        top_k = (request.parameters or DEFAULTS).top_k or len(self.labels)
        texts = len(request.inputs) if isinstance(request.inputs, list) else 1
        return texts * min(top_k, len(self.labels)) * LEAST_ITEM_BYTES

    def decode(
        self, request: ClassifyRequest, encodings: Sequence[Encoding], rows: Sequence[Row]
    ) -> list[list[dict[str, Any]]]:
        """Returns the labels of each text, best first."""
        parameters = request.parameters or DEFAULTS
        function = parameters.function_to_apply or self.function
        scores = self.scores(parameters, encodings, rows, function)
        return [self._ranked(each, parameters.top_k) for each in in_turns(scores)]

    def scores(
        self, parameters: ClassifyParameters, encodings: Sequence[Encoding], rows: Sequence[Row], function: Function
    ) -> list[list[float]]:
        """Returns the scores of the labels, in their order, of each text."""
        scores = [FUNCTIONS[function](row[0].tolist()) for row in in_turns(rows)]
        if parameters.truncation != _windows.WINDOW:
            return scores
        join = _windows.JOINS[parameters.window]
        return _windows.joined(encodings, scores, lambda *windows: join(*windows).tolist())

    def single(self, response: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Returns the labels of the only text."""
        return response[0]

    def _ranked(self, scores: Sequence[float], top_k: int | None) -> list[dict[str, Any]]:
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:top_k]  # equal scores keep their order
        return [{"label": self.labels[i], "score": scores[i]} for i in best]


class Ensemble(Classify):
    """Classifiers of the same labels that answer as one: with the mean of their scores, or the scores of mean logits.

    Each reads a text with its own tokenizer, and the whole of a long text in its own windows.
    """

    def __init__(self, members: Sequence[Classify], mean: tasks.Mean):
        """Raises ValueError if the members differ in their labels, or in what they are trained to tell of them."""
        first = members[0]
        for other in members:
            if {*other.labels} != {*first.labels} or len({*other.labels}) < len(other.labels):
                raise ValueError(f"the labels differ: {', '.join(first.labels)}, and {', '.join(other.labels)}.")
            if other.function != first.function:
                raise ValueError("one tells a label of each text, another several labels or a number.")
        self.labels, self.is_regression, self.function = first.labels, first.is_regression, first.function
        self.max_sequences = sum(member.max_sequences for member in members)
        self._members = members
        self._columns = [[member.labels.index(label) for label in self.labels] for member in members]
        self._of_logits = mean == "logits"

    def encode(self, request: ClassifyRequest) -> list[Encoding]:
        """Encodes each text for each member.

        Raises:
            Unprocessable: a member cannot read a text.
        """
        parts = [member.encode(request) for member in self._members]
        return [replace(encoding, member=number) for number, part in enumerate(parts) for encoding in part]

    def scores(
        self, parameters: ClassifyParameters, encodings: Sequence[Encoding], rows: Sequence[Row], function: Function
    ) -> list[list[float]]:
        applied: Function = "none" if self._of_logits else function
        scores = []
        for number, (member, columns) in enumerate(zip(self._members, self._columns, strict=True)):
            own = [place for place, encoding in enumerate(encodings) if encoding.member == number]
            part = member.scores(parameters, [encodings[i] for i in own], [rows[i] for i in own], applied)
            scores.append([[each[column] for column in columns] for each in part])
        means = [list(map(_mean, zip(*of_text, strict=True))) for of_text in zip(*scores, strict=True)]
        return [FUNCTIONS[function](mean) for mean in means] if self._of_logits else means


def default_function(problem: Problem | None, labels: int) -> Function:
    """Returns the function that the pipeline applies by default."""
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label" or labels == 1 else "softmax"


# A row has few labels: lists of floats are faster than arrays.


def softmax(logits: Sequence[float]) -> list[float]:
    """Returns probabilities."""
    largest = max(logits)
    odds = [math.exp(logit - largest) for logit in logits]
    total = sum(odds)
    return [share / total for share in odds]


def sigmoid(logits: Sequence[float]) -> list[float]:
    """Returns 1 / (1 + exp(-x)), in a form that does not overflow."""
    return [0.5 + 0.5 * math.tanh(0.5 * logit) for logit in logits]


def identity(logits: Sequence[float]) -> list[float]:
    """Returns the logits unchanged."""
    return list(logits)


FUNCTIONS: Final[dict[Function, Callable[[Sequence[float]], list[float]]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": identity,
}


def _mean(values: Sequence[float]) -> float:
    """Returns the mean, which does not depend on the order of the values."""
    return math.fsum(values) / len(values)


def _text(item: str | Pair, pointer: str, prompt: str) -> Text:
    if isinstance(item, Pair):
        text, pair, pointer = item.text, item.text_pair, f"{pointer}/text"
    else:
        text, pair = item, None
    if not text.strip():
        raise empty_input(pointer)
    return prompt + text if pair is None else (prompt + text, pair)


TASK: Final = Classify
ENSEMBLE: Final = Ensemble
