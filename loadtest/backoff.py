"""Whether and when a client asks again, as the retries of common HTTP clients do."""

from __future__ import annotations

import random
from typing import Final

# Lost connections are 0. What else fails would fail again.
AGAIN: Final = frozenset({0, 408, 429, 502, 503, 504})
FIRST_S: Final = 0.1
MOST_S: Final = 10.0


def pause(attempt: int, retry_after: float, pick: random.Random) -> float:
    """Seconds to wait after an attempt, the first of which is 0, failed.

    Any time up to one that doubles ("full jitter"), so that clients that failed together do not come back together;
    after what the server asked for, where it did, by up to a tenth of that.
    """
    if retry_after > 0:
        return retry_after * (1 + pick.random() / 10)
    return pick.random() * float(min(MOST_S, FIRST_S * 2**attempt))
