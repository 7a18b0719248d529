"""Metrics, compared with computations by hand and with SQuAD's evaluation script."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models import metrics
from swiftlet_models.metrics import (
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
    span_f1,
    spearman,
    spearman_parts,
)
from tests.support.tiers import first


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
    """Two more cases, of which each list wins one (Bonett and Price 2012)."""
    ones, others = [1.0, 0.0, 1.0, 0.5], [1.0, 0.0, 0.0, 0.5]
    middle = 1 / 6
    deviation = math.sqrt((3 * middle**2 + 2 * (1 - middle) ** 2 + (1 + middle) ** 2) / 5)

    found = difference(ones, others)

    assert (found.value, found.n) == (25.0, 4)
    assert (found.low, found.high) == pytest.approx(
        tuple(100 * (middle + sign * 1.96 * deviation / math.sqrt(6)) for sign in (-1, 1))
    )
    assert difference(others, ones).value == -25.0
    equal = difference(ones * 250, ones * 250)
    assert (equal.value, equal.low, equal.high) == (
        0,
        pytest.approx(-0.277, abs=0.001),
        pytest.approx(0.277, abs=0.001),
    )


@pytest.mark.parametrize(
    ("lost", "won", "n"), [(0.05, 0.05, 100), (0.02, 0.0, 100), (0.3, 0.1, 20), (0.01, 0.002, 500)]
)
def test_difference_of_right_answers_covers_the_truth(lost, won, n):
    covered = 0
    for counts in np.random.default_rng(6).multinomial(n, [lost, won, 1 - lost - won], 300):
        ones = [1.0] * counts[0] + [0.0] * (n - counts[0])
        others = [0.0] * counts[0] + [1.0] * counts[1] + [0.0] * counts[2]
        found = difference(ones, others)
        covered += found.low <= 100 * (lost - won) <= found.high

    assert covered / 300 >= 0.92


def correlated(chance: np.random.Generator, kind: str, rho: float, n: int) -> tuple[list[float], list[float]]:
    """Draws cases of a normal distribution, or one with ties as people's scores have, or with heavy tails."""
    one, noise = chance.normal(size=(2, n))
    other = rho * one + math.sqrt(1 - rho**2) * noise
    if kind == "ties":
        other = np.round(1.5 * other)
    if kind == "heavy":
        one, other = np.stack([one, other]) * np.sqrt(3 / chance.chisquare(3, size=n))
    return one.tolist(), other.tolist()


@cache
def true_spearman(kind: str, rho: float) -> float:
    return spearman(*correlated(np.random.default_rng(12), kind, rho, 200_000)).value


@pytest.mark.parametrize("n", first([5, 10, 30, 300], 10))
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("kind", ["normal", "ties", "heavy"])
def test_spearman_intervals_cover_the_truth(kind, rho, n):
    chance = np.random.default_rng(11)
    truth = true_spearman(kind, rho)
    found = [spearman(*correlated(chance, kind, rho, n)) for _ in range(200)]
    covered = sum(one.low <= truth <= one.high for one in found) / len(found)

    assert 0.92 <= covered <= (1 if n < 30 else 0.99)
    assert all(-100 <= one.low <= one.value <= one.high <= 100 for one in found)
    if kind == "normal" and n == 300:  # Fisher's interval, with the standard error of Bonett and Wright
        margin = 1.96 * math.sqrt((1 + (truth / 100) ** 2 / 2) / (n - 3))
        low, high = (100 * math.tanh(math.atanh(truth / 100) + sign * margin) for sign in (-1, 1))
        assert np.mean([one.high - one.low for one in found]) == pytest.approx(high - low, rel=0.1)


@pytest.mark.parametrize("ties", [False, True])
def test_spearman_parts_equal_jackknife(ties):
    chance = np.random.default_rng(2)
    one, other = correlated(chance, "ties" if ties else "normal", 0.6, 80)
    whole = spearman(one, other).value / 100
    left_out = [spearman(one[:i] + one[i + 1 :], other[:i] + other[i + 1 :]).value / 100 for i in range(80)]
    parts = spearman_parts(one, other)

    assert np.mean(parts) == pytest.approx(whole)
    assert np.corrcoef(parts, 80 * whole - 79 * np.array(left_out))[0, 1] > 0.999
    assert np.std(parts) == pytest.approx(np.std(79 * np.array(left_out)), rel=0.05)


@pytest.mark.parametrize("n", [*range(1, 12), 1000])
def test_spearman_of_perfect_ranks_has_an_interval_below_100(n):
    values = list(range(n))
    found, turned = spearman(values, [value**3 for value in values]), spearman(values, [-value for value in values])

    assert found.value == pytest.approx(100 if n > 1 else 0)
    assert (found.low, found.high) == ((-100, 100) if n < 4 else (pytest.approx(found.low), pytest.approx(100)))
    assert n < 4 or -100 < found.low < (99.9 if n < 1000 else 100)
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_spearman_of_equal_values_tells_nothing():
    assert spearman([0.5] * 9, list(range(9))) == Score(0, -100, 100, 9)
    assert spearman_parts([0.5] * 9, list(range(9))) == [0] * 9
    with pytest.raises(ValueError, match="no cases to score"):
        spearman([], [])
    with pytest.raises(ValueError, match="differ in length"):
        spearman([1.0], [])


