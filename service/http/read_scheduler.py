"""Whose turn it is to be read, where more has come than the event loop can look at without keeping others waiting.

An event loop hands over at once all that can be read, and until the last of it was looked at nothing else happens: no
answer leaves, and no engine gets its next batch. At ten times the load that can be served that is a tenth of a second,
most of it spent on saying no, with engines that stand idle. So a turn of the loop has a share for reading, and what
comes beyond that waits here for the next ones.

The oldest is read first, until it has waited for so long that others are better served: then the newest, whose
deadline is the furthest away (adaptive LIFO, as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

SHARE_S: Final = 0.001  # of a turn: ten refusals, and less than a small batch takes
STALE_S: Final = 0.1


class Reader(Protocol):
    """Who has something to read. It may not fail."""

    def read(self) -> None: ...


class ReadScheduler:
    """What of one event loop waits to be read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: dict[Reader, float] = {}  # since when; the oldest first
        self._ends = 0.0  # the share of this turn
        self._awake = False  # whether the next turn will be heard of

    def put(self, reader: Reader) -> None:
        """Has it read, now if this turn's share is not used up."""
        now = self._clock()
        if not self._awake:
            self._ends = now + SHARE_S
            self._wake()
        if self._waiting or now >= self._ends:
            self._waiting.setdefault(reader, now)
        else:
            reader.read()

    def drop(self, reader: Reader) -> None:
        """It has nothing to read any more."""
        self._waiting.pop(reader, None)

    @property
    def behind(self) -> bool:
        """Whether anything waits for a later turn."""
        return bool(self._waiting)

    def _wake(self) -> None:
        self._awake = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._awake = False
        self._ends = self._clock() + SHARE_S
        try:
            while self._waiting and (now := self._clock()) < self._ends:
                oldest, since = next(iter(self._waiting.items()))
                reader = oldest if now - since <= STALE_S else next(reversed(self._waiting))
                del self._waiting[reader]
                reader.read()
        finally:
            if self._waiting:
                self._wake()
