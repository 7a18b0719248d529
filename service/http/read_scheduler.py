"""Scheduling of socket reads, so that a burst of requests does not block the event loop.

An event loop delivers everything that is readable in one iteration. Responses and engine calls wait until the last read
is processed. At ten times the capacity of a server that takes a tenth of a second, mostly spent on refusals, while
engines are idle. The scheduler therefore gives reads a time budget per iteration and defers the rest.

The oldest read runs first. Reads that wait for longer than `STALE_S` switch the order to newest first, because the
newest requests have the most time left (adaptive LIFO, as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

BUDGET_S: Final = 0.001  # per iteration: ten refusals, and less than a small batch takes
STALE_S: Final = 0.1


class Reader(Protocol):
    """A connection with received bytes to process."""

    def read(self) -> None:
        """Processes the bytes. Must not raise."""


class ReadScheduler:
    """Runs the reads of one event loop within a time budget per iteration."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deferred: dict[Reader, float] = {}  # with the time of deferral, oldest first
        self._budget_end = 0.0
        self._scheduled = False  # whether `_run` is called in the next iteration

    def schedule(self, reader: Reader) -> None:
        """Runs `reader.read` now if the iteration has budget left, and otherwise in a later iteration."""
        now = self._clock()
        if not self._scheduled:
            self._budget_end = now + BUDGET_S
            self._schedule_run()
        if self._deferred or now >= self._budget_end:
            self._deferred.setdefault(reader, now)
        else:
            reader.read()

    def cancel(self, reader: Reader) -> None:
        """Removes a deferred read."""
        self._deferred.pop(reader, None)

    @property
    def has_backlog(self) -> bool:
        """Whether reads are deferred to a later iteration."""
        return bool(self._deferred)

    def _schedule_run(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._budget_end = self._clock() + BUDGET_S
        try:
            while self._deferred and (now := self._clock()) < self._budget_end:
                oldest, since = next(iter(self._deferred.items()))
                reader = oldest if now - since <= STALE_S else next(reversed(self._deferred))
                del self._deferred[reader]
                reader.read()
        finally:
            if self._deferred:
                self._schedule_run()
