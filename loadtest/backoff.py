"""Decides whether and when a client retries a failed request, as common HTTP clients do."""

from __future__ import annotations

import random
from typing import Final

RETRYABLE: Final = frozenset({0, 408, 429, 502, 503, 504})  # statuses; 0 stands for a lost connection
INITIAL_S: Final = 0.1
MAX_S: Final = 10.0


def backoff_s(attempt: int, retry_after_s: float, draw: random.Random) -> float:
    """Returns the seconds to wait after a failed attempt. The first attempt has the number 0.

    Without a Retry-After header the delay is uniform up to a limit that doubles with each attempt ("full jitter"), so
    that clients that failed together do not return together. With one, the delay is at most a tenth longer.
    """
    if retry_after_s > 0:
        return retry_after_s * (1 + draw.random() / 10)
    return draw.random() * float(min(MAX_S, INITIAL_S * 2**attempt))
