"""The tasks, one module each. This module holds the parts that they share, and loads a task by its name.

`service/tasks/fill_mask.py` is the task `fill-mask`, served at `/fill-mask`. A task module defines the members of
`Definition`. No other file lists the tasks, so a new task is a new file in this package.

The tasks here follow the pipelines of the same names in transformers 4.57.1, and the Hugging Face Inference format.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from swiftlet_serve.models.artifact import Head, Manifest, Outputs
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service import plugins
from swiftlet_serve.service.errors import FieldError, SetupError, Unprocessable
from swiftlet_serve.service.types import Task

MAX_INPUTS: Final = 64  # texts or questions in one request

Floats = NDArray[np.float64]


class Definition(Protocol):
    """The members of a task module."""

    HEAD: Head
    """The head of the network."""
    OUTPUTS: Outputs
    """The head's outputs per position: a number, or one for each label or vocabulary token."""

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


def head_width(outputs: Outputs, labels: int, vocab_size: int) -> int:
    """Returns the number of outputs per position for a model with these labels and this vocabulary."""
    return outputs if isinstance(outputs, int) else {"labels": labels, "vocabulary": vocab_size}[outputs]


class Strict(BaseModel):
    """Nothing is converted, nothing is ignored: what is not understood is refused.

    Nor is anything kept: unless it is told not to, pydantic holds on to 16,384 of the short texts that it has read.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True, cache_strings="keys")


class Options(Strict):
    """What Hugging Face clients may send along. Accepted, and of no effect here."""

    use_cache: Annotated[bool | None, Field(description="Has no effect.")] = None
    use_gpu: Annotated[bool | None, Field(description="Has no effect.")] = None
    wait_for_model: Annotated[bool | None, Field(description="Has no effect: models are loaded at start-up.")] = None


class Request(Strict):
    """What every task's body may hold beside its inputs and parameters."""

    model: Annotated[
        str | None,
        Field(description="The name of a served model; if left out, the first that serves this task.", max_length=64),
    ] = None
    options: Annotated[Options | None, Field(description="Options of the Hugging Face clients.")] = None
    partial: Annotated[
        bool,
        Field(
            description="Whether each of several inputs has its own answer or error, rather than one that is wrong "
            "failing all. Has no effect where there is one input."
        ),
    ] = False


class Failure(BaseModel):
    """Why one input of a request that asked for `partial` has no answer; it stands in the answer's place."""

    error: Annotated[str, Field(description="A sentence for a person.")]
    error_type: Annotated[str, Field(description="The code again, where TEI's clients look for it.")]
    code: Annotated[str, Field(description="What to decide upon: a code that errors have, too.")]


def characters(inputs: object) -> int:
    """How long all texts of a request's inputs are, in code points."""
    if isinstance(inputs, str):
        return len(inputs)
    if isinstance(inputs, BaseModel):
        return sum(map(characters, vars(inputs).values()))
    return sum(map(characters, inputs)) if isinstance(inputs, list) else 0


def empty_input(pointer: str) -> Unprocessable:
    """There is nothing to read at `pointer`."""
    return Unprocessable("empty_input", "A text is empty.", field_errors=[FieldError(pointer, "empty_input")])


def input_too_long(pointer: str, detail: str, limit: int) -> Unprocessable:
    """What is at `pointer` exceeds `limit`, in the unit that `detail` names."""
    return Unprocessable("input_too_long", detail, field_errors=[FieldError(pointer, "input_too_long", limit)])


def pointers(inputs: object) -> list[str]:
    """A JSON Pointer to each input: the one there is, or every one of a list."""
    return [f"/inputs/{i}" for i in range(len(inputs))] if isinstance(inputs, list) else ["/inputs"]


def check_unlabelled(manifest: Manifest) -> None:
    """Raises ValueError if an artifact has labels, for a task that has none."""
    if manifest.labels:
        raise ValueError(f"a model for {manifest.task} has no labels.")


def softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=-1, keepdims=True))
