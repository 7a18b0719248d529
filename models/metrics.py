"""How good answers are: Matthews correlation and F1 of labels; exact match and F1 of answers, as SQuAD defines them."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A mean over n cases, in percent, with a 95 % confidence interval."""

    value: float
    low: float
    high: float
    n: int


def mean(values: Sequence[float]) -> Score:
    """The mean of values between 0 and 1; the interval is the normal approximation.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there is nothing to average.")
    n = len(values)
    centre = sum(values) / n
    variance = sum((value - centre) ** 2 for value in values) / max(1, n - 1)
    margin = 1.96 * math.sqrt(variance / n)
    return Score(100 * centre, 100 * max(0.0, centre - margin), 100 * min(1.0, centre + margin), n)


def matthews(predicted: Sequence[int], actual: Sequence[int]) -> float:
    """The Matthews correlation of two labels, 0 and 1 (Matthews 1975); 0 where either has only one value."""
    pairs = Counter(zip(predicted, actual, strict=True))
    tp, tn, fp, fn = pairs[1, 1], pairs[0, 0], pairs[1, 0], pairs[0, 1]
    spread = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(spread) if spread else 0.0


def f1(predicted: Sequence[int], actual: Sequence[int]) -> float:
    """The harmonic mean of precision and recall of label 1; 0 where it was never right."""
    pairs = Counter(zip(predicted, actual, strict=True))
    hits = pairs[1, 1]
    return 2 * hits / (2 * hits + pairs[1, 0] + pairs[0, 1]) if hits else 0.0


def normalise_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces (Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1)."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 where the answer equals one that people gave, else 0. No answers at all means that empty is right."""
    wanted = {normalise_answer(answer) for answer in answers or ("",)}
    return float(normalise_answer(predicted) in wanted)


def answer_f1(predicted: str, answers: Sequence[str]) -> float:
    """The best overlap of words with an answer that people gave. No answers at all means that empty is right."""
    return max(_overlap(normalise_answer(predicted).split(), normalise_answer(a).split()) for a in answers or ("",))


def _overlap(predicted: list[str], actual: list[str]) -> float:
    if not predicted or not actual:
        return float(predicted == actual)
    common = sum((Counter(predicted) & Counter(actual)).values())
    return 2 * common / (len(predicted) + len(actual)) if common else 0.0
