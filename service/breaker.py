"""Decides when an engine that answers nothing any more is replaced, and when nobody shall be sent to it."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 8
"""Calls in a row that fail before the engine is thought to be broken, rather than what it is asked."""


class Breaker:
    """Counts the calls in a row of which no row came back.

    At `limit` of them the engine is to be replaced. At twice as many a new one was no help: the breaker is open until a
    call succeeds. Each time that their number has doubled once more, the engine is replaced again.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._failures = 0

    def note(self, good: bool) -> bool:
        """Counts a call; says whether the engine is to be replaced now."""
        self._failures = 0 if good else self._failures + 1
        limits, rest = divmod(self._failures, self._limit)
        return rest == 0 and limits.bit_count() == 1

    @property
    def open(self) -> bool:
        return self._failures >= 2 * self._limit
