"""Answers of two versions are compared by what they say."""

from __future__ import annotations

import pytest

from swiftlet_serve.repository.agreement import compare


def labels(*pairs: tuple[str, float]) -> list[dict[str, object]]:
    return [{"label": label, "score": score} for label, score in pairs]


GOOD = labels(("good", 0.9), ("bad", 0.1))
ANSWER = {"score": 0.8, "start": 0, "end": 4, "answer": "Anna"}
PERSON = {"entity_group": "PER", "score": 0.7, "word": "Anna", "start": 0, "end": 4}
PLACE = {"entity_group": "LOC", "score": 0.9, "word": "Bern", "start": 9, "end": 13}


@pytest.mark.parametrize(
    ("served", "candidate", "several", "agrees", "shift"),
    [
        ([GOOD], [labels(("good", 0.6), ("bad", 0.4))], False, True, 0.3),
        ([GOOD], [labels(("bad", 0.6), ("good", 0.4))], False, False, 0.0),
        ([GOOD, GOOD], [GOOD, labels(("bad", 0.6))], True, False, 0.0),
        ([GOOD], [GOOD, GOOD], True, False, 0.0),
        (ANSWER, ANSWER | {"score": 0.7}, False, True, 0.1),
        (ANSWER, ANSWER | {"end": 5, "answer": "Anna!"}, False, False, 0.0),
        ([ANSWER, ANSWER], [ANSWER, ANSWER | {"start": 1}], True, False, 0.0),
        ([PERSON, PLACE], [PERSON, PLACE | {"score": 0.8}], False, True, 0.1),
        ([PERSON, PLACE], [PERSON], False, False, 0.0),
        ([PLACE, PERSON], [PLACE, PERSON | {"word": "Anne"}], False, False, 0.0),  # scores that fall make no ranking
        ([[PERSON, PLACE]], [[PERSON, PLACE | {"word": "Basel"}]], True, False, 0.0),
        ([[1.0, 0.0]], [[1.0, 0.0]], True, True, 0.0),
        ([[1.0, 0.0]], [[0.0, 1.0]], True, False, 1.0),
        ([[1.0, 0.0]], [[1.0]], True, False, 1.0),
        ([[[1.0, 0.0]]], [[[1.0]]], True, False, 0.0),
        ([{"indices": [1], "values": [1.0]}], [[[1.0]]], True, False, 0.0),
        (
            {"sequence": "a", "labels": ["x", "y"], "scores": [0.6, 0.4]},
            {"sequence": "a", "labels": ["x", "y"], "scores": [0.9, 0.1]},
            False,
            True,
            0.3,
        ),
        ([{"code": "empty_input"}], [{"code": "empty_input"}], True, True, 0.0),
        ([], [], True, True, 0.0),
    ],
)
def test_comparison(served, candidate, several, agrees, shift):
    found = compare(served, candidate, several=several)
    assert found.agrees is agrees
    assert found.shift == pytest.approx(shift)
