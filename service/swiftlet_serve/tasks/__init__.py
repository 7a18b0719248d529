"""The tasks, one module each, loaded by name.

`tasks/fill_mask.py` is the task `fill-mask`, served at `/fill-mask`. A task module defines the members of
`Definition`. No other file lists the tasks: a new task is a new file in this package. Modules whose names begin with an
underscore hold the parts that tasks share.

The tasks here follow the pipelines of the same names in transformers 4.57.1, and the Hugging Face Inference format.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, Literal, Protocol, cast

import numpy as np

from swiftlet_models import architectures
from swiftlet_models.artifact import Head, Manifest, Outputs
from swiftlet_models.encodings import Encoding
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import plugins
from swiftlet_serve.errors import SetupError
from swiftlet_serve.types import Task

Mean = Literal["probabilities", "logits"]
"""What several models that answer as one take the mean of. Probabilities are the scores that they would answer with."""


class Definition(Protocol):
    """The members of a task module."""

    HEAD: Head
    """The head of the network."""
    OUTPUTS: Outputs
    """The head's outputs per position: a number, or one for each label or vocabulary token."""
    OTHER_HEADS: Mapping[Head, Outputs]
    """Other heads that the task can use, with their outputs. Optional. A model that was released for a task with such a
    head answers this task as well, and `create` must accept it."""
    READS_VECTOR: bool
    """Whether the task needs the dense vector of an embedding model. Optional."""
    CROSS_ENCODER: bool
    """Whether import takes the function of the scores from a CrossEncoder of sentence-transformers. Optional."""

    READS_HEAD: bool
    """Whether `create` takes the parameters of `head.safetensors`, from an artifact that has them. Optional."""

    READS_LABELS: bool
    """Whether `create` takes the tokenizer of labels as well, from an artifact that has one. Optional."""

    TASK: type[Task[Any, Any]]
    """The class of the tasks that `create` makes."""
    ENSEMBLE: Callable[[Sequence[Any], Mean], Task[Any, Any]]
    """Makes the task of several models that answer as one, given theirs. Raises ValueError if they differ. Optional."""

    def create(self, tokenizer: Tokenizer, manifest: Manifest, *head: Any) -> Task[Any, Any]:
        """Makes the task of one artifact. Raises ValueError if the artifact does not fit the task."""
        ...


QUERY_WEIGHTS: Final = "query.weight"  # the parameter of `head.safetensors`: (V,), of each token of the vocabulary


def names() -> list[str]:
    """Returns the names of all tasks, sorted. Imports none of them."""
    return [name.replace("_", "-") for name in plugins.names(sys.modules[__name__])]


def load(name: str) -> Definition:
    """Imports the task of this name.

    Raises:
        SetupError: the task does not exist.
    """
    if name not in names():
        raise SetupError(f"There is no task {name!r}. The tasks are {', '.join(names())}.")
    return cast(Definition, plugins.load(sys.modules[__name__], name.replace("-", "_")))


@cache
def answered_by(task: str) -> Sequence[str]:
    """Returns the tasks that the models for a task answer: this one, then the others that can use its head.

    Raises:
        SetupError: the task does not exist.
    """
    head = load(task).HEAD
    others = [name for name in names() if name != task and head in getattr(load(name), "OTHER_HEADS", {})]
    return (task, *others)


def create(
    name: str,
    tokenizer: Tokenizer,
    manifest: Manifest,
    head: HeadWeights | None = None,
    label_tokenizer: Tokenizer | None = None,
) -> Task[Any, Any]:
    """Makes the task of this name for one artifact.

    Args:
        name: the task.
        tokenizer: the tokenizer of the artifact.
        manifest: its manifest.
        head: the parameters of its `head.safetensors`, if it has that file. Without them, a task that needs them only
            encodes.
        label_tokenizer: that of its encoder of labels, if it has one.

    Raises:
        SetupError: the task does not exist.
        ValueError, LabellingError: the artifact or its head does not fit the task.
    """
    definition = load(name)
    if label_tokenizer is not None and not getattr(definition, "READS_LABELS", False):
        raise ValueError("this task uses no encoder of labels.")
    if head is not None and getattr(definition, "READS_HEAD", False):
        return definition.create(tokenizer, manifest, head, *([label_tokenizer] if label_tokenizer else []))
    return definition.create(tokenizer, manifest)


def head_width(outputs: Outputs, labels: int, vocab_size: int, hidden: int = 0) -> int:
    """Returns the number of outputs per position for a model of these sizes."""
    sizes = {"labels": labels, "vocabulary": vocab_size, "hidden": hidden}
    return outputs if isinstance(outputs, int) else sizes[outputs]


def read_last(encodings: Iterable[Encoding]) -> list[Encoding]:
    """Returns sequences whose head reads the last token."""
    return [replace(encoding, focus=np.array([len(encoding.input_ids) - 1])) for encoding in encodings]


def reads_last(manifest: Manifest) -> bool:
    """Returns whether the head that classifies a text reads its last token, and not its first one.

    False if the architecture or its configuration is invalid, which the engine reports.
    """
    if manifest.embedding is not None:
        return manifest.embedding.pooling == "last"
    try:
        config = architectures.describe(manifest.architecture).Config(**manifest.config)
        return bool(config.traits().classifies_last)
    except (ValueError, TypeError):
        return False


def check_unlabelled(manifest: Manifest) -> None:
    """Raises ValueError if an artifact has labels, for a task without labels."""
    if manifest.labels:
        raise ValueError(f"a model for {manifest.task} has no labels.")
