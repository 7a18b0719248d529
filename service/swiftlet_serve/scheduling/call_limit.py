"""The time limit of a call: when a worker process counts as hung."""

from __future__ import annotations

from typing import Final

CALL_TIMEOUT_S: Final = 10.0
"""Time limit of a call."""

OVERDUE_FACTOR: Final = 20
"""Time limit of a call, as a multiple of its predicted duration, once the latency model is calibrated."""

MIN_CALL_TIMEOUT_S: Final = 1.0
"""Lower bound of the time limit that `OVERDUE_FACTOR` gives."""


def call_limit_s(call_timeout_s: float, expected_s: float, *, calibrated: bool) -> float:
    """Returns the time limit of a call in seconds, after which its worker process is replaced.

    Args:
        call_timeout_s: the limit of any call.
        expected_s: the predicted duration.
        calibrated: whether the prediction comes from measured calls.
    """
    return min(call_timeout_s, max(MIN_CALL_TIMEOUT_S, OVERDUE_FACTOR * expected_s)) if calibrated else call_timeout_s
