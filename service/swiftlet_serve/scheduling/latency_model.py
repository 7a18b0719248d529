"""Estimates of call durations and of executor utilisation, and the time limit of a call.

Nothing here reads a clock: times are arguments, so that every property can be tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from swiftlet_serve.types import Cost

INITIAL_TOKEN_S: Final = 1e-4  # time per token before the first call: MobileBERT int8 on one core, order of magnitude
BREAK_EVEN_TOKENS: Final = 1024  # initial guess of the length where attention costs as much as all other layers
CALIBRATION_CALLS: Final = 8  # first calls, whose durations are averaged
LEARNING_RATE: Final = 1 / 4  # share of the error of a later call that corrects the estimate
MAX_LOG_ERROR: Final = math.log(2)  # larger errors are clipped: the machine may have paused

CALL_TIMEOUT_S: Final = 10.0
"""Time limit of a call by default: of a short one, or of one whose duration is unknown."""

OVERDUE_FACTOR: Final = 20
"""Time limit of a short call, as a multiple of its predicted duration, once the latency model is calibrated."""

LONG_FACTOR: Final = 4
"""The same of a long call. A prediction of many tokens is close, since other work delays a long call less."""

MIN_CALL_TIMEOUT_S: Final = 1.0
"""Lower bound of the time limit that a prediction gives."""

WINDOW_S: Final = 3.0  # time constant of the utilisation: after it, a call's weight has fallen to 1 / e


def work(lengths: Sequence[int]) -> tuple[int, int, int]:
    """Returns the rows, the tokens and the sum of the squared lengths of sequences."""
    if len(lengths) == 1:  # the usual case
        return 1, lengths[0], lengths[0] * lengths[0]
    return len(lengths), sum(lengths), sum([n * n for n in lengths])


class LatencyModel:
    """Predicts how long calls of one engine take, and learns from the calls that end.

    A call takes `fixed + token * T + square * S` seconds. T is the number of tokens that the call is charged for, and
    S is the sum of the squared lengths, for attention. The three coefficients are always positive. Each observed call
    updates their logarithms, in proportion to their shares of the prediction (normalised least mean squares). Batches
    of different shapes tell the three coefficients apart.
    """

    def __init__(self, cost: Cost) -> None:
        """Starts from the engine's declared cost and an initial guess of the time per token."""
        self.cost = cost
        self._fixed = INITIAL_TOKEN_S * max(1, cost.call_tokens)
        self._token = INITIAL_TOKEN_S
        self._square = INITIAL_TOKEN_S / BREAK_EVEN_TOKENS
        self._calls = 0

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """The seconds of a call, of a token and of a squared length: what a copy in another process needs."""
        return self._fixed, self._token, self._square

    @coefficients.setter
    def coefficients(self, values: tuple[float, float, float]) -> None:
        self._fixed, self._token, self._square = values

    @property
    def calibrated(self) -> bool:
        """Whether enough calls were observed to rely on the predictions."""
        return self._calls >= CALIBRATION_CALLS

    def call_s(self, rows: int, tokens: int, squares: int, longest: int) -> float:
        """Predicts the seconds of one call.

        Args:
            rows: sequences of the batch.
            tokens: sum of their lengths.
            squares: sum of their squared lengths.
            longest: the largest length.
        """
        if self.cost.padded or self.cost.padded_attention:
            return sum(self._parts(rows, tokens, squares, longest))
        return self._fixed + tokens * self._token + squares * self._square

    def batch_s(self, lengths: Sequence[int]) -> float:
        """Predicts the seconds of one call with sequences of these lengths."""
        return self.call_s(*work(lengths), max(lengths))

    def single_s(self, length: int) -> float:
        """Predicts the seconds of a call with one sequence, which needs no padding."""
        return self._fixed + length * self._token + length * length * self._square

    def backlog_s(self, rows: int, tokens: int, squares: int) -> float:
        """Predicts the seconds that one core needs for many sequences, in batches as full as the limits allow."""
        calls = max(rows / self.cost.max_rows, tokens / self.cost.max_tokens)
        return calls * self._fixed + tokens * self._token + squares * self._square

    def learn(self, lengths: Sequence[int], seconds: float) -> None:
        """Updates the model with the duration of a call with sequences of these lengths."""
        parts = self._parts(*work(lengths), max(lengths))
        fixed, token, square = parts
        predicted = fixed + token + square
        error = math.log(max(seconds, 1e-9) / predicted)
        self._calls += 1
        if self._calls <= CALIBRATION_CALLS:
            factor = math.exp(error / self._calls)
            self._fixed, self._token, self._square = self._fixed * factor, self._token * factor, self._square * factor
            return
        step = LEARNING_RATE * min(MAX_LOG_ERROR, max(-MAX_LOG_ERROR, error))
        step *= predicted / (fixed * fixed + token * token + square * square)
        self._fixed *= math.exp(step * fixed)
        self._token *= math.exp(step * token)
        self._square *= math.exp(step * square)

    def _parts(self, rows: int, tokens: int, squares: int, longest: int) -> tuple[float, float, float]:
        if self.cost.padded:
            tokens = rows * longest
        if self.cost.padded or self.cost.padded_attention:
            squares = rows * longest * longest
        return self._fixed, tokens * self._token, squares * self._square


class Utilization:
    """Estimates the share of an executor's time that some work takes, with exponentially decaying weights."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._share = 0.0
        self._updated = 0.0

    def share(self, now: float) -> float:
        """Returns the share at this time, from 0 (idle) to about 1 (all cores busy)."""
        return self._share * math.exp((self._updated - now) / WINDOW_S)

    def add(self, seconds: float, now: float) -> None:
        """Adds a call of this duration that ends now."""
        self._share = self.share(now) + seconds / (self._cores * WINDOW_S)
        self._updated = now


def call_limit_s(call_timeout_s: float, expected_s: float, *, calibrated: bool) -> float:
    """Returns the time limit of a call in seconds, after which its worker process is replaced.

    Args:
        call_timeout_s: the limit of a call whose duration is unknown, and of calls that are predicted to be short.
        expected_s: the predicted duration.
        calibrated: whether the prediction comes from measured calls.
    """
    if not calibrated:
        return call_timeout_s
    longest_s = max(call_timeout_s, LONG_FACTOR * expected_s)
    return min(longest_s, max(MIN_CALL_TIMEOUT_S, OVERDUE_FACTOR * expected_s))
