"""A recipe: everything that decides what comes out of a training run, in one TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from models.artifact import Task


class RecipeError(Exception):
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
    """One task: what it is trained on, and what it is measured on once, at the end."""

    task: Task
    train: tuple[str, ...]  # files under the data folder
    evaluate: str
    epochs: int
    batch_rows: int
    learning_rate: float
    max_tokens: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """One architecture and its tasks."""

    name: str
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
        RecipeError: a field is missing or unknown.
    """
    document = tomllib.loads(path.read_text("utf-8"))
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
