"""Probabilities of logits: arrays of any shape, in the precision of the logits."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FloatT = TypeVar("FloatT", np.float32, np.float64)


def softmax(logits: NDArray[FloatT]) -> NDArray[FloatT]:
    """Returns probabilities over the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=-1, keepdims=True))


def sigmoid(logits: NDArray[FloatT]) -> NDArray[FloatT]:
    """Returns 1 / (1 + exp(-x)), in a form that does not overflow."""
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * logits))
