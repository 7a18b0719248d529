"""Artifacts that share a trunk: a head of each kind on the encoder of one small network."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models.artifact import Artifact, Embedding, Precision
from swiftlet_models.encodings import Encoding
from swiftlet_serve.types.topk import NOTHING, Ranked, Scored
from tests.support.adapters import adapted
from tests.support.checkpoints import Task
from tests.support.networks import VOCABULARY, draft, make

TASKS: tuple[Task, ...] = ("classify", "qa", "fill-mask")
LENGTHS = (9, 1, 33, 129, 2)
_DIRECTORY: Final = tempfile.TemporaryDirectory(prefix="heads-")


@cache
def make_heads(architecture: str, precision: Precision = "int8") -> list[Artifact]:
    """Returns artifacts with different heads on one encoder: three with outputs, and two that pool.

    Tests share them, because a release takes half a second: do not write into their directories.
    """
    directory = Path(_DIRECTORY.name, precision)
    drafts = [draft(architecture, task, precision) for task in TASKS]
    trunk = {name: weight for name, weight in drafts[0].weights.items() if name.startswith("encoder.")}
    made = [make(directory, replace(one, weights={**one.weights, **trunk})) for one in drafts]
    for pooling in ("mean", "cls"):
        manifest = replace(
            drafts[0].manifest,
            name=f"{architecture}-{pooling}",
            task="embed",
            head="embedding",
            embedding=Embedding(pooling),
            width=64,
            labels=(),
            problem=None,
        )
        made.append(make(directory, replace(drafts[0], weights=trunk, manifest=manifest)))
    return made


@cache
def make_adapted(architecture: str, precision: Precision = "int8") -> list[Artifact]:
    """Returns artifacts with an adapter each, and two heads without one, on one encoder. Tests share them."""
    directory = Path(_DIRECTORY.name, "adapted", precision)
    drafts = [draft(architecture, task, precision) for task in TASKS]
    trunk = {name: weight for name, weight in drafts[0].weights.items() if name.startswith("encoder.")}
    made = []
    for number, (plan, rank) in enumerate(zip((drafts[0], *drafts), (0, 4, 20, 0), strict=True)):
        weights = {**plan.weights, **(adapted(trunk, rank, number) if rank else trunk)}
        manifest = replace(plan.manifest, name=f"{architecture}-{number}")
        made.append(make(directory, replace(plan, weights=weights, manifest=manifest)))
    return made


def sequences(artifacts: Sequence[Artifact]) -> list[Encoding]:
    """Returns the same texts for each head, in a mixed order."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(2, VOCABULARY, length) for length in LENGTHS]
    found = [_read(text, artifact.manifest.task, head) for text in texts for head, artifact in enumerate(artifacts)]
    return [found[i] for i in draw.permutation(len(found))]


def _read(text: np.ndarray, task: str, head: int) -> Encoding:
    types, every = np.zeros_like(text), np.arange(len(text))
    if task == "qa":
        return Encoding(text, types, every, head=head)
    if task == "fill-mask":
        focus = every[::7]
        if len(text) % 2:
            return Ranked(text, types, focus, 5, NOTHING, head=head)
        return Scored(text, types, focus, text[focus], head=head)
    return Encoding(text, types, every[:1], head=head)
