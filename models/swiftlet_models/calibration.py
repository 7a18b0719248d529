"""Calibration: the temperature that makes probabilities match frequencies (Guo et al. 2017), and their error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from swiftlet_models import probabilities

TEMPERATURES: Final = np.geomspace(0.05, 20, 1201)  # half a percent apart
BINS: Final = 15
DIGITS: Final = 6  # of a bin
LARGEST: Final = 37.0  # log-odds of a probability that rounds to 1
ANSWER_STRIDE: Final = 4  # every fourth temperature is tried with the best offset for it
HALVINGS: Final = 40  # of the interval of the offset
AT_ONCE: Final = 1 << 13  # probabilities, which fit into a cache

Probabilities = NDArray[np.float64]


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Probabilities:
    """Returns the probabilities of logits, (..., options)."""
    return probabilities.softmax(np.asarray(logits, np.float64) / temperature)


def sigmoid(logit: float, temperature: float = 1.0) -> float:
    """Returns the probability of a logit."""
    return float(softmax([logit, 0.0], temperature)[0])


def log_odds(probability: float) -> float:
    """Returns the log-odds of a probability, limited to finite values."""
    if not 0 < probability < 1:
        return math.copysign(LARGEST, probability - 0.5)
    return math.log(probability) - math.log1p(-probability)


def fit_temperature(logits: Sequence[Sequence[float]], labels: Sequence[int]) -> float:
    """Returns the temperature that gives the labels the highest likelihood.

    Args:
        logits: one row for each case. Rows may differ in length.
        labels: the position of the right option in each row.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    if not logits:
        raise ValueError("there are no cases.")
    losses = sum((_losses(row, label) for row, label in zip(logits, labels, strict=True)), np.zeros(len(TEMPERATURES)))
    return float(TEMPERATURES[np.argmin(losses)])


def fit_answers(log_odds: Sequence[float], correct: Sequence[bool]) -> tuple[float, float]:
    """Returns the temperature and the offset that give the results the highest likelihood, as Platt scaling does.

    The probability that an answer is right is sigmoid((log-odds + offset) / temperature).

    Args:
        log_odds: the log-odds of each answer's score.
        correct: whether each answer is right.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    odds, right = _as_arrays("log-odds", log_odds, correct)
    temperatures = TEMPERATURES[::ANSWER_STRIDE]
    blocks = np.array_split(temperatures, -(-len(temperatures) * len(odds) // AT_ONCE))
    offsets = np.concatenate([_best_offsets(odds, right, block) for block in blocks])
    signs = 1 - 2 * right
    losses = [
        np.logaddexp(0, signs * (odds + offset) / t).sum() for t, offset in zip(temperatures, offsets, strict=True)
    ]
    best = int(np.argmin(losses))
    return float(temperatures[best]), float(offsets[best])


def _best_offsets(log_odds: Probabilities, right: Probabilities, temperatures: Probabilities) -> Probabilities:
    """Returns the best offset for each temperature: with it, the mean probability is the share of right answers."""
    low, high = -log_odds.max() - LARGEST * temperatures, LARGEST * temperatures - log_odds.min()
    share = right.mean()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        with np.errstate(over="ignore"):  # a probability of 0
            mean = (1 / (1 + np.exp((log_odds + middle[:, None]) / -temperatures[:, None]))).mean(1)
        low, high = np.where(mean > share, low, middle), np.where(mean > share, middle, high)
    return np.asarray((low + high) / 2)


def _losses(row: Sequence[float], label: int) -> Probabilities:
    """Returns the negative log-likelihood of a label at each temperature."""
    logits = np.asarray(row, np.float64)
    below = (logits - logits.max())[:, None] / TEMPERATURES
    return np.asarray(np.log(np.exp(below).sum(0)) - below[label])


class Bin(NamedTuple):
    """Answers whose confidence lies in one interval: a point of a reliability diagram."""

    answers: int
    confidence: float
    """Their mean, from 0 to 1."""
    accuracy: float
    """The share of right ones, from 0 to 1."""


def reliability(confidences: Sequence[float], correct: Sequence[bool]) -> list[Bin]:
    """Returns the bins of equal width that hold answers, in ascending order.

    Args:
        confidences: the probability of each answer, from 0 to 1.
        correct: whether each answer is right.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    confidence, right = _as_arrays("confidences", confidences, correct)
    of_answer = np.minimum((confidence * BINS).astype(int), BINS - 1)
    members = [of_answer == number for number in np.unique(of_answer)]
    return [
        Bin(int(one.sum()), round(float(confidence[one].mean()), DIGITS), round(float(right[one].mean()), DIGITS))
        for one in members
    ]


def expected_calibration_error(bins: Sequence[Bin]) -> float:
    """Returns the mean distance of confidence and accuracy over bins, weighted by their answers."""
    distances = [one.answers * abs(one.confidence - one.accuracy) for one in bins]
    return sum(distances) / sum(one.answers for one in bins)


def find_threshold(confidences: Sequence[float], correct: Sequence[bool], precision: float, least: int) -> float | None:
    """Returns the lowest confidence so that answers that have at least it are right often enough.

    Args:
        confidences: the probability of each answer, from 0 to 1.
        correct: whether each answer is right.
        precision: the share of right answers, from 0 to 1.
        least: the answers that there must be.

    Returns:
        The confidence; None if there is none.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    confidence, right = _as_arrays("confidences", confidences, correct)
    order = np.argsort(-confidence, kind="stable")
    confidence, counts = confidence[order], np.arange(1, len(order) + 1)
    is_last = np.append(confidence[1:] < confidence[:-1], True)  # of answers with the same confidence
    fitting = np.flatnonzero((np.cumsum(right[order]) / counts >= precision) & (counts >= least) & is_last)
    return float(confidence[fitting[-1]]) if len(fitting) else None


def _as_arrays(name: str, values: Sequence[float], correct: Sequence[bool]) -> tuple[Probabilities, Probabilities]:
    """Returns two arrays: a value for each answer, and whether the answer is right.

    Raises:
        ValueError: there are no cases, or the lists differ in length.
    """
    if not values or len(values) != len(correct):
        raise ValueError(f"there must be cases, and as many {name} as results.")
    return np.asarray(values, np.float64), np.asarray(correct, np.float64)
