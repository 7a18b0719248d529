"""Trunks: which artifacts have the same encoder, so that it runs once for all of their heads.

Artifacts share a trunk if their encoders have the same structure, and the same parameters to the bit, in the same
precision. Heads that were trained on a frozen encoder do. What adapters add to the parameters may differ, and so may
tokenizers: what is shared is the work for a sequence of ids.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models.architectures.traits import Traits
from swiftlet_models.artifact import WEIGHTS, read_manifest
from swiftlet_models.errors import ModelError
from swiftlet_models.parameters import configure
from swiftlet_models.tensors import Tensor, blocks
from swiftlet_models.weights import LORA_A, LORA_B, read_header

ENCODER: Final = "encoder."  # begins the names of a trunk's parameters


@dataclass(frozen=True)
class Trunk:
    """What must be equal, besides the parameters."""

    architecture: str
    precision: str
    traits: Traits
    shapes: frozenset[tuple[str, str, tuple[int, ...]]]  # the name, the type and the shape of each tensor


def groups(paths: Sequence[Path]) -> list[list[Path]]:
    """Returns artifacts in groups that share a trunk. An artifact that shares none is a group of its own.

    Groups, and the artifacts of a group, keep their order. Only the parameters of artifacts whose trunks have the same
    structure are read. An artifact that cannot be read is a group of its own: who opens it says what is wrong.
    """
    found: list[tuple[Trunk | None, list[Path]]] = []
    for path in paths:
        trunk = _trunk(path)
        for other, members in found:
            if trunk is not None and trunk == other and _same_parameters(path, members[0]):
                members.append(path)
                break
        else:
            found.append((trunk, [path]))
    return [members for _, members in found]


def obstacle(traits: Traits, names: Container[str], adapted: Iterable[str]) -> str | None:
    """Returns why what adapters add cannot stay apart from the parameters of an encoder: a clause. None if it can.

    `names` are those of all parameters, and `adapted` those that an adapter changes.
    """
    for name in adapted:
        if name.startswith(ENCODER) and traits.composes:
            return "this network computes its products from several parameters"
        if name.startswith(ENCODER) and name.removesuffix("weight") + "bias" not in names:
            return f"it changes the table {name}"
    return None


def _trunk(path: Path) -> Trunk | None:
    """Returns the structure of an artifact's encoder; None if it has none with names that are known."""
    try:
        if (manifest := read_manifest(path)).of_labels:  # two networks, which an engine has to itself
            return None
        traits = configure(manifest.architecture, manifest.config).traits()
        with (path / WEIGHTS).open("rb", buffering=0) as file:
            tensors = read_header(file)
    except (ModelError, ValueError, OSError):
        return None
    own = replace(  # without what is the head's
        traits,
        classifier_pooling="cls",
        pooler=None,
        classifier_norm=False,
        prediction_map=True,
        prediction_act="gelu",
    )
    shapes = {(name, tensor.kind, tensor.shape) for name, tensor in tensors.items() if _is_shared(name)}
    adapted = [name.removesuffix(LORA_A) for name in tensors if name.endswith(LORA_A)]
    if obstacle(traits, tensors, adapted):
        return None
    return Trunk(manifest.architecture, manifest.precision, own, frozenset(shapes))


def _same_parameters(path: Path, other: Path) -> bool:
    """Returns whether the encoders of two artifacts, which have equal shapes, have equal parameters.

    Files that cannot be read, or were changed meanwhile, share nothing.
    """
    try:
        with (path / WEIGHTS).open("rb", buffering=0) as file, (other / WEIGHTS).open("rb", buffering=0) as second:
            theirs = read_header(second)
            return all(_equal(tensor, theirs[name]) for name, tensor in read_header(file).items() if _is_shared(name))
    except (ModelError, ValueError, OSError, KeyError):
        return False


def _is_shared(name: str) -> bool:
    """Returns whether a tensor must be equal in all artifacts of a trunk."""
    return name.startswith(ENCODER) and not name.endswith((LORA_A, LORA_B))


def _equal(tensor: Tensor, other: Tensor) -> bool:
    if not tensor.shape:
        return bool(np.asarray(tensor) == np.asarray(other))
    return all(np.array_equal(tensor[rows], other[rows]) for rows in blocks(tensor))