@given(st.lists(st.tuples(st.integers(0, 6), st.floats(-1, 1)), min_size=1, max_size=30))
def test_spearman_intervals_have_bounds(cases):
    found = spearman(*zip(*cases, strict=True))

    assert -100 <= found.low <= found.value <= found.high <= 100


def test_difference_of_correlations_covers_the_truth():
    """Two models of equal quality on the same cases. Their correlations differ by 0."""
    chance, covered = np.random.default_rng(4), 0
    for _ in range(300):
        right, *noise = chance.normal(size=(3, 200))
        one, other = (spearman_parts((right + 0.5 * each).tolist(), right.tolist()) for each in noise)
        found = difference(one, other)
        covered += found.low <= 0 <= found.high

    assert 0.92 <= covered / 300 <= 0.99


def test_span_f1_without_errors_has_a_width():
    assert span_f1([1, 2], [1, 2], [1, 2]) == Score(100, pytest.approx(43.85, abs=0.01), 100, 2)
    assert span_f1([0, 0], [0, 0], [0, 0]).high > 50
    errors = span_f1([1] * 50 + [0] * 50, [1] * 100, [1] * 100)
    assert (errors.low, errors.high) == (pytest.approx(40.2, abs=0.2), pytest.approx(59.8, abs=0.2))


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


@given(pairs)
def test_matthews_equals_pearson_correlation(cases):
    predicted, actual = split(cases)
    if len(set(predicted)) == len(set(actual)) == 2:
        assert matthews(predicted, actual).value == pytest.approx(100 * np.corrcoef(predicted, actual)[0, 1])
    else:
        assert matthews(predicted, actual).value == 0


@given(pairs)
def test_label_scores_have_bounds_and_symmetries(cases):
    predicted, actual = split(cases)
    with mock.patch.object(metrics, "DRAWS", 200):
        for score, least in ((matthews(predicted, actual), -100), (f1(predicted, actual), 0)):
            assert least <= score.low <= score.value <= score.high <= 100
        assert matthews(actual, predicted).value == pytest.approx(matthews(predicted, actual).value)
        assert f1(actual, predicted).value == pytest.approx(f1(predicted, actual).value)
        other, turned = [1 - label for label in predicted], [1 - label for label in actual]
        assert matthews(other, actual).value == pytest.approx(-matthews(predicted, actual).value)
        assert matthews(other, turned).value == pytest.approx(matthews(predicted, actual).value)


@given(pairs, st.randoms(use_true_random=False))
def test_label_scores_ignore_order(cases, chance):
    shuffled = chance.sample(cases, len(cases))

    assert matthews(*split(shuffled)) == matthews(*split(cases))
    assert f1(*split(shuffled)) == f1(*split(cases))


TABLES = [  # probabilities of true negatives, false positives, false negatives and true positives
    (0.25, 0.25, 0.25, 0.25),
    (0.4, 0.1, 0.1, 0.4),
    (0.49, 0.01, 0.01, 0.49),
    (0.1, 0.2, 0.05, 0.65),
]


@pytest.mark.parametrize("n", first([10, 30, 300], 10))
@pytest.mark.parametrize("probabilities", TABLES)
@pytest.mark.parametrize(("score", "of_table"), [(matthews, _matthews), (f1, _f1)])
def test_label_score_intervals_cover_the_truth(monkeypatch, score, of_table, probabilities, n):
    """A percentile bootstrap alone covers 39 % at 10 cases of the third table."""
    monkeypatch.setattr(metrics, "DRAWS", 1000)
    truth = 100 * float(of_table(np.array(probabilities).reshape(2, 2)))
    chance = np.random.default_rng(3)
    covered = 0
    for counts in chance.multinomial(n, probabilities, 150):
        codes = np.repeat(np.arange(4), counts)
        found = score((codes % 2).tolist(), (codes // 2).tolist())
        covered += found.low <= truth <= found.high

    assert covered / 150 >= 0.92


@pytest.mark.parametrize("n", [1, 10, 1000])
@pytest.mark.parametrize("score", [matthews, f1])
def test_label_score_intervals_of_perfect_labels_have_a_width(score, n):
    labels = [i % 2 for i in range(n)]
    found = score(labels, labels)

    assert found.value in (0, 100)  # a single label has no correlation
    assert 0 < found.high - found.low <= 200
    assert n < 1000 or found.low > 99


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


def clustered_share(hits, sizes):
    groups = metrics.ClusterSums()
    for one, size in zip(hits, sizes, strict=True):
        groups.add(one, size)
    return groups.share


def test_answers_of_one_request_count_as_one_case():
    alone, together = metrics.share(100, 100), clustered_share([10] * 100, [10] * 100)
    assert together == alone
    apart = clustered_share([1] * 90 + [0] * 10, [1] * 100)
    assert (apart.value, apart.n) == (90, 100)
    assert apart.low <= metrics.share(90, 100).low
    uneven = clustered_share([1] * 99 + [0], [1] * 99 + [99])
    assert uneven.value == 50
    assert uneven.low < 10  # one request decides
    with pytest.raises(ValueError, match="no cases"):
        clustered_share([], [])
