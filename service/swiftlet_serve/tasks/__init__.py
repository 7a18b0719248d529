"""The tasks, one module each. This module holds the parts that they share, and loads a task by its name.

`tasks/fill_mask.py` is the task `fill-mask`, served at `/fill-mask`. A task module defines the members of
`Definition`. No other file lists the tasks, so a new task is a new file in this package.

The tasks here follow the pipelines of the same names in transformers 4.57.1, and the Hugging Face Inference format.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol, TypeVar, cast
from unicodedata import category

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from swiftlet_models import architectures
from swiftlet_models.artifact import Head, Manifest, Outputs
from swiftlet_models.metrics import Score, Threshold
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import plugins
from swiftlet_serve.errors import FieldError, SetupError, SwiftletError, Unprocessable
from swiftlet_serve.types import Task
from swiftlet_serve.types.body_model import BodyModel

LEAST_ITEM_BYTES: Final = 24  # of a label, token or answer with its score, in a response
MAX_INPUTS: Final = 2048  # texts or questions in one request, as OpenAI allows: the work has limits of its own
TRUNCATION: Final = "set truncation to true"
"""What to do about a text that is too long, in errors. Other protocols have other words for it."""

INVISIBLE: Final = ("Cc", "Cf")  # Unicode's categories of controls and formats

Floats = NDArray[np.float64]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS)]
FloatT = TypeVar("FloatT", np.float32, np.float64)


# Task modules


class Definition(Protocol):
    """The members of a task module."""

    HEAD: Head
    """The head of the network."""
    OUTPUTS: Outputs
    """The head's outputs per position: a number, or one for each label or vocabulary token."""
    OTHER_HEADS: Mapping[Head, Outputs]
    """Other heads that the task can use, with their outputs. Optional: without it there is none. A model that was
    released for a task with such a head answers this task as well, so that `create` must accept it."""
    CROSS_ENCODER: bool
    """Whether import takes the function of the scores from a CrossEncoder of sentence-transformers. Optional."""
    GOLDEN_PARAMETERS: Mapping[str, Any]
    """The `parameters` of those requests. Optional: without it there are none."""

    TASK: type[Task[Any, Any]]
    """The class of the tasks that `create` makes."""
    Evaluator: Callable[[Any], Evaluator]
    """A subclass of `Evaluator`. The argument is a task that `create` made."""

    def create(self, tokenizer: Tokenizer, manifest: Manifest) -> Task[Any, Any]:
        """Makes the task of one artifact. Raises ValueError if the artifact does not fit the task."""
        ...

    def golden_inputs(self, tokenizer: Tokenizer) -> Sequence[Any]:
        """Returns the `inputs` of the requests that an artifact's golden answers record."""
        ...


def names() -> list[str]:
    """Returns the names of all tasks, sorted. Imports none of them."""
    return [name.replace("_", "-") for name in plugins.names(sys.modules[__name__])]


def load(name: str) -> Definition:
    """Imports the task of this name.

    Raises:
        SetupError: there is no such task.
    """
    if name not in names():
        raise SetupError(f"There is no task {name!r}. The tasks are {', '.join(names())}.")
    return cast(Definition, plugins.load(sys.modules[__name__], name.replace("-", "_")))


@cache
def answered_by(task: str) -> Sequence[str]:
    """Returns the tasks that the models for a task answer: this one, then the others that can use its head.

    Raises:
        SetupError: there is no such task.
    """
    head = load(task).HEAD
    others = [name for name in names() if name != task and head in getattr(load(name), "OTHER_HEADS", {})]
    return (task, *others)


