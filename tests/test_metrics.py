"""Scores worked by hand, and the cases of SQuAD's own evaluation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.metrics import answer_f1, exact_match, f1, matthews, mean, normalise_answer


def test_a_mean_has_its_interval():
    score = mean([1, 1, 1, 0])

    assert score.value == 75
    assert score.n == 4
    # variance (3 * 0.0625 + 0.5625) / 3 = 0.25, margin 1.96 * sqrt(0.25 / 4) = 0.49
    assert score.low == pytest.approx(100 * (0.75 - 0.49))
    assert score.high == 100


def test_the_interval_of_many_cases_is_the_binomial_one():
    score = mean([1.0] * 800 + [0.0] * 200)

    assert score.high - score.value == pytest.approx(196 * math.sqrt(0.8 * 0.2 / 999))
    assert score.value - score.low == pytest.approx(score.high - score.value)


@pytest.mark.parametrize(("values", "value"), [([1.0], 100), ([0.0], 0), ([1.0] * 9, 100), ([0.25], 25)])
def test_cases_that_are_all_alike_have_no_interval(values, value):
    score = mean(values)

    assert (score.value, score.low, score.high) == (value, value, value)


def test_nothing_has_no_mean():
    with pytest.raises(ValueError, match="nothing to average"):
        mean([])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_a_mean_lies_in_its_interval_and_that_between_0_and_100(values):
    score = mean(values)

    assert -1e-9 <= score.low <= score.value + 1e-9
    assert score.value <= score.high + 1e-9 <= 100 + 1e-8


# (predicted, actual), Matthews correlation and F1 of label 1. The first: tp 2, fn 1, fp 1, tn 2.
@pytest.mark.parametrize(
    ("predicted", "actual", "correlation", "harmonic"),
    [
        ([1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 0, 0], 3 / 9, 4 / 6),
        ([1, 0, 1], [1, 0, 1], 1, 1),
        ([0, 1, 0], [1, 0, 1], -1, 0),
        ([1, 1, 1, 1], [1, 0, 1, 0], 0, 2 * 0.5 / 1.5),
        ([0, 0], [1, 1], 0, 0),
        ([], [], 0, 0),
        # tp 90, fn 10, fp 5, tn 95
        (
            [1] * 90 + [0] * 10 + [1] * 5 + [0] * 95,
            [1] * 100 + [0] * 100,
            8500 / math.sqrt(95 * 100 * 100 * 105),
            12 / 13,
        ),
    ],
)
def test_matthews_and_f1(predicted, actual, correlation, harmonic):
    assert matthews(predicted, actual) == pytest.approx(correlation)
    assert f1(predicted, actual) == pytest.approx(harmonic)


@pytest.mark.parametrize("score", [matthews, f1])
def test_predictions_and_labels_come_in_pairs(score):
    with pytest.raises(ValueError, match="argument 2 is longer"):
        score([1], [1, 0])


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The Norman dynasty", "norman dynasty"),
        ("  a   dynasty, an era; the END. ", "dynasty era end"),
        ("theatre and anthem", "theatre and anthem"),
        ("the-end", "theend"),  # punctuation goes first, so that no article is left here
        ("Beyoncé's", "beyoncés"),
        ("the", ""),
        ("...", ""),
        ("10,000", "10000"),
        ("«the» end", "« » end"),  # only ASCII punctuation is any to SQuAD
        ("the\tend\n", "end"),
        ("an a the", ""),
    ],
)
def test_answers_are_compared_without_case_articles_and_punctuation(text, bare):
    assert normalise_answer(text) == bare


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos", "The Broncos"], 1, 1),
        ("the Broncos!", ["Denver Broncos", "The Broncos"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("the Denver Broncos of Colorado", ["Denver Broncos"], 0, 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("gold gold", ["gold"], 0, 2 / 3),  # a word counts as often as both have it
        ("gold gold", ["gold gold anniversary"], 0, 4 / 5),
        ("silver", ["gold", "golden"], 0, 0),
        ("silver coin", ["silver cup", "copper coin and silver coin"], 0, 4 / 7),  # the best of the answers
        ("", [], 1, 1),  # impossible, and said so
        ("anything", [], 0, 0),
        ("the", [], 1, 1),  # an article alone is no answer either
        ("", ["gold"], 0, 0),
        ("the", ["a"], 1, 1),
    ],
)
def test_exact_match_and_f1_are_squads(predicted, answers, exact, overlap):
    assert exact_match(predicted, answers) == exact
    assert answer_f1(predicted, answers) == pytest.approx(overlap)
