"""Answers of every protocol are compared by what they say."""

from __future__ import annotations

import base64
import math
import struct

import pytest

from swiftlet_serve.migration.answers import compare, read


def predicate(probability: float):
    return {"answers": [{"type": "predicate", "name": "q", "probability": probability}]}


def choice(first: float):
    options = [{"value": "a", "probability": first}, {"value": "b", "probability": 1 - first}]
    return {"answers": [{"type": "choice", "choice": "a" if first > 0.5 else "b", "probabilities": options}]}


def score(*probabilities: float):
    levels = [{"label": f"level {i}", "value": i, "probability": p} for i, p in enumerate(probabilities)]
    mean = sum(i * p for i, p in enumerate(probabilities))
    return {"answers": [{"type": "score", "score": mean, "probabilities": levels}]}


def system_one(first: float):
    option = {"type": "choice", "choice": "a" if first > 0.5 else "b", "probabilities": {"a": first, "b": 1 - first}}
    level = {"type": "score", "score": 1 - first, "legend": {"0": "low", "1": {"de": "hoch"}}}
    level |= {"probabilities": {"0": first, "1": 1 - first}}
    return {"answers": {"q": option, "r": level, "s": {"type": "noul", "noul": first}}}


def labels(*scores: float):
    return [{"label": f"l{i}", "score": score} for i, score in enumerate(scores)]


def ranks(name: str, *scores: float):
    return [{"index": i, name: score} for i, score in enumerate(scores)]


def openai(*vectors):
    return {"data": [{"index": i, "embedding": vector} for i, vector in enumerate(vectors)]}


def tensors(**outputs):
    shapes = {name: [len(rows), len(rows[0])] for name, rows in outputs.items()}
    kinds = {name: "BYTES" if isinstance(rows[0][0], str) else "FP32" for name, rows in outputs.items()}
    return {
        "outputs": [
            {
                "name": name,
                "datatype": kinds[name],
                "shape": shapes[name],
                "data": [cell for row in rows for cell in row],
            }
            for name, rows in outputs.items()
        ]
    }


PERSON, PLACE = ({"entity": kind, "score": 0.9, "word": kind, "start": 0, "end": 3} for kind in ("PER", "LOC"))


