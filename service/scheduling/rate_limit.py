"""The rate limit of each client."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_CLIENTS: Final = 10_000


class RateLimiter:
    """A token bucket for each client, with a burst of one second's quota.

    The state of a client is one number: the time at which its bucket is full again.
    """

    def __init__(self, rate: float, max_clients: int = MAX_CLIENTS) -> None:
        """`rate` is in requests per second. Beyond `max_clients`, the least recently seen client is forgotten."""
        self._interval = 1 / rate
        self._burst = max(1.0, self._interval)  # seconds until an empty bucket is full
        self._max_clients = max_clients
        self._full: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Takes a token and returns 0. If the bucket is empty, returns the seconds until the next token."""
        full = max(now, self._full.get(client, now)) + self._interval
        if (wait := full - self._burst - now) > 1e-9:
            return wait
        self._full[client] = full
        self._full.move_to_end(client)
        if len(self._full) > self._max_clients:
            self._full.popitem(last=False)
        return 0.0

    def __len__(self) -> int:
        return len(self._full)
