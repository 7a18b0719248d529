"""What work will take, and whether it may come in: decisions about load, apart from all that acts on them.

Nothing here reads a clock, waits or locks: times and random numbers are arguments, so every promise can be tested.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from swiftlet_serve.service.types import Cost, Priority

GUESS_S: Final = 1e-4  # a token's time before the first call: MobileBERT in int8 on one core, to the order of magnitude
EVEN: Final = 1024  # tokens of a row at which, before the first call, attention is thought to cost as much as the rest
FIRST: Final = 8  # calls that are believed as they are
PACE: Final = 1 / 4  # how far a later call moves the estimate towards itself
OUTLIER: Final = math.log(2)  # a call further off than this moves it no further: the machine may have paused

LOAD_S: Final = 3.0  # seconds after which a call counts for a third of what it did

USABLE: Final[dict[Priority, float]] = {"interactive": 0.75, "bulk": 0.375}
"""How much of what is left of its deadline a request may have to wait."""
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
MAX_CLIENTS: Final = 10_000


class Pace:
    """What calls of one engine take, learned from those that ended.

    A call takes `fixed + token * T + square * S` seconds, where T is the tokens it is charged for and S the sum of each
    row's tokens squared: attention looks from every token at every other. All three are positive, whatever is learned.
    Each call that ends moves their logarithms, each as it contributed, so that the prediction of that call comes nearer
    to what it took (normalised least mean squares). So what a batch was made of tells the three apart.
    """

    def __init__(self, cost: Cost) -> None:
        """Starts from the ratios that the engine declares, and a guess of how long a token takes."""
        self.cost = cost
        self._fixed = GUESS_S * max(1, cost.call_tokens)
        self._token = GUESS_S
        self._square = GUESS_S / EVEN
        self._calls = 0

    @property
    def known(self) -> bool:
        """Whether enough calls ended to go by what they took."""
        return self._calls >= FIRST

    def call_s(self, rows: int, tokens: int, squares: int, longest: int) -> float:
        """Seconds of one call with so many rows, of so many tokens in all, the sum of their squares being `squares`."""
        return sum(self._parts(rows, tokens, squares, longest))

    def alone_s(self, length: int) -> float:
        """Seconds of a call with one row."""
        return self.call_s(1, length, length * length, length)

    def backlog_s(self, rows: int, tokens: int, squares: int) -> float:
        """Seconds that one core needs for many rows, in batches as full as they may be."""
        calls = max(rows / self.cost.max_rows, tokens / self.cost.max_tokens)
        return calls * self._fixed + tokens * self._token + squares * self._square

    def learn(self, lengths: Sequence[int], seconds: float) -> None:
        """Takes in how long a call with rows of these lengths took."""
        parts = self._parts(len(lengths), sum(lengths), sum(n * n for n in lengths), max(lengths))
        predicted = sum(parts)
        shares = [part / predicted for part in parts]
        error = math.log(max(seconds, 1e-9) / predicted)
        self._calls += 1
        if self._calls <= FIRST:
            steps = [error / self._calls] * 3
        else:
            step = PACE * min(OUTLIER, max(-OUTLIER, error))
            concentration = sum(share * share for share in shares)
            steps = [step * share / concentration for share in shares]
        self._fixed *= math.exp(steps[0])
        self._token *= math.exp(steps[1])
        self._square *= math.exp(steps[2])

    def _parts(self, rows: int, tokens: int, squares: int, longest: int) -> tuple[float, float, float]:
        if self.cost.padded:
            tokens = rows * longest
        if self.cost.padded or self.cost.padded_attention:
            squares = rows * longest * longest
        return self._fixed, tokens * self._token, squares * self._square


class Load:
    """How much of an executor some work takes, as a share of its time over the last seconds."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._share = 0.0
        self._at = 0.0

    def share(self, now: float) -> float:
        return self._share * math.exp((self._at - now) / LOAD_S)

    def add(self, seconds: float, now: float) -> None:
        """Takes in a call that took so long and ended now."""
        self._share = self.share(now) + seconds / (self._size * LOAD_S)
        self._at = now


def admissible(wait_s: float, own_s: float, left_s: float, priority: Priority) -> bool:
    """Whether a request may come in that waits for `wait_s`, runs for `own_s`, and is of use for `left_s`.

    Up to a quarter of what is left, its own time makes no difference. Were the queue filled to the last moment,
    short texts would fill every gap as it opens and no long one would ever come in.
    What finds an idle core comes in if it has any time left: it costs nobody anything, and is how a wrong estimate is
    mended.
    """
    if wait_s <= 0:
        return left_s > 0
    return wait_s <= left_s * USABLE[priority] and wait_s + own_s <= left_s


def retry_after_s(wait_s: float, random: float) -> float:
    """When to come back: once the backlog is gone, and up to half as long after, lest all come back at once.

    `random` is from 0 to 1.
    """
    return min(MAX_RETRY_S, max(MIN_RETRY_S, wait_s * (1 + random / 2)))


class Quota:
    """A token bucket for each client: so many requests a second, and a second's worth of them at once.

    For each client one time is kept: when its bucket will be full again.
    """

    def __init__(self, rate: float, max_clients: int = MAX_CLIENTS) -> None:
        """`rate` is requests a second. Of more than `max_clients`, the one not heard of for longest is forgotten."""
        self._interval = 1 / rate
        self._burst = max(1.0, self._interval)  # seconds that an empty bucket takes to fill
        self._max_clients = max_clients
        self._full: OrderedDict[str, float] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Takes a token and gives 0; where there is none, takes nothing and gives the seconds until there is."""
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