@pytest.mark.parametrize(
    ("existing", "candidate", "kinds", "agree"),
    [
        (predicate(0.7), predicate(0.6), ["predicate"], [True]),
        (predicate(0.51), predicate(0.49), ["predicate"], [False]),
        (predicate(0.7), {"answers": [{"type": "refusal", "name": "q"}]}, ["predicate"], [False]),
        (choice(0.7), choice(0.6), ["choice"], [True]),
        (choice(0.7), choice(0.4), ["choice"], [False]),
        (score(0.5, 0.2, 0.3), score(0.6, 0.2, 0.2), ["score"], [True]),
        (score(0.5, 0.2, 0.3), score(0.3, 0.2, 0.5), ["score"], [False]),
        (system_one(0.8), system_one(0.7), ["choice", "score", "predicate"], [True] * 3),
        (system_one(0.8), system_one(0.4), ["choice", "score", "predicate"], [False] * 3),
        (choice(0.7), {"answers": []}, ["choice"], [False]),
        (labels(0.9, 0.1), labels(0.6, 0.4), ["label"], [True]),
        (labels(0.2, 0.5, 0.3), labels(0.2, 0.3, 0.5), ["label"], [False]),
        ([labels(0.9, 0.1)], [labels(0.1, 0.9)], ["label"], [False]),
        (ranks("score", 0.9, 0.1, 0.2), ranks("score", 0.8, 0.3, 0.2), ["ranking"], [True]),
        (
            {"results": ranks("relevance_score", 0.9, 0.1)},
            {"results": ranks("relevance_score", 0.1, 0.9)},
            ["ranking"],
            [False],
        ),
        ([[1.0, 0.0]], [[1.0, 0.01]], ["vector"], [True]),
        ([[1.0, 0.0]], [[0.0, 1.0]], ["vector"], [False]),
        ([[1.0, 0.0]], [[1.0, 0.0, 0.0]], ["vector"], [False]),
        ([[1e308, 1e308]], [[1e308, -1e308]], ["vector"], [False]),
        ([[10**400]], [[1.0]], ["vector"], [False]),
        ([{"index": 7, "value": 0.5}], [{"index": 7, "value": 0.6}], ["vector"], [True]),
        ([{"index": 7, "value": 0.5}], [{"index": 8, "value": 0.5}], ["vector"], [False]),
        (openai([1.0, 0.5]), openai(base64.b64encode(struct.pack("<2f", 1.0, 0.5)).decode()), ["vector"], [True]),
        ({"embeddings": {"float": [[1.0, 0.0]]}}, {"embeddings": {"float": [[0.0, 1.0]]}}, ["vector"], [False]),
        (
            {"data": [{"index": 0, "label": "a", "probs": [0.9, 0.1]}]},
            {"data": [{"index": 0, "label": "b", "probs": [1]}]},
            ["label"],
            [False],
        ),
        (
            tensors(label=[["a", "b"]], score=[[0.6, 0.4]]),
            tensors(label=[["a", "b"]], score=[[0.9, 0.1]]),
            ["label"],
            [True],
        ),
        (tensors(logits=[[0.51, 0.49]]), tensors(logits=[[0.49, 0.51]]), ["label"], [False]),
        (tensors(embedding=[[1.0] * 64]), tensors(embedding=[[1.0] * 64]), ["vector"], [True]),
        (
            tensors(output=[['[{"label": "a", "score": 0.9}]']]),
            tensors(output=[['[{"label": "a", "score": 0.6}]']]),
            ["label"],
            [True],
        ),
        ({"predictions": [1, [0.1, 0.9]]}, {"predictions": [1, [0.2, 0.8]]}, ["other", "label"], [True, True]),
        ([PERSON, PLACE], [PERSON, PERSON], ["other"], [False]),
        ({"answer": "Anna", "score": 0.9}, {"answer": "Anna", "score": 0.5}, ["other"], [True]),
    ],
)
def test_answers_are_compared_by_what_they_say(existing, candidate, kinds, agree):
    found = compare(read(existing, several=False), read(candidate, several=False))

    assert [one.kind for one in found] == kinds
    assert [one.agreement.agrees for one in found] == agree


def test_questions_with_names_may_come_in_any_order():
    answers = system_one(0.8)["answers"]
    found = compare(
        read({"answers": answers}, several=False),
        read({"answers": dict(reversed(answers.items()))}, several=False),
    )
    assert [one.agreement.agrees for one in found] == [True] * 3


def test_answer_of_each_input_counts():
    found = compare(
        read([labels(0.9, 0.1), labels(0.9, 0.1)], several=True), read([labels(0.9), labels(0.1, 0.9)], several=True)
    )
    assert [one.agreement.agrees for one in found] == [True, False]


def test_rankings_have_a_correlation():
    def tau(*scores: float) -> float:
        ranking = read(ranks("score", 0.9, 0.6, 0.3), several=False)
        return compare(ranking, read(ranks("score", *scores), several=False))[0].tau

    assert tau(0.9, 0.6, 0.3) == 1
    assert tau(0.9, 0.3, 0.6) == pytest.approx(1 / 3)
    assert tau(0.3, 0.6, 0.9) == -1
    assert math.isnan(tau(0.9))


@pytest.mark.parametrize(
    "response",
    [
        None,
        "text",
        7,
        {"answers": [None]},
        {"answers": [{"type": "poem"}]},
        {"answers": [{"type": "predicate", "name": "q", "probability": math.nan}]},
        [{"label": "a", "score": math.inf}],
        {"answers": [{"type": "choice"}]},
        {"data": [{"embedding": "%"}]},
        {"data": ["a"]},
        {"results": [{"index": 0}]},
        {"outputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [0.5]}]},
        {"outputs": [{"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [0.5]}]},
        {"outputs": [{"name": "x", "datatype": "FP32", "shape": [0, 0], "data": []}]},
        {"outputs": [{"name": "x", "datatype": "FP32", "shape": [], "data": [0.5]}]},
        {"labels": ["a"], "scores": []},
    ],
)
def test_response_of_unknown_form_is_no_answer(response):
    with pytest.raises(ValueError, match="no form"):
        read(response, several=False)
