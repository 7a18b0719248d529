"""Classify: labels and scores for a text or a pair of texts.

The meaning is that of transformers 4.57.1's `TextClassificationPipeline`; the response is a list of lists even for one
text, because that is what Hugging Face's clients can read. When `top_k` is left out every label is returned, as the
hosted Inference API does (the pipeline called from Python would return the best one only).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_serve.models.artifact import Manifest, Problem
from swiftlet_serve.models.tokenizer import Encoding, Text, TextTooLong, Tokenizer
from swiftlet_serve.service import tasks
from swiftlet_serve.service.tasks import MAX_INPUTS, Failure, Floats, Strict, softmax
from swiftlet_serve.service.types import Row

HEAD: Final = "classification"
OUTPUTS: Final = "labels"

Function = Literal["softmax", "sigmoid", "none"]


class Pair(Strict):
    """A text, or two texts that belong together."""

    text: Annotated[str, Field(description="The text, or the first of the pair.")]
    text_pair: Annotated[str | None, Field(description="The second text of the pair.")] = None


class ClassifyParameters(Strict):
    """How scores are made, and how many are wanted."""

    top_k: Annotated[
        int | None, Field(description="How many labels to return, best first; all if null or left out.", ge=1, le=1000)
    ] = None
    function_to_apply: Annotated[
        Function | None,
        Field(description="What turns logits into scores; if left out, what the model was trained for."),
    ] = None
    truncation: Annotated[
        bool, Field(description="Whether a text longer than the model can read is cut, rather than refused.")
    ] = True


DEFAULTS: Final = ClassifyParameters()


class ClassifyRequest(tasks.Request):
    """A classification request in the Hugging Face Inference format."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"inputs": "A warm, funny and clever film.", "parameters": {"top_k": 2}}]}
    )

    inputs: Annotated[
        str | Pair | Annotated[list[str | Pair], Field(min_length=1, max_length=MAX_INPUTS)],
        Field(description="A text, a pair of texts, or a list of either. A list is always several inputs."),
    ]
    parameters: Annotated[ClassifyParameters | None, Field(description="All are optional.")] = None


class Label(BaseModel):
    """A label and its score."""

    label: Annotated[str, Field(description="The label, as the model's card names it.")]
    score: Annotated[float, Field(description="Its probability; with function_to_apply none, its logit.")]


def create(tokenizer: Tokenizer, manifest: Manifest) -> Classify:
    """Makes the task of one artifact.

    Raises:
        ValueError: the artifact has no labels, or does not say what kind of classifier it is.
    """
    return Classify(tokenizer, manifest)


def golden_inputs(tokenizer: Tokenizer) -> Sequence[str]:  # noqa: ARG001  # all tasks share one signature
    """Returns texts that are short, long, in other scripts, or hard to tokenise."""
    return (
        "A warm, funny and clever film that never outstays its welcome.",
        "The plot makes no sense, the jokes fall flat, and it goes on for ever.",
        "no",
        "Rain fell all night on the tin roof, and by the morning the river had come up to the second step of the "
        "house.",
        "I had hoped for more; still, the last ten minutes are worth the ticket 🎬 – go and see it!",
        "서울의 봄은 짧지만 아름답다.",
        "Ünïcödé, naïve café, e\u0301 and ﬁ: the tokenizer must keep its footing.",
    )


class Classify:
    """One encoding for each text; one row, the labels' logits, for each encoding."""

    Request = ClassifyRequest
    Response = list[list[Label] | Failure]

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        if not manifest.labels or manifest.problem is None:
            raise ValueError("a classifier needs labels and a problem.")
        self._tokenizer = tokenizer
        self._max_tokens = manifest.max_tokens
        self._labels = manifest.labels
        self._default = default_function(manifest.problem, len(manifest.labels))

    def encode(self, request: ClassifyRequest) -> list[Encoding]:
        """Raises errors.Unprocessable: a text is empty, or too long where truncation is off."""
        inputs = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        where = tasks.pointers(request.inputs)
        parameters = request.parameters or DEFAULTS
        texts = [_text(item, pointer) for item, pointer in zip(inputs, where, strict=True)]
        try:
            return self._tokenizer.encode(texts, self._max_tokens, truncate=parameters.truncation)
        except TextTooLong as error:
            detail = f"A text has more than {self._max_tokens} tokens."
            raise tasks.input_too_long(where[error.index], detail, self._max_tokens) from None

    def decode(
        self, request: ClassifyRequest, encodings: Sequence[Encoding], rows: Sequence[Row]
    ) -> list[list[dict[str, Any]]]:
        """For each text its labels, best first."""
        del encodings
        parameters = request.parameters or DEFAULTS
        apply = FUNCTIONS[parameters.function_to_apply or self._default]
        return [self._ranked(apply(row[0].astype(np.float64)), parameters.top_k) for row in rows]

    def split(self, request: ClassifyRequest) -> list[ClassifyRequest]:
        """For each text a request with it alone."""
        inputs = request.inputs if isinstance(request.inputs, list) else [request.inputs]
        return [request.model_copy(update={"inputs": one}) for one in inputs]

    def single(self, response: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The labels of the one text."""
        return response[0]

    def _ranked(self, scores: Floats, top_k: int | None) -> list[dict[str, Any]]:
        best = (-scores).argsort(kind="stable")[:top_k]
        return [{"label": self._labels[i], "score": float(scores[i])} for i in best]


def default_function(problem: Problem | None, labels: int) -> Function:
    """What the pipeline applies when nothing is asked for."""
    if problem == "regression":
        return "none"
    return "sigmoid" if problem == "multi_label" or labels == 1 else "softmax"


def sigmoid(logits: Floats) -> Floats:
    """1 / (1 + exp(-x)), in a form that does not overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))


def identity(logits: Floats) -> Floats:
    """The logits themselves."""
    return logits


FUNCTIONS: Final = {"softmax": softmax, "sigmoid": sigmoid, "none": identity}


def _text(item: str | Pair, pointer: str) -> Text:
    if isinstance(item, Pair):
        text, pair, pointer = item.text, item.text_pair, f"{pointer}/text"
    else:
        text, pair = item, None
    if not text.strip():
        raise tasks.empty_input(pointer)
    return text if pair is None else (text, pair)
