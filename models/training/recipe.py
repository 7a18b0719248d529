"""A recipe: everything that decides what comes out of a training run, in one TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from models.artifact import Task
from models.errors import ModelError


class RecipeError(ModelError):
    """The recipe cannot be followed; the message is one sentence."""


@dataclass(frozen=True)
class Pretraining:
    """Masked language modelling with the teacher's features."""

    corpora: Mapping[str, int]  # file under the data folder -> rows taken from it
    row_tokens: int
    batch_rows: int
    steps: int
    learning_rate: float
    feature_weight: float


@dataclass(frozen=True)
class Finetuning:
    """One task: what it is trained on, and what it is measured on once, at the end.

    fill-mask is the objective of the pre-training, so that nothing is trained for it here.
    """

    task: Task
    evaluate: str  # file under the data folder
    licences: tuple[str, ...]  # of what it was trained on
    train: Mapping[str, int] = field(default_factory=dict)  # file under the data folder -> examples taken from it
    skip: int = 0  # examples of `evaluate` passed over
    limit: int | None = None  # and how many are measured on then; all if none is given
    epochs: int = 1
    batch_rows: int = 32
    learning_rate: float = 1e-4
    max_tokens: int = 512
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One architecture and its tasks."""

    name: str
    version: str  # of the artifacts
    summary: str  # a sentence for their cards
    seed: int
    teacher: str  # installed package that holds a BERT checkpoint under `model/`
    vocabulary: int
    architecture: str
    config: Mapping[str, Any]
    pretraining: Pretraining
    finetuning: Mapping[str, Finetuning]  # artifact name -> task


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe.

    Raises:
        RecipeError: the file is no TOML, or a field is missing or unknown.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no UTF-8, or no TOML
        raise RecipeError(f"it is not valid TOML: {error}") from None
    finetuning = {name: _build(Finetuning, table) for name, table in document.pop("finetuning", {}).items()}
    pretraining = _build(Pretraining, document.pop("pretraining", {}))
    recipe: Recipe = _build(Recipe, document | {"pretraining": pretraining, "finetuning": finetuning})
    return recipe


def _build(kind: type[Any], table: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)}
    for name in sorted(set(table) - known):
        raise RecipeError(f"the field {name!r} of {kind.__name__.lower()} is unknown.")
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
    except TypeError as error:
        raise RecipeError(f"{kind.__name__.lower()}: {error}") from None
