"""Metrics: Matthews correlation and F1 of labels, exact match and F1 of answers and spans, and confidence intervals.

All scores are in percent. The Matthews correlation ranges from -100 to 100, as in GLUE's tables.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Z: Final = 1.96  # 95 % of a normal distribution lie within this many standard deviations
MIN_CASES: Final = 4  # for an interval of a correlation
DRAWS: Final = 10_000  # of the bootstrap: the error of an interval's ends is about 2 % of its width

Tables = NDArray[np.float64]  # (..., 2, 2): number of cases by actual and predicted label


@dataclass(frozen=True)
class Score:
    """A score over n cases in percent, with a 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Threshold:
    """A threshold on the margin of "no answer" over the best answer, and the score at that threshold."""

    value: float  # minus infinity: never answer
    score: float  # in percent


def mean(values: Sequence[float]) -> Score:
    """Returns the mean of values between 0 and 1. Only cosines may lie below.

    If every value is 0 or 1, the interval is Wilson's (1927), which stays within 0 to 100 and has a width even if all
    values are equal. Otherwise it is the normal approximation.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there are no values to average.")
    n = len(values)
    value = sum(values) / n
    if set(values) <= {0.0, 1.0}:
        return share(round(sum(values)), n)
    margin = _margin(values)
    low, high = value - margin, value + margin
    if min(values) >= 0 and max(values) <= 1:
        low, high = max(0.0, low), min(1.0, high)
    return Score(100 * value, 100 * low, 100 * high, n)


def share(hits: float, n: int) -> Score:
    """Returns the share of n cases that are hits, with Wilson's interval (1927). A case may be a hit in part.

    Raises:
        ValueError: there are no cases.
    """
    if n < 1:
        raise ValueError("there are no cases.")
    value = hits / n
    middle = (value + Z**2 / (2 * n)) / (1 + Z**2 / n)
    margin = Z / (1 + Z**2 / n) * math.sqrt(value * (1 - value) / n + Z**2 / (4 * n**2))
    low, high = min(value, middle - margin), max(value, middle + margin)
    return Score(100 * value, 100 * max(0.0, low), 100 * min(1.0, high), n)


@dataclass
class ClusterSums:
    """All that the share of hits in groups depends on. Sums of several places can be added up."""

    groups: int = 0
    hits: int = 0
    sizes: int = 0
    squared_hits: int = 0
    squared_sizes: int = 0
    products: int = 0  # of the hits of a group and its size

    def add(self, hits: int, size: int) -> None:
        """Counts a group of `size` cases, at least 1."""
        self.groups += 1
        self.hits += hits
        self.sizes += size
        self.squared_hits += hits * hits
        self.squared_sizes += size * size
        self.products += hits * size

    @property
    def share(self) -> Score:
        """The share of cases that are hits. Raises ValueError without groups.

        The interval holds two others: the normal approximation for a ratio of sums (Cochran 1977, Sampling Techniques,
        section 6.3), which has no width without a miss, and Wilson's of n cases, as if a group told no more than one
        case.
        """
        if not self.groups:
            raise ValueError("there are no cases.")
        n, value = self.groups, self.hits / self.sizes
        errors = max(0.0, self.squared_hits - 2 * value * self.products + value * value * self.squared_sizes)
        margin = Z * math.sqrt(n / max(1, n - 1) * errors) / self.sizes
        wilson = share(value * n, n)
        low, high = min(100 * (value - margin), wilson.low), max(100 * (value + margin), wilson.high)
        return Score(100 * value, max(0.0, low), min(100.0, high), n)


def spearman(values: Sequence[float], others: Sequence[float]) -> Score:
    """Returns Spearman's rank correlation, from -100 to 100; 0 if either list is constant.

    The interval is Fisher's, symmetric in artanh of the correlation. Its standard error is the larger of two: that of
    normal data (Bonett and Wright 2000), which fails for heavy tails, and that of `spearman_parts`, which fails for
    few cases. A perfect correlation counts as half a swap of neighbours below 1. Fewer than four cases tell nothing.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    parts = np.array(spearman_parts(values, others))
    n = len(parts)
    if not n:
        raise ValueError("there are no cases to score.")
    value = min(1.0, max(-1.0, float(parts.mean())))
    if n < MIN_CASES or len(set(values)) == 1 or len(set(others)) == 1:
        return Score(100 * value, -100.0, 100.0, n)
    limit = 1 - 6 / (n * (n * n - 1))
    bounded = min(limit, max(-limit, value))
    of_normal_data = math.sqrt((1 + bounded**2 / 2) / (n - 3))
    of_parts = float(parts.std(ddof=1)) / math.sqrt(n) / (1 - bounded**2)
    middle, margin = math.atanh(bounded), Z * max(of_normal_data, of_parts)
    low, high = min(value, math.tanh(middle - margin)), max(value, math.tanh(middle + margin))
    return Score(100 * value, 100 * low, 100 * high, n)


