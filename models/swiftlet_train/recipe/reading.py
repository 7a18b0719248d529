"""Reads recipes from TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter, ValidationError

from swiftlet_models.regular_file import check_regular
from swiftlet_models.weakness import Weakness
from swiftlet_train.recipe.checks import RecipeError
from swiftlet_train.recipe.finetuning import METHODS, Distillation, Finetuning, OtherTraining
from swiftlet_train.recipe.pretraining import KnowledgeTransfer, Pretraining
from swiftlet_train.recipe.recipe import Recipe, TokenizerTraining

TYPES: Final[Mapping[str, str]] = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "dict_type": "a table",
}
"""What a value must be, by pydantic's name of the error."""


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe from a TOML file.

    Raises:
        RecipeError: as `read_toml`, a field is missing or unknown, or a value is invalid.
    """
    return parse_recipe(read_toml(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Reads a TOML file.

    Raises:
        RecipeError: it is not a regular file that can be read, or not valid TOML.
    """
    try:
        check_regular(path)
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise RecipeError(f"it cannot be read: {error.strerror}.") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise RecipeError(f"not valid TOML: {error}") from None


def parse_recipe(document: Mapping[str, Any]) -> Recipe:
    """Builds a recipe from a parsed TOML document.

    Raises:
        RecipeError: a field is missing or unknown, or a value is invalid.
    """
    tables = document.get("finetuning", {})
    if not isinstance(tables, Mapping):
        raise RecipeError("finetuning must hold a table for each artifact, such as [finetuning.mine].")
    finetuning = {name: _parse_finetuning(table) for name, table in tables.items()}
    pretraining = _parse_pretraining(document.get("pretraining", {}))
    if "tokenizer" in document:
        document = {**document, "tokenizer": _build(TokenizerTraining, "tokenizer", document["tokenizer"])}
    recipe: Recipe = _build(Recipe, "recipe", {**document, "pretraining": pretraining, "finetuning": finetuning})
    return recipe


def _parse_pretraining(table: Any) -> Any:
    if isinstance(table, Mapping) and "knowledge_transfer" in table:
        plan = _build(KnowledgeTransfer, "knowledge_transfer", table["knowledge_transfer"])
        table = {**table, "knowledge_transfer": plan}
    return _build(Pretraining, "pretraining", table)


def _parse_finetuning(table: Any) -> Any:
    if isinstance(table, Mapping) and "task" in table:
        if table["task"] not in list(METHODS):  # it may be of any type
            raise RecipeError(f"task must be one of {', '.join(sorted(METHODS))}, not {table['task']!r}.")
        known = METHODS[table["task"]]
        method = table.get("method", known[0])
        if method not in known:
            raise RecipeError(f"method must be one of {', '.join(known)} for this task, not {method!r}.")
        table = {**table, "method": method}
    if isinstance(table, Mapping) and "distillation" in table:
        table = {**table, "distillation": _build(Distillation, "distillation", table["distillation"])}
    for name, kind in (("weaknesses", Weakness), ("averaged_with", OtherTraining)):
        if isinstance(table, Mapping) and isinstance(table.get(name), list):
            table = {**table, name: tuple(_build(kind, name, entry) for entry in table[name])}
    return _build(Finetuning, "finetuning", table)


def _build(kind: type[Any], name: str, table: Mapping[str, Any]) -> Any:
    if not isinstance(table, Mapping):
        raise RecipeError(f"{name} must be a table, not {table!r}.")
    known = {field.name for field in fields(kind)}
    for key in sorted(set(table) - known):
        raise RecipeError(f"unknown field {key!r} in {name}.")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    types = get_type_hints(kind)
    for key, value in values.items():
        if not is_dataclass(value):
            _check_type(key, value, types[key])
    try:
        return kind(**values)
    except TypeError as error:
        raise RecipeError(f"{name}: {error}") from None


@cache
def _adapter(wanted: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wanted)


def _check_type(key: str, value: Any, wanted: Any) -> None:
    """Raises RecipeError if a value is not of the type of its field. The choices of a `Literal` are checked later."""
    try:
        _adapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] in TYPES:
            path = ".".join(map(str, (key, *first["loc"]))) if isinstance(value, Mapping) else key
            raise RecipeError(f"{path} must be {TYPES[first['type']]}, not {first['input']!r}.") from None
