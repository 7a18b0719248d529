"""The requests and responses of `zero-shot`, whatever the kind of model, and how labels become hypotheses."""

from __future__ import annotations

import string
from collections.abc import Container, Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from swiftlet_models.artifact import Manifest
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.errors import Unprocessable, invalid_value
from swiftlet_serve.tasks import _windows
from swiftlet_serve.tasks._requests import (
    LEAST_ITEM_BYTES,
    Failure,
    OneByOne,
    Strict,
    TextsRequest,
    empty_input,
    input_too_long,
    is_blank,
    listed,
    pointers,
    too_many_tokens,
)

MAX_PAIRS: Final = 256  # texts times labels of one request
MAX_LABELS_CHARACTERS: Final = 65_536  # of labels with commas between them, which take milliseconds to split
MAX_CHARACTERS: Final = 1 << 20  # of all hypotheses: a template may repeat a label, and each input of a partial request
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


class ZeroShotRequest(TextsRequest):
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

    parameters: Annotated[ZeroShotParameters, Field(description="The labels, and options.")]


class ScoredLabel(BaseModel):
    """A label and its score."""

    label: Annotated[str, Field(description="The label, as the request names it.")]
    score: Annotated[float, Field(description="Probability of the label.")]


Ranking = list[ScoredLabel]


class ZeroShotTask(OneByOne):
    """The parts that do not depend on the kind of model."""

    Request = ZeroShotRequest
    Response = Ranking | list[Ranking | Failure]
    known: Container[str] = ()  # labels that have tokens, which are not looked at again

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest):
        self.tokenizer = tokenizer
        self.manifest = manifest
        self.max_tokens = manifest.max_tokens

    def least_response_bytes(self, request: ZeroShotRequest) -> int:
        """Returns a lower bound of the size of the response, which repeats the labels for each text."""
        return len(listed(request.inputs)) * sum([LEAST_ITEM_BYTES + len(label) for label in request.parameters.labels])

    def split(self, request: ZeroShotRequest) -> list[ZeroShotRequest]:
        """Returns one request for each text.

        Raises:
            Unprocessable: there are too many texts and labels, or their hypotheses are too long.
        """
        texts = len(listed(request.inputs))
        check_labels(request, texts, times=texts)
        return super().split(request)

    def checked(self, request: ZeroShotRequest) -> tuple[list[str], list[str]]:
        """Returns the texts and the labels of a request.

        Raises:
            Unprocessable: a text or a label is empty, or there are no labels or too many.
        """
        texts = listed(request.inputs)
        for text, pointer in zip(texts, pointers(request.inputs), strict=True):
            if not text.strip():
                raise empty_input(pointer)
        labels = check_labels(request, len(texts), times=1)
        new = [label for label in labels if label not in self.known]
        empty = {label for label, ids in zip(new, self.tokenizer.ids(new), strict=True) if not len(ids)}
        for i, label in enumerate(labels):
            if is_blank(label) or label in empty:
                place = f"{LABELS}/{i}" if isinstance(request.parameters.candidate_labels, list) else LABELS
                raise invalid_value(place, "empty", "A label is empty. Send labels that are not blank.")
        return texts, labels

    def too_long(self, request: ZeroShotRequest, index: int, tokens: int = 0) -> Unprocessable:
        """Returns the error of a text or hypothesis. The indices of hypotheses follow the indices of texts."""
        places = pointers(request.inputs)
        if index < len(places):
            return too_many_tokens(places[index], self.max_tokens, tokens)
        detail = f"A hypothesis has too many of the model's {self.max_tokens} tokens. Shorten the label."
        return input_too_long(LABELS, detail, self.max_tokens)


def check_labels(request: ZeroShotRequest, texts: int, *, times: int) -> list[str]:
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


def fill(template: str, labels: Sequence[str]) -> list[str]:
    """Returns the hypothesis of each label. The fields of a template are `{}` or `{0}`, without formats.

    Raises:
        Unprocessable: the template has no field, or another one. A format could make a text of any length.
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
    between = [""]  # the texts between fields; `{{`, which stands for a brace, parts them as well
    for literal, field, _, _ in parts:
        between[-1] += literal
        if field is not None:
            between.append("")
    return [label.join(between) for label in labels]
