"""A study: one recipe's pre-training in several variants, held against each other on text that none has learnt from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftlet_serve.models.heads import build
from swiftlet_serve.models.training.curve import NAME, Point, read_curve
from swiftlet_serve.models.training.recipe import Recipe, RecipeError, parse_recipe

HELD_OUT: Final = "held_out_"  # what such losses begin with


@dataclass(frozen=True)
class Study:
    """A question, and the recipes that answer it."""

    name: str
    question: str
    variants: Mapping[str, Recipe]


def read_study(path: Path) -> Study:
    """Reads a study: `name`, `question`, a `recipe` without tasks, and `variants`, tables of what each sets otherwise.

    Raises:
        RecipeError: the file is no TOML, a field is missing or unknown, or nothing is held out.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:  # no UTF-8, or no TOML
        raise RecipeError(f"it is not valid TOML: {error}") from None
    if document.keys() != {"name", "question", "recipe", "variants"}:
        raise RecipeError("a study has a name, a question, a recipe and variants, and nothing else.")
    variants = {}
    for name, changes in document["variants"].items():
        named = {"name": name, "version": "0.0.0", "summary": document["question"]}  # nothing of it is released
        variants[name] = parse_recipe(named | _merge(document["recipe"], changes))
        if not variants[name].pretraining.held_out:
            raise RecipeError(f"variant {name!r} holds nothing out to be measured on.")
    return Study(document["name"], document["question"], variants)


def held_out(points: list[Point]) -> dict[str, float]:
    """What a run lost at its end on what was held out."""
    return {name.removeprefix(HELD_OUT): loss for name, loss in points[-1].losses.items() if name.startswith(HELD_OUT)}


def table(study: Study, runs: Path) -> str:
    """The answer as a table in Markdown: what each variant is, what it took, and what it lost at its end."""
    ends = {name: read_curve(runs / name / NAME) for name in study.variants}
    losses = list(dict.fromkeys(loss for points in ends.values() for loss in held_out(points)))
    rows = [["variant", "M parameters", "steps", "TFLOP", *(f"held-out {name}" for name in losses)]]
    for name, points in ends.items():
        recipe, found = study.variants[name], held_out(points)
        encoder = build(recipe.architecture, {**recipe.config, "vocab_size": recipe.vocabulary}, "masked_lm").encoder
        size = sum(parameter.numel() for parameter in encoder.parameters()) / 1e6
        told = [f"{found[loss]:.3f}" if loss in found else "" for loss in losses]
        rows.append([name, f"{size:.2f}", str(points[-1].step), f"{points[-1].flops / 1e12:.0f}", *told])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with the changes, table by table; lists and what stands under `corpora` are replaced as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        inner = isinstance(value, dict) and isinstance(merged.get(key), dict) and key != "corpora"
        merged[key] = _merge(merged[key], value) if inner else value
    return merged
