"""The rate limits of each client, of requests and of tokens."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from swiftlet_serve.errors import rate_limit_exceeded

MAX_CLIENTS: Final = 10_000


class RateLimiter:
    """A token bucket for each client, with a burst of one second's quota.

    The state of a client is one number: the time when its bucket is full again.
    """

    def __init__(self, rate: float, max_clients: int = MAX_CLIENTS) -> None:
        """`rate` is in tokens per second. Beyond `max_clients`, the least recently seen client is forgotten."""
        self._interval = 1 / rate
        self._burst = max(1.0, self._interval)  # seconds until an empty bucket is full
        self._max_clients = max_clients
        self._full: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Takes a token and returns 0. If the bucket is empty, returns the seconds until the next token."""
        wait = self.wait_s(client, now, 1)
        if not wait:
            self.charge(client, now, 1)
        return wait

    def wait_s(self, client: str, now: float, tokens: int = 0) -> float:
        """Returns the seconds until the bucket has so many tokens, or with 0 tokens until it has no debt."""
        wait = self._full_at(client, now, tokens) - self._burst - now
        return wait if wait > 1e-9 else 0.0

    def charge(self, client: str, now: float, tokens: int) -> None:
        """Takes tokens, also more than the bucket has: it then has a debt, which the rate pays."""
        self._full[client] = self._full_at(client, now, tokens)
        self._full.move_to_end(client)
        if len(self._full) > self._max_clients:
            self._full.popitem(last=False)

    def _full_at(self, client: str, now: float, tokens: int) -> float:
        """Returns the time when the bucket is full again if so many tokens are taken."""
        return max(now, self._full.get(client, now)) + tokens * self._interval

    def __len__(self) -> int:
        return len(self._full)


class ClientRateLimiter:
    """Refuses the requests of clients that have spent their requests or tokens.

    A request's tokens are known only once it is encoded. It is admitted if its client has no debt of tokens, and then
    charged, so that a request larger than the quota is served as well: the next ones wait until it is paid.
    """

    def __init__(self, requests: float | None = None, tokens: float | None = None) -> None:
        """Creates the limits on requests and tokens per second; None is no limit."""
        self._requests = None if requests is None else RateLimiter(requests)
        self._tokens = None if tokens is None else RateLimiter(tokens)

    def begin(self, client: str, now: float) -> None:
        """Counts a request.

        Raises:
            TooManyRequests: the client has spent its requests or its tokens.
        """
        self.check_tokens(client, now)
        if self._requests is not None and (wait_s := self._requests.take(client, now)):
            raise rate_limit_exceeded(wait_s)

    def charge_requests(self, client: str, now: float, requests: int) -> None:
        """Counts requests that an admitted one holds, also more than the quota: the next ones wait until it is paid."""
        if self._requests is not None:
            self._requests.charge(client, now, requests)

    def check_tokens(self, client: str, now: float) -> None:
        """Raises TooManyRequests if the client has a debt of tokens."""
        if self._tokens is not None and (wait_s := self._tokens.wait_s(client, now)):
            raise rate_limit_exceeded(wait_s, "rate limit of tokens")

    def charge_tokens(self, client: str, now: float, tokens: int) -> None:
        """Counts the tokens of a request that was admitted."""
        if self._tokens is not None:
            self._tokens.charge(client, now, tokens)
