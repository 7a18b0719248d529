"""Tests of the relations of natural language inference."""

from __future__ import annotations

import pytest

from swiftlet_models.relations import find_entailment, find_relations

TWO = ("NOT_ENTAILMENT", "ENTAILMENT")
THREE = ("contradiction", "neutral", "entailment")


@pytest.mark.parametrize(
    ("labels", "relation", "found"),
    [
        (TWO, "entailment", [1]),
        (TWO, "SUPPORTS", [1]),
        (TWO, "entailed", [1]),
        (TWO, "neutral", [0]),
        (TWO, "not-entailed", [0]),
        (TWO, "REFUTES", [0]),
        (("ENTAILMENT", "OTHER"), "contradiction", [1]),
        (THREE, "neutral", [1]),
        (THREE, "entailment", [2]),
        (THREE, "REFUTES", [0, 1]),
        (THREE, "not_entailment", [0, 1]),
    ],
)
def test_find_relations_maps_the_names_of_data_sets(labels, relation, found):
    assert find_relations(relation, labels) == found


def test_find_entailment():
    assert find_entailment(THREE) == 2
    assert find_entailment(("no", "yes")) is None
