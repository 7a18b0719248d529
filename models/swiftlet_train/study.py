"""A study: variants of one recipe's pre-training, compared by their loss on held-out text, or by a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftlet_models.heads import build
from swiftlet_train.loop.learning_curve import LOSSES_FILE, CurvePoint, read_curve
from swiftlet_train.recipe import Recipe, RecipeError, parse_recipe
from swiftlet_train.recipe.reading import read_toml

HELD_OUT: Final = "held_out_"  # the prefix of a loss on held-out text


@dataclass(frozen=True)
class Study:
    """A question and the recipes that answer it."""

    name: str
    question: str
    variants: Mapping[str, Recipe]
    downstream: Downstream | None = None


@dataclass(frozen=True)
class Downstream:
    """A comparison by the scores of fine-tuned tasks, from several checkpoints of each variant."""

    checkpoints: tuple[float, ...]
    """Parts of a variant's steps, from 0 (an untrained network) to 1, in rising order."""
    seeds: tuple[int, ...]
    """Of the fine-tuning."""

    def __post_init__(self) -> None:
        parts = list(self.checkpoints)
        if not parts or parts != sorted(set(parts)) or not 0 <= parts[0] <= parts[-1] <= 1:
            raise RecipeError("checkpoints must be between 0 and 1, in rising order.")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise RecipeError("seeds must be different numbers, one at least.")

    def steps(self, recipe: Recipe) -> list[int]:
        """Returns the numbers of steps of a variant's checkpoints."""
        return [round(part * recipe.pretraining.steps) for part in self.checkpoints]


def read_study(path: Path) -> Study:
    """Reads a study from a TOML file.

    The file has a `name`, a `question`, a `recipe`, and `variants`: tables of the settings that differ. With a table
    `downstream`, the recipe's tasks compare the variants; without, it has no tasks.

    Raises:
        RecipeError: as `read_toml`, a field is missing or unknown, or a variant holds out no text.
    """
    document = read_toml(path)
    if document.keys() - {"downstream"} != {"name", "question", "recipe", "variants"}:
        raise RecipeError("a study must have the fields name, question, recipe and variants, and may have downstream.")
    downstream, variants = None, {}
    if "downstream" in document:
        downstream = _read_downstream(document["downstream"])
    for name, changes in document["variants"].items():
        unreleased = {"name": name, "version": "0.0.0", "summary": document["question"]}
        variants[name] = parse_recipe(unreleased | _merge(document["recipe"], changes))
        if bool(variants[name].finetuning) != (downstream is not None):
            raise RecipeError("a study has a table downstream if, and only if, its recipe has tasks.")
        if not variants[name].pretraining.held_out_sequences:
            raise RecipeError(f"the variant {name!r} needs held_out_sequences.")
    return Study(document["name"], document["question"], variants, downstream)


def _read_downstream(table: Any) -> Downstream:
    if not isinstance(table, dict) or table.keys() != {"checkpoints", "seeds"}:
        raise RecipeError("downstream must have the fields checkpoints and seeds, and no others.")
    return Downstream(tuple(table["checkpoints"]), tuple(table["seeds"]))


def held_out_losses(point: CurvePoint) -> dict[str, float]:
    """Returns the losses on held-out text at a point of a run."""
    return {name.removeprefix(HELD_OUT): loss for name, loss in point.losses.items() if name.startswith(HELD_OUT)}


def million_parameters(recipe: Recipe) -> float:
    """Returns the number of parameters of a recipe's encoder, in millions."""
    encoder = build(recipe.architecture, {**recipe.config, "vocab_size": recipe.vocab_size}, "masked_lm").encoder
    return sum(parameter.numel() for parameter in encoder.parameters()) / 1e6


def format_table(study: Study, runs: Path) -> str:
    """Returns a Markdown table of the variants: their size, steps, compute and final losses."""
    curves = {name: read_curve(runs / name / LOSSES_FILE) for name in study.variants}
    losses = list(dict.fromkeys(loss for points in curves.values() for loss in held_out_losses(points[-1])))
    rows = [["variant", "M parameters", "steps", "TFLOP", *(f"held-out {name}" for name in losses)]]
    for name, points in curves.items():
        size, final = million_parameters(study.variants[name]), held_out_losses(points[-1])
        cells = [f"{final[loss]:.3f}" if loss in final else "" for loss in losses]
        rows.append([name, f"{size:.2f}", str(points[-1].step), f"{points[-1].flops / 1e12:.0f}", *cells])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return join_rows(rows)


def join_rows(rows: list[list[str]]) -> str:
    """Returns a Markdown table. The second row holds the alignments."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merges tables recursively. Replaces lists and the table `corpora` as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        are_tables = isinstance(value, dict) and isinstance(merged.get(key), dict) and key != "corpora"
        merged[key] = _merge(merged[key], value) if are_tables else value
    return merged
