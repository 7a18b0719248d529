"""How good answers are: accuracy, Matthews correlation and F1 of labels; exact match and F1 of answers, as in SQuAD.

Every score is in percent, the Matthews correlation too (-100 to 100), as GLUE's tables print it.
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

Z: Final = 1.96  # standard deviations on either side that hold 95 % of a normal distribution
DRAWS: Final = 10_000  # of a bootstrap: the ends of its intervals are then good to about 2 % of their width

Tables = NDArray[np.float64]  # (..., 2, 2): how many cases have this label, and this one predicted


@dataclass(frozen=True)
class Score:
    """A score over n cases, in percent, with a 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Threshold:
    """How much likelier than its answer a model must find "no answer" to give none, and the score that this makes."""

    value: float  # minus infinity where the best is never to answer
    score: float  # in percent


def mean(values: Sequence[float]) -> Score:
    """The mean of values between 0 and 1.

    The interval is Wilson's (1927) where each is 0 or 1: it never leaves 0 to 100 and has a width when all are alike.
    For values between, which have no such form, it is the normal approximation.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there is nothing to average.")
    n = len(values)
    value = sum(values) / n
    if set(values) <= {0.0, 1.0}:
        middle = (value + Z**2 / (2 * n)) / (1 + Z**2 / n)
        margin = Z / (1 + Z**2 / n) * math.sqrt(value * (1 - value) / n + Z**2 / (4 * n**2))
    else:
        middle = value
        margin = _margin(values)
    low, high = max(0.0, min(value, middle - margin)), min(1.0, max(value, middle + margin))
    return Score(100 * value, 100 * low, 100 * high, n)


def difference(values: Sequence[float], others: Sequence[float]) -> Score:
    """By how much the mean of values between 0 and 1 is above that of others of the same cases, in order.

    The interval is the normal approximation for paired samples: what makes a case hard for both does not widen it.

    Raises:
        ValueError: there are no values, or not as many of the one as of the other.
    """
    if not values:
        raise ValueError("there is nothing to compare.")
    differences = [one - other for one, other in zip(values, others, strict=True)]
    value, margin = sum(differences) / len(differences), _margin(differences)
    return Score(100 * value, 100 * (value - margin), 100 * (value + margin), len(differences))


def _margin(values: Sequence[float]) -> float:
    """Half of the interval of their mean in the normal approximation; 0 of one value, which tells nothing of others."""
    n, value = len(values), sum(values) / len(values)
    return Z * math.sqrt(sum((one - value) ** 2 for one in values) / (n - 1) / n) if n > 1 else 0.0


def matthews(predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """The Matthews correlation of two labels, 0 and 1 (Matthews 1975); 0 where either has only one value.

    Raises:
        ValueError: there are no cases, or not as many predictions as labels.
    """
    return _of_table(_matthews, predicted, actual)


def f1(predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """The harmonic mean of precision and recall of label 1; 0 where it was never right.

    Raises:
        ValueError: there are no cases, or not as many predictions as labels.
    """
    return _of_table(_f1, predicted, actual)


def _of_table(score: Callable[[Tables], Any], predicted: Sequence[int], actual: Sequence[int]) -> Score:
    """A score of the four counts.

    It is no mean of cases and has bounds, near which no normal approximation holds, so the interval is a percentile
    bootstrap. Cases of one kind are interchangeable: drawing cases is drawing the four counts at once.
    """
    pairs = Counter(zip(actual, predicted, strict=True))
    n = pairs.total()
    if not n:
        raise ValueError("there is nothing to score.")
    counts = np.array([pairs[0, 0], pairs[0, 1], pairs[1, 0], pairs[1, 1]], np.float64)
    drawn = np.random.default_rng(0).multinomial(n, counts / n, DRAWS).astype(np.float64)
    low, high = np.percentile(score(drawn.reshape(-1, 2, 2)), [2.5, 97.5])
    value = float(score(counts.reshape(2, 2)))
    return Score(100 * value, 100 * min(value, float(low)), 100 * max(value, float(high)), n)


def _matthews(tables: Tables) -> Any:
    (tn, fp), (fn, tp) = np.moveaxis(tables, (-2, -1), (0, 1))
    spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / np.sqrt(np.where(spread > 0, spread, 1))  # the numerator is 0 where the spread is


def _f1(tables: Tables) -> Any:
    (_, fp), (fn, tp) = np.moveaxis(tables, (-2, -1), (0, 1))
    return 2 * tp / np.maximum(1, 2 * tp + fp + fn)


def normalise_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces (Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1)."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 where the answer equals one that people gave, else 0. No answers at all means that empty is right."""
    return float(normalise_answer(predicted) in _gold(answers))


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """The best overlap of words with an answer that people gave. No answers at all means that empty is right."""
    return max(_overlap(normalise_answer(predicted).split(), answer.split()) for answer in _gold(answers))


def best_threshold(differences: Sequence[float], scores: Sequence[float], answerable: Sequence[bool]) -> Threshold:
    """From where on it is best to give no answer: the search of SQuAD 2.0's official script (arXiv:1806.03822).

    A question is answered where its difference, the score of "no answer" less that of the best answer, is at most the
    threshold. Else the empty answer is given: right (1) for a question without an answer, and wrong (0) for others. Of
    thresholds that are equally good the least is found. The script tells questions of equal differences apart, which no
    threshold can; here they are answered together or not at all. And it says 0 where the best is never to answer.

    Args:
        differences: (N,) for each question.
        scores: (N,) exact match or F1 of each question's best answer, 0 to 1.
        answerable: (N,) whether the question has an answer.

    Raises:
        ValueError: there are no questions, or the three differ in length.
    """
    questions = sorted(zip(differences, scores, answerable, strict=True))
    if not questions:
        raise ValueError("there is no question to find a threshold on.")
    total = best = float(sum(not answer for _, _, answer in questions))
    value = -math.inf
    following = [difference for difference, _, _ in questions[1:]]
    for (difference, score, answer), after in zip(questions, [*following, math.inf], strict=True):
        total += score if answer else score - 1
        if total > best and difference < after:
            best, value = total, difference
    return Threshold(value, 100 * best / len(questions))


def _gold(answers: Sequence[str]) -> list[str]:
    """The answers as they are compared. As officially, those that come to nothing count only if there are no others."""
    return [bare for answer in answers if (bare := normalise_answer(answer))] or [""]


def _overlap(predicted: list[str], actual: list[str]) -> float:
    if not predicted or not actual:
        return float(predicted == actual)
    common = sum((Counter(predicted) & Counter(actual)).values())
    return 2 * common / (len(predicted) + len(actual)) if common else 0.0