def spearman_parts(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Returns the part of each case in Spearman's rank correlation, which is the mean of the parts.

    The part is the correlation plus the influence of the case (Hampel 1974), so that the standard error of the mean
    of the parts is that of the correlation, and parts can be compared in pairs. A case influences the product of two
    standard ranks, the ranks of all other cases, and with ties their variance. Equal values share the mean of their
    ranks. If either list is constant, the parts are 0.

    Raises:
        ValueError: the lists differ in length.
    """
    if len(values) != len(others):
        raise ValueError("the lists differ in length.")
    left, right = _Ranks(values), _Ranks(others)
    products = left.standard * right.standard
    both = products + left.above(right.standard) + right.above(left.standard)
    alone = sum(ranks.standard**2 + 2 * ranks.above(ranks.standard) for ranks in (left, right))
    correlation = products.sum() / max(1, len(products))
    influence = both - correlation / 2 * alone
    return [float(part) for part in correlation + influence - influence.sum() / max(1, len(products))]


class _Ranks:
    """The ranks of values. `standard` (N,) has mean 0 and variance 1, or is 0 if all values are equal."""

    def __init__(self, values: Sequence[float]):
        _, self._group, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[self._group]
        self._deviation = float(ranks.std()) if len(ranks) else 0.0
        self.standard = (ranks - ranks.mean()) / self._deviation if self._deviation else np.zeros(len(values))

    def above(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns, for each case, the weights of the cases with larger values and half of those with equal ones.

        The unit is one standard deviation of the ranks.
        """
        if not self._deviation:
            return np.zeros(len(weights))
        sums = np.bincount(self._group, weights)
        larger = sums[::-1].cumsum()[::-1] - sums / 2
        return np.asarray(larger[self._group] / self._deviation)


def difference(values: Sequence[float], others: Sequence[float]) -> Score:
    """Returns the difference of the means of two lists for the same cases in order.

    The values lie between 0 and 1, or are the parts of a correlation. The interval is the normal approximation for
    paired samples. For values between 0 and 1, each list wins one more case (Bonett and Price 2012). The interval
    then holds with few cases, and has a width if no case differs. The difficulty of the cases does not widen it.

    Raises:
        ValueError: there are no values, or the lists differ in length.
    """
    if not values:
        raise ValueError("there are no values to compare.")
    differences = [left - right for left, right in zip(values, others, strict=True)]
    are_shares = all(0 <= score <= 1 for score in (*values, *others))
    largest, more = (1.0, [*differences, 1.0, -1.0]) if are_shares else (2.0, differences)
    value, middle, margin = sum(differences) / len(differences), sum(more) / len(more), _margin(more)
    low, high = max(-largest, min(value, middle - margin)), min(largest, max(value, middle + margin))
    return Score(100 * value, 100 * low, 100 * high, len(differences))


def _margin(values: Sequence[float]) -> float:
    """Returns half the width of the normal interval of the mean. It is 0 for a single value."""
    n, value = len(values), sum(values) / len(values)
    return Z * math.sqrt(sum((held_out - value) ** 2 for held_out in values) / (n - 1) / n) if n > 1 else 0.0


def matthews(predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """Returns the Matthews correlation of the labels 0 and 1 (Matthews 1975), or 0 if either list is constant.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    return _of_table(_matthews, predicted, actual)


def f1(predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """Returns the harmonic mean of precision and recall of label 1, or 0 if it was never predicted correctly.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    return _of_table(_f1, predicted, actual)


def _of_table(score: Callable[[Tables], Any], predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """Returns a score computed from the four counts of a confusion matrix.

    The score is not a mean over the cases, and near its bounds the normal approximation fails. The interval holds two
    others: the percentile bootstrap, which has no width if no error was seen, and the credible interval of Jeffreys'
    prior, which excludes the best scores after one error in ten cases. Drawing cases with replacement equals drawing
    the four counts from a multinomial.
    """
    pairs = Counter(zip(actual, predicted, strict=True))
    n = pairs.total()
    if not n:
        raise ValueError("there are no cases to score.")
    counts = np.array([pairs[0, 0], pairs[0, 1], pairs[1, 0], pairs[1, 1]], np.float64)
    generator = np.random.default_rng(0)
    drawn = np.stack([generator.multinomial(n, counts / n, DRAWS) / n, generator.dirichlet(counts + 0.5, DRAWS)])
    lows, highs = np.percentile(score(drawn.reshape(2, DRAWS, 2, 2)), [2.5, 97.5], axis=1)
    value = float(score(counts.reshape(2, 2)))
    return Score(100 * value, 100 * min(value, float(lows.min())), 100 * max(value, float(highs.max())), n)


def _matthews(tables: Tables) -> Any:
    (tn, fp), (fn, tp) = np.moveaxis(tables, (-2, -1), (0, 1))
    spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    correlation = (tp * tn - fp * fn) / np.sqrt(np.where(spread > 0, spread, 1))  # with a spread of 0, the rest is 0
    return np.clip(correlation, -1, 1)  # of rounding


def _f1(tables: Tables) -> Any:
    (_, fp), (fn, tp) = np.moveaxis(tables, (-2, -1), (0, 1))
    cases = 2 * tp + fp + fn
    return 2 * tp / np.where(cases > 0, cases, 1)


def span_f1(right: Sequence[int], predicted: Sequence[int], expected: Sequence[int]) -> Score:
    """Returns the harmonic mean of precision and recall of the spans of n texts together, or 0 if there is no span.

    The interval holds two others: the normal approximation for a ratio of sums (Cochran 1977, Sampling Techniques,
    section 6.3), which has no width without an error, and Wilson's of as many independent spans.

    Args:
        right: (n,) spans of each text that are found and expected.
        predicted: (n,) spans that are found.
        expected: (n,) spans that are expected.

    Raises:
        ValueError: there are no texts, or the arguments differ in length.
    """
    counts = np.array(list(zip(right, predicted, expected, strict=True)), np.float64)
    if not len(counts):
        raise ValueError("there are no texts to score.")
    n, both, sizes = len(counts), 2 * counts[:, 0], counts[:, 1] + counts[:, 2]
    spans = float(sizes.sum())
    value = float(both.sum() / max(1.0, spans))
    errors = both - value * sizes
    margin = Z * math.sqrt(n / max(1, n - 1) * float(errors @ errors)) / max(1.0, spans)
    wilson = share(round(both.sum() / 2), max(1, round(spans / 2)))
    low, high = min(100 * (value - margin), wilson.low), max(100 * (value + margin), wilson.high)
    return Score(100 * value, max(0.0, low), min(100.0, high), n)


def normalise_answer(text: str) -> str:
    """Lower-cases a text, and removes punctuation, articles and extra spaces.

    Follows Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1.
    """
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """Returns 1 if the answer equals a reference answer, else 0. Without references, the empty answer is right."""
    return float(normalise_answer(predicted) in _gold(answers))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """Returns the best F1 of words with a reference answer. Without references, the empty answer is right."""
    return max(_overlap(normalise_answer(predicted).split(), answer.split()) for answer in _gold(answers))


def best_threshold(margins: Sequence[float], scores: Sequence[float], answerable: Sequence[bool]) -> Threshold:
    """Returns the threshold for "no answer" with the best score, as SQuAD 2.0's official script does.

    A question is answered if its margin, the score of "no answer" minus the best answer's, is at most the
    threshold. Otherwise the empty answer is given, which scores 1 if the question has no answer, and 0 if it has one.
    Of several best thresholds the lowest is returned. Reference: arXiv:1806.03822. There are two differences to the
    script: questions with equal margins are answered together or not at all, and the threshold is minus infinity
    (there: 0) if it is best never to answer.

    Args:
        margins: (N,) the margin of each question.
        scores: (N,) exact match or F1 of each question's best answer, from 0 to 1.
        answerable: (N,) whether the question has an answer.

    Raises:
        ValueError: there are no questions, or the arguments differ in length.
    """
    questions = sorted(zip(margins, scores, answerable, strict=True))
    if not questions:
        raise ValueError("there are no questions to find a threshold for.")
    total = best = float(sum(not answer for _, _, answer in questions))
    value = -math.inf
    following = [margin for margin, _, _ in questions[1:]]
    for (margin, score, answer), after in zip(questions, [*following, math.inf], strict=True):
        total += score if answer else score - 1
        if total > best and margin < after:
            best, value = total, margin
    return Threshold(value, 100 * best / len(questions))


def _gold(answers: Sequence[str]) -> list[str]:
    """Normalises reference answers. As in the official script, empty ones count only if all are empty."""
    return [bare for answer in answers if (bare := normalise_answer(answer))] or [""]


def _overlap(predicted: list[str], actual: list[str]) -> float:
    if not predicted or not actual:
        return float(predicted == actual)
    common = sum((Counter(predicted) & Counter(actual)).values())
    return 2 * common / (len(predicted) + len(actual)) if common else 0.0