def golden_bodies(definition: Definition, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Returns the request bodies that the golden answers of an artifact belong to."""
    parameters = getattr(definition, "GOLDEN_PARAMETERS", None)
    shared = {} if parameters is None else {"parameters": parameters}
    return [{"inputs": one, **shared} for one in definition.golden_inputs(tokenizer)]


def head_width(outputs: Outputs, labels: int, vocab_size: int, hidden: int = 0) -> int:
    """Returns the number of outputs per position for a model of these sizes."""
    sizes = {"labels": labels, "vocabulary": vocab_size, "hidden": hidden}
    return outputs if isinstance(outputs, int) else sizes[outputs]


def is_causal(manifest: Manifest) -> bool:
    """Returns whether a token of this network attends only to itself and the tokens before it.

    False if the architecture or its configuration is invalid, which the engine reports.
    """
    try:
        config = architectures.describe(manifest.architecture).Config(**manifest.config)
        return config.traits().causal
    except (ValueError, TypeError):
        return False


def check_unlabelled(manifest: Manifest) -> None:
    """Raises ValueError if an artifact has labels, for a task that has none."""
    if manifest.labels:
        raise ValueError(f"a model for {manifest.task} has no labels.")


# Evaluation


@dataclass(frozen=True)
class Grade:
    """The grade of one answer."""

    scores: Mapping[str, float]  # each from 0 to 1, the main score first
    answer: Any  # compared between models to compute their agreement


@dataclass(frozen=True)
class Case:
    """A request of an evaluation, and the grading of its response."""

    body: dict[str, Any]
    expected: tuple[Any, ...]  # the right answers
    grade: Callable[[Any], list[Grade]]


class Evaluator(ABC):
    """Measures a task on a data file. `offline/evaluate.py` sends the requests and averages the grades."""

    min_agreement: ClassVar[float] = 0.0
    """The agreement of int8 with fp32 that an artifact needs to be released, in percent."""

    @abstractmethod
    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        """Reads the examples from `skip` up to `stop`, in order.

        Raises:
            DatasetError: the file is not in the format of this task.
        """

    @abstractmethod
    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        """Returns the main scores of trivial strategies, by their descriptions."""

    @abstractmethod
    def best(self, response: Any) -> str:
        """Returns the best answer of a response to one input, as text."""

    def grades(self, cases: Sequence[Case], responses: Sequence[Any]) -> list[Grade]:
        """Returns the grades of all answers, in order. An evaluator may grade each answer relative to the others."""
        return [grade for case, response in zip(cases, responses, strict=True) for grade in case.grade(response)]

    def agree(self, one: Any, other: Any) -> float:
        """Returns how far two answers to the same case agree, from 0 to 1."""
        return float(one == other)

    def task(self, cases: Sequence[Case]) -> Task[Any, Any] | None:  # noqa: ARG002  # some evaluators need the cases
        """Returns the task that answers the cases, or None for the served one."""
        return None

    def scores(self, cases: Sequence[Case], answers: Sequence[Any]) -> dict[str, Score]:  # noqa: ARG002
        """Returns scores that are not a mean over the answers."""
        return {}

    def upper_bounds(self, cases: Sequence[Case], responses: Sequence[Any]) -> dict[str, Threshold]:  # noqa: ARG002
        """Returns the scores at the best threshold for these cases. Threshold 0 is the served one."""
        return {}


# Requests and responses


class NullIsDefault(BodyModel):
    """A model in which null means the default, for every field that has one.

    Fields whose type includes None give null a meaning of their own. Fields without a default refuse it.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = super().__get_pydantic_core_schema__(source, handler)
        fields: Any = handler.resolve_ref_schema(schema)
        while "fields" not in fields:
            fields = fields["schema"]
        for name, field in fields["fields"].items():
            given = field["schema"]
            if given["type"] == "default" and given["schema"]["type"] != "nullable":
                replace = partial(_replace_null, cls.model_fields[name])
                given["schema"] = core_schema.no_info_before_validator_function(replace, given["schema"])
        return schema


def _replace_null(field: FieldInfo, value: Any) -> Any:
    return field.get_default(call_default_factory=True, validated_data={}) if value is None else value


class Strict(NullIsDefault):
    """A model that converts no types and rejects unknown fields.

    `cache_strings` is off for values: by default pydantic keeps up to 16,384 of the short strings that it parses.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, cache_strings="keys")


class Options(Strict):
    """Options that Hugging Face clients send. They are accepted and have no effect."""

    use_cache: Annotated[bool | None, Field(description="Has no effect.")] = None
    use_gpu: Annotated[bool | None, Field(description="Has no effect.")] = None
    wait_for_model: Annotated[bool | None, Field(description="Has no effect: models are loaded at start-up.")] = None


class Request(Strict):
    """The fields that the requests of all tasks share."""

    model: Annotated[
        str | None,
        Field(description="Name of a served model. Default: the default model of this task.", max_length=64),
    ] = None
    options: Annotated[Options | None, Field(description="Options of Hugging Face clients.")] = None
    partial: Annotated[
        bool,
        Field(
            description="If true, an error in one of several inputs fails that input only. If false, it fails the "
            "whole request. Has no effect on a request with one input."
        ),
    ] = False
    details: Annotated[
        bool,
        Field(
            description="If true, the response is an object: the answer, and details of how much of the texts was read."
        ),
    ] = False


class Details(BaseModel):
    """How much of the texts of a request was read."""

    input_tokens: Annotated[
        int, Field(description="Tokens of all sequences before they were cut, special tokens included.")
    ]
    tokens_read: Annotated[int, Field(description="Tokens of all sequences that the model read.")]
    truncated: Annotated[
        list[str], Field(description="JSON Pointer of each text that was cut, such as /inputs/0, in order.")
    ]


class Failure(BaseModel):
    """The error of one input of a request with `partial`. It takes the place of the answer."""

    error: Annotated[str, Field(description="A sentence that describes the error.")]
    error_type: Annotated[str, Field(description="The same as code, for clients of text-embeddings-inference.")]
    code: Annotated[str, Field(description="The error code, as in problem details.")]


def failure(error: SwiftletError) -> Failure:
    """Returns the error of an input in a partial response."""
    return Failure(error=error.detail, error_type=error.code, code=error.code)


def characters(inputs: object) -> int:
    """Returns the total length of all texts of a request's inputs, in code points. A token id counts as one."""
    if isinstance(inputs, str):
        return len(inputs)
    if isinstance(inputs, BaseModel):
        return sum([characters(value) for value in vars(inputs).values() if value])
    return sum(map(characters, inputs)) if isinstance(inputs, list) else isinstance(inputs, int)


def pointers(inputs: object) -> list[str]:
    """Returns the JSON Pointer of each input. A list is several inputs, anything else is one."""
    return [f"/inputs/{i}" for i in range(len(inputs))] if isinstance(inputs, list) else ["/inputs"]


def is_blank(text: str) -> bool:
    """Returns whether a text has nothing but spaces, control characters and invisible ones such as U+200B."""
    text = text.lstrip()
    if not all(map(_is_invisible, text[:64])):
        return False
    codes = np.frombuffer(text[64:].encode("utf-32-le", "surrogatepass"), np.uint32)
    return all(_is_invisible(chr(code)) for code in np.flatnonzero(np.bincount(codes)))  # each different one once


def _is_invisible(character: str) -> bool:
    return character.isspace() or category(character) in INVISIBLE


def text_pointers(request: Any) -> list[str]:
    """Returns the JSON Pointer of each text that a task encodes, unless the task has a method of this name."""
    return pointers(request.inputs)


def empty_input(pointer: str) -> Unprocessable:
    """Returns the error for a text without content."""
    detail = "The text is empty. Send a text that is not blank."
    return Unprocessable("empty_input", detail, field_errors=[FieldError(pointer, "empty_input")])


def input_too_long(pointer: str, detail: str, limit: int) -> Unprocessable:
    """Returns the error for an input that exceeds `limit`. `detail` names the unit of the limit."""
    return Unprocessable("input_too_long", detail, field_errors=[FieldError(pointer, "input_too_long", limit)])


def too_many_tokens(pointer: str, max_tokens: int) -> Unprocessable:
    """Returns the error for a text that exceeds the model's token limit while truncation is off."""
    detail = f"The text has more than {max_tokens} tokens. Shorten it, or {TRUNCATION}."
    return input_too_long(pointer, detail, max_tokens)


def softmax(logits: NDArray[FloatT]) -> NDArray[FloatT]:
    """Returns probabilities over the last axis, in the precision of the logits."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=-1, keepdims=True))
