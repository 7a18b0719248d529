"""Counts the articles that the pre-training of each shipped recipe reads.

The tests read the counts from articles_read.json, and fail if the file lacks a pre-training. This command writes the
file anew. It takes minutes, and needs the data folder:

    python -m tests.support.articles_read
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from functools import cache
from itertools import product
from typing import Final, NamedTuple

import tokenizers

from swiftlet_models.artifact import TOKENIZER, open_artifact
from swiftlet_models.datasets import documents
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_train.pretraining.corpus import encode_documents
from swiftlet_train.recipe import KnowledgeTransfer, Recipe
from swiftlet_train.run_recipe import RECIPES, load_recipe
from tests.support.paths import DATA, TESTS

COUNTS: Final = TESTS / "support/articles_read.json"


class Reading(NamedTuple):
    """The part of a file that a pre-training reads. No sequence crosses articles."""

    file: str
    sequences: int
    length: int
    """Tokens of a sequence."""
    vocabulary: str
    """The hash of the tokens of a bundled model; empty if no model of the recipe is bundled."""


def lineage(recipe: Recipe) -> list[Recipe]:
    """Returns a recipe, and those of all models that it builds on."""
    plan = recipe.pretraining.knowledge_transfer or KnowledgeTransfer()
    names = {recipe.pretraining.init_from_recipe, plan.teacher_recipe} - {""}
    distillations = [work.distillation for work in recipe.finetuning.values() if work.distillation]
    models = {plan.teacher_model, *(one.init_from_model for one in distillations)} - {""}
    names |= {open_artifact(BUNDLED / model).manifest.source["recipe"] for model in models}
    return [recipe, *(one for name in sorted(names) for one in lineage(load_recipe(str(RECIPES / f"{name}.toml"))))]


def readings(recipe: Recipe) -> list[tuple[int, Reading]]:
    """Returns the pre-trainings that read a file by which a task of the recipe is evaluated.

    Each comes after the number of articles that this evaluation skips.
    """
    found = []
    for (name, work), origin in product(recipe.finetuning.items(), lineage(recipe)):
        if work.evaluate in origin.pretraining.corpora:
            vocabulary = _hash(name) if (BUNDLED / name).is_dir() else ""
            sequences, length = origin.pretraining.corpora[work.evaluate], origin.pretraining.sequence_length - 2
            found.append((work.evaluate_skip, Reading(work.evaluate, sequences, length, vocabulary)))
    return found


def read_counts() -> dict[Reading, int]:
    """Returns the number of articles of each pre-training."""
    return {Reading(*reading): count for reading, count in json.loads(COUNTS.read_text("utf-8"))}


def count_articles(reading: Reading) -> int:
    """Returns the number of articles that give the sequences.

    Without a bundled model, counts words instead of tokens. No token spans two, so the number is an upper bound.
    """
    path = DATA / reading.file
    counts = (len(re.findall(r"\w+|[^\w\s]", text)) for text in documents(path))
    for model in BUNDLED.iterdir():
        if reading.vocabulary == _hash(model.name):
            tokenizer = tokenizers.Tokenizer.from_file(str(model / TOKENIZER))
            counts = (len(ids) for ids in encode_documents(tokenizer, path))
    found = 0
    for number, count in enumerate(counts, start=1):
        found += count // reading.length
        if found >= reading.sequences:
            return number
    return sys.maxsize


@cache
def _hash(model: str) -> str:
    tokens = Tokenizer.load(BUNDLED / model / TOKENIZER).tokens
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:16]


if __name__ == "__main__":
    recipes = [load_recipe(str(path)) for path in sorted(RECIPES.glob("*.toml"))]
    wanted = sorted({reading for recipe in recipes for _, reading in readings(recipe)})
    counted = [json.dumps([reading, count_articles(reading)]) for reading in wanted]
    COUNTS.write_text("[\n  " + ",\n  ".join(counted) + "\n]\n", "utf-8")
