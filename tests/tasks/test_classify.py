"""Classification: valid and invalid requests, and their answers. `test_pipeline_parity.py` compares the scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swiftlet_models.probabilities import softmax
from swiftlet_serve.tasks import classify
from tests.support.task_requests import MAX_TOKENS, encode, rejection


def test_classify_returns_nested_list_of_all_labels(classifier: classify.Classify) -> None:
    request = classify.ClassifyRequest(inputs="A film.")
    row = np.array([[0.0, 1.0, 3.0]], np.float32)
    (labels,) = classifier.decode(request, classifier.encode(request), [row])
    assert [each["label"] for each in labels] == ["good", "fair", "bad"]
    assert [each["score"] for each in labels] == pytest.approx([0.84379, 0.1142, 0.04201], abs=1e-4)


def test_classify_reads_list_of_two_texts_as_two_inputs(classifier: classify.Classify) -> None:
    pair, listed = encode(classifier, {"text": "a", "text_pair": "b"}), encode(classifier, ["a", "b"])
    assert (len(pair), len(listed)) == (1, 2)
    assert set(pair[0].token_type_ids) == {0, 1}
    assert len(listed[0].input_ids) < len(pair[0].input_ids)


@pytest.mark.parametrize(
    ("problem", "labels", "function"),
    [
        ("single_label", 3, "softmax"),
        ("single_label", 1, "sigmoid"),
        ("multi_label", 3, "sigmoid"),
        ("regression", 1, "none"),
        ("regression", 3, "none"),
    ],
)
def test_default_function_follows_problem(problem: Any, labels: int, function: str) -> None:
    assert classify.default_function(problem, labels) == function


@given(logits=st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=8))
def test_scores_are_finite_for_any_logits(logits: list[float]) -> None:
    assert sum(classify.softmax(logits)) == pytest.approx(1)
    assert all(0 <= score <= 1 for score in classify.sigmoid(logits))


@given(logits=hnp.arrays(np.float64, 4, elements=st.floats(-1e30, 1e30)))
def test_scores_equal_those_of_arrays(logits: Any) -> None:
    with np.errstate(all="raise", under="ignore"):
        assert classify.softmax(logits.tolist()) == pytest.approx(softmax(logits))


def test_classify_rejects_empty_and_long_texts(classifier: classify.Classify) -> None:
    long = "a " * MAX_TOKENS
    limit = ("input_too_long", MAX_TOKENS)
    assert rejection(classifier, "") == ("empty_input", "/inputs", None)
    assert rejection(classifier, ["a", " \t\n\u3000"]) == ("empty_input", "/inputs/1", None)
    assert rejection(classifier, [{"text": ""}]) == ("empty_input", "/inputs/0/text", None)
    assert rejection(classifier, ["a", long], truncation=False) == (limit[0], "/inputs/1", limit[1])
    assert rejection(classifier, {"text": "a", "text_pair": long}, truncation=False) == (limit[0], "/inputs", limit[1])
    assert len(encode(classifier, long)[0].input_ids) == MAX_TOKENS


def test_classify_answers_text_without_tokens(classifier: classify.Classify) -> None:
    for text in ("\u200b", "\x00\x01", "\u0301"):
        (encoding,) = encode(classifier, text)
        assert len(encoding.input_ids) >= 2
