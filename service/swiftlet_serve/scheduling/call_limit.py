"""The time limit of a call: when a worker process counts as hung."""

from __future__ import annotations

from typing import Final

CALL_TIMEOUT_S: Final = 10.0
"""Time limit of a call by default: of a short one, or of one whose duration is unknown."""

OVERDUE_FACTOR: Final = 20
"""Time limit of a short call, as a multiple of its predicted duration, once the latency model is calibrated."""

LONG_FACTOR: Final = 4
"""The same of a long call. A prediction of many tokens is close, since other work delays a long call less."""

MIN_CALL_TIMEOUT_S: Final = 1.0
"""Lower bound of the time limit that a prediction gives."""


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
