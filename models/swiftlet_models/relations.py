"""Finds the labels of a model that stand for a relation of natural language inference in a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ENTAILMENT: Final = "entail"  # the beginning, in any case, of the label of hypotheses that follow from a text
ENTAILED: Final = (ENTAILMENT, "support")  # the beginnings of this relation's names in data sets


def find_entailment(labels: Sequence[str]) -> int | None:
    """Returns the index of the label of hypotheses that follow from a text; None without such a label."""
    return next((i for i, label in enumerate(labels) if label.lower().startswith(ENTAILMENT)), None)


def find_relations(relation: str, labels: Sequence[str]) -> list[int]:
    """Returns the indices of the labels for a relation.

    A relation that is no label only says that a hypothesis does not follow, so that all labels but one are right.
    `labels` have one of entailment.
    """
    name, entailment = relation.lower(), find_entailment(labels)
    if name.startswith(ENTAILED):
        return [] if entailment is None else [entailment]
    named = [i for i, label in enumerate(labels) if label.lower() == name]
    return named or [i for i in range(len(labels)) if i != entailment]
