"""Metrics, compared with computations by hand and with SQuAD's evaluation script."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftlet_serve.models.metrics import (
    Score,
    _f1,
    _matthews,
    answer_f1,
    best_threshold,
    difference,
    exact_match,
    f1,
    matthews,
    mean,
    normalise_answer,
)


def test_mean_has_normal_interval():
    score = mean([1, 0.5, 0.5, 0])

    assert score.value == 50
    assert score.n == 4
    # variance (2 * 0.25) / 3 = 1 / 6, margin 1.96 * sqrt(1 / 24) = 0.400
    assert score.low == pytest.approx(100 * (0.5 - 1.96 / math.sqrt(24)))
    assert score.high == pytest.approx(100 * (0.5 + 1.96 / math.sqrt(24)))


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [
        (3, 4, 30.06, 95.44),  # (6 + z² ± z √(z² + 3)) / (2 (4 + z²)), z² = 3.8416
        (8, 10, 49.02, 94.33),
        (800, 1000, 77.41, 82.36),
        (10, 10, 72.25, 100),  # n / (n + z²)
        (0, 10, 0, 27.75),
        (1, 1, 20.65, 100),
    ],
)
def test_mean_of_binary_values_has_wilson_interval(right, n, low, high):
    score = mean([1.0] * right + [0.0] * (n - right))

    assert score.value == pytest.approx(100 * right / n)
    assert (score.low, score.high) == pytest.approx((low, high), abs=0.005)


@pytest.mark.parametrize(("values", "value"), [([0.25], 25), ([0.5] * 9, 50)])
def test_mean_of_equal_fractions_has_empty_interval(values, value):
    score = mean(values)

    assert (score.value, score.low, score.high) == (value, value, value)


def test_difference_has_paired_interval():
    ones, others = [1.0, 0.0, 1.0, 0.5], [1.0, 0.0, 0.0, 0.5]
    deviation = math.sqrt((3 * 0.25**2 + 0.75**2) / 3)

    found = difference(ones, others)

    assert (found.value, found.n) == (25.0, 4)
    assert found.high - found.value == pytest.approx(100 * 1.96 * deviation / math.sqrt(4))
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert difference(ones, ones) == Score(0.0, 0.0, 0.0, 4)
    assert difference(others, ones).value == -25.0


def test_difference_rejects_different_lengths():
    with pytest.raises(ValueError, match="shorter"):
        difference([1.0, 0.0], [1.0])
    with pytest.raises(ValueError, match="no values to compare"):
        difference([], [])


def test_mean_rejects_no_values():
    with pytest.raises(ValueError, match="no values to average"):
        mean([])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_mean_lies_in_its_interval(values):
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
        # tp 90, fn 10, fp 5, tn 95
        (
            [1] * 90 + [0] * 10 + [1] * 5 + [0] * 95,
            [1] * 100 + [0] * 100,
            8500 / math.sqrt(95 * 100 * 100 * 105),
            12 / 13,
        ),
    ],
)
def test_matthews_and_f1_equal_hand_computation(predicted, actual, correlation, harmonic):
    assert matthews(predicted, actual).value == pytest.approx(100 * correlation)
    assert f1(predicted, actual).value == pytest.approx(100 * harmonic)
    assert matthews(predicted, actual).n == f1(predicted, actual).n == len(actual)


@pytest.mark.parametrize("score", [matthews, f1])
def test_label_scores_reject_different_lengths(score):
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        score([1], [1, 0])


@pytest.mark.parametrize("score", [matthews, f1])
def test_label_scores_reject_no_cases(score):
    with pytest.raises(ValueError, match="no cases to score"):
        score([], [])


pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40)


def split(cases: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [predicted for predicted, _ in cases], [actual for _, actual in cases]


@settings(max_examples=50)
@given(pairs)
def test_matthews_equals_pearson_correlation(cases):
    predicted, actual = split(cases)
    if len(set(predicted)) == len(set(actual)) == 2:
        assert matthews(predicted, actual).value == pytest.approx(100 * np.corrcoef(predicted, actual)[0, 1])
    else:
        assert matthews(predicted, actual).value == 0


@settings(max_examples=50)
@given(pairs)
def test_label_scores_have_bounds_and_symmetries(cases):
    predicted, actual = split(cases)
    for score, least in ((matthews(predicted, actual), -100), (f1(predicted, actual), 0)):
        assert least - 1e-9 <= score.low <= score.value <= score.high <= 100 + 1e-9
    assert matthews(actual, predicted).value == pytest.approx(matthews(predicted, actual).value)
    assert f1(actual, predicted).value == pytest.approx(f1(predicted, actual).value)
    swapped = [1 - label for label in predicted]
    assert matthews(swapped, actual).value == pytest.approx(-matthews(predicted, actual).value)
    assert matthews(swapped, [1 - label for label in actual]).value == pytest.approx(matthews(predicted, actual).value)


@settings(max_examples=30)
@given(pairs, st.randoms(use_true_random=False))
def test_label_scores_ignore_order(cases, chance):
    shuffled = chance.sample(cases, len(cases))

    assert matthews(*split(shuffled)) == matthews(*split(cases))
    assert f1(*split(shuffled)) == f1(*split(cases))


@pytest.mark.parametrize(("score", "of_table"), [(matthews, _matthews), (f1, _f1)])
def test_label_score_interval_equals_bootstrap_of_cases(score, of_table):
    """A bootstrap of single cases gives the same interval as drawing the four counts."""
    predicted = [1] * 45 + [0] * 15 + [1] * 10 + [0] * 30
    actual = [1] * 60 + [0] * 40
    chance = np.random.default_rng(5)
    drawn = chance.integers(0, 100, (4000, 100))
    codes = (2 * np.array(actual) + np.array(predicted))[drawn]
    tables = np.stack([(codes == code).sum(1) for code in range(4)], axis=1).reshape(-1, 2, 2).astype(float)
    low, high = 100 * np.percentile(of_table(tables), [2.5, 97.5])
    found: Score = score(predicted, actual)

    assert (found.low, found.high) == pytest.approx((low, high), abs=1)


def test_matthews_interval_equals_asymptotic_interval():
    """If both labels are equally frequent, the asymptotic half width is 1.96 √((1 - φ²) / n)."""
    predicted = [1] * 400 + [0] * 100 + [1] * 100 + [0] * 400
    score = matthews(predicted, [1] * 500 + [0] * 500)

    assert score.value == pytest.approx(60)
    assert score.value - score.low == pytest.approx(196 * math.sqrt((1 - 0.6**2) / 1000), abs=0.4)
    assert score.high - score.value == pytest.approx(196 * math.sqrt((1 - 0.6**2) / 1000), abs=0.4)


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("The Norman dynasty", "norman dynasty"),
        ("  a   dynasty, an era; the END. ", "dynasty era end"),
        ("theatre and anthem", "theatre and anthem"),
        ("the-end", "theend"),  # punctuation is removed first, so no article remains
        ("Beyoncé's", "beyoncés"),
        ("the", ""),
        ("...", ""),
        ("10,000", "10000"),
        ("«the» end", "« » end"),  # SQuAD removes ASCII punctuation only
        ("the\tend\n", "end"),
        ("an a the", ""),
    ],
)
def test_normalise_answer_removes_case_articles_and_punctuation(text, bare):
    assert normalise_answer(text) == bare


@pytest.mark.parametrize(
    ("predicted", "answers", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos", "The Broncos"], 1, 1),
        ("the Broncos!", ["Denver Broncos", "The Broncos"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),  # precision 1, recall 1/2
        ("the Denver Broncos of Colorado", ["Denver Broncos"], 0, 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("gold gold", ["gold"], 0, 2 / 3),  # a word counts as often as it is in both
        ("gold gold", ["gold gold anniversary"], 0, 4 / 5),
        ("silver", ["gold", "golden"], 0, 0),
        ("silver coin", ["silver cup", "copper coin and silver coin"], 0, 4 / 7),  # the best of the answers
        ("", [], 1, 1),  # unanswerable, and not answered
        ("anything", [], 0, 0),
        ("the", [], 1, 1),  # an article alone equals the empty answer
        ("", ["gold"], 0, 0),
        ("the", ["a"], 1, 1),
        ("", ["a", "..."], 1, 1),  # all references normalise to the empty answer
        ("gold", ["the"], 0, 0),
        ("", ["a", "gold"], 0, 0),  # only the non-empty reference counts
        ("the", ["the", "gold coin"], 0, 0),
        ("gold", ["a", "gold coin"], 0, 2 / 3),
    ],
)
def test_exact_match_and_f1_equal_squad_examples(predicted, answers, exact, overlap):
    assert exact_match(predicted, answers) == exact
    assert answer_f1(predicted, answers) == pytest.approx(overlap)


# The official script of SQuAD 2.0, written again from its definition.
def official(predicted: str, answers: list[str]) -> tuple[float, float]:
    gold = [answer for answer in answers if normalise_answer(answer)] or [""]
    exact = max(int(normalise_answer(answer) == normalise_answer(predicted)) for answer in gold)
    return exact, max(
        official_f1(normalise_answer(answer).split(), normalise_answer(predicted).split()) for answer in gold
    )


def official_f1(gold: list[str], predicted: list[str]) -> float:
    same = sum(min(gold.count(token), predicted.count(token)) for token in set(gold))
    if not gold or not predicted:
        return int(gold == predicted)
    if same == 0:
        return 0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


answers = st.lists(st.sampled_from(["the", "a", "red", "Red", "cup", "cups", "of", "!", "tea."]), max_size=4).map(
    " ".join
)


@given(answers, st.lists(answers, max_size=4))
def test_exact_match_and_f1_equal_official_script(predicted, gold):
    exact, overlap = official(predicted, gold)

    assert exact_match(predicted, gold) == exact
    assert answer_f1(predicted, gold) == pytest.approx(overlap)
    assert 0 <= exact_match(predicted, gold) <= answer_f1(predicted, gold) <= 1


# Margin, score of the best answer, whether there is an answer.
JUDGED = [
    (-4.0, 1.0, True),
    (-2.0, 0.0, False),
    (-1.0, 0.5, True),
    (0.5, 1.0, True),
    (3.0, 0.0, False),
    (5.0, 0.2, True),
]


def test_best_threshold_equals_hand_computation():
    """Without answers, two of six are right. The questions add 1, -1, 0.5, 1, -1 and 0.2 in order: at most 3.5."""
    found = best_threshold(*zip(*JUDGED, strict=True))

    assert found.value == 0.5
    assert found.score == pytest.approx(100 * 3.5 / 6)


@pytest.mark.parametrize(
    ("judged", "value", "score"),
    [
        ([(1.0, 0.0, False), (2.0, 0.0, False)], -math.inf, 100),  # best is never to answer
        ([(1.0, 1.0, True), (2.0, 1.0, True)], 2.0, 100),  # best is always to answer
        ([(1.0, 1.0, False), (2.0, 1.0, True)], 2.0, 100),  # the best answer is empty, so it is right
        ([(1.0, 1.0, True), (1.0, 0.0, False)], -math.inf, 50),  # no threshold separates equal margins
        (
            [(1.0, 1.0, True), (2.0, 0.0, True), (3.0, 0.0, False)],
            1.0,
            200 / 3,
        ),  # the lowest of equally good thresholds
    ],
)
def test_best_threshold_handles_edge_cases(judged, value, score):
    found = best_threshold(*zip(*judged, strict=True))

    assert (found.value, found.score) == (value, pytest.approx(score))


def test_best_threshold_rejects_no_questions():
    with pytest.raises(ValueError, match="no questions"):
        best_threshold([], [], [])
    with pytest.raises(ValueError, match="shorter"):
        best_threshold([1.0], [1.0], [])


def at(threshold: float, judged: list[tuple[float, float, bool]]) -> float:
    """Returns the score at this threshold, in percent."""
    given = [score if difference <= threshold else float(not answer) for difference, score, answer in judged]
    return 100 * sum(given) / len(given)


@st.composite
def judgements(draw: Any) -> list[tuple[float, float, bool]]:
    """Draws graded questions, some with equal margins."""
    one = st.tuples(st.integers(-5, 5), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans())
    return [
        (d, float(s == 1) if not answer else s, answer) for d, s, answer in draw(st.lists(one, min_size=1, max_size=12))
    ]


@given(judgements(), st.randoms(use_true_random=False))
def test_best_threshold_is_optimal(judged, chance):
    found = best_threshold(*zip(*judged, strict=True))

    assert found.score == pytest.approx(at(found.value, judged))
    assert found.score == pytest.approx(max(at(t, judged) for t in (-math.inf, *(d for d, _, _ in judged))))
    assert best_threshold(*zip(*chance.sample(judged, len(judged)), strict=True)) == found


def test_best_threshold_equals_official_script():
    """Runs the loop of the script on questions with distinct margins."""
    chance = random.Random(3)
    for _ in range(100):
        judged = [(chance.gauss(0, 2), chance.choice([0.0, 0.5, 1.0]), chance.random() < 0.5) for _ in range(15)]
        judged = [(d, s if answer else 0.0, answer) for d, s, answer in judged]
        current = best = sum(not answer for _, _, answer in judged)
        threshold = None
        for ahead, score, answer in sorted(judged):
            current += score if answer else -1
            if current > best:
                best, threshold = current, ahead
        found = best_threshold(*zip(*judged, strict=True))

        assert found.score == pytest.approx(100 * best / len(judged))
        assert found.value == (-math.inf if threshold is None else threshold)
