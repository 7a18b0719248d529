"""Decides when an engine that answers nothing any more is replaced, and when nobody shall be sent to it."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 8
"""Calls in a row that fail before it is asked whether the engine is broken, or only what it is asked."""


class Breaker:
    """Counts the calls in a row of which no row came back, and the trials after that.

    Calls alone condemn no engine: anybody may send what no engine can answer. At `limit` of them the engine is tried
    with an input that it must be able to answer. If it does, nothing was wrong with it. If it does not it is replaced,
    and the new one is tried. If that fails too, to replace it was no help: the breaker is open until a trial succeeds,
    and the engine is replaced again whenever the number of failed trials has doubled.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._failures = 0
        self._trials = 0  # that failed

    def note(self, good: bool) -> bool:
        """Counts a call; says whether the engine is to be tried now."""
        self._failures = 0 if good else self._failures + 1
        return self._failures >= self._limit

    def tried(self, good: bool) -> bool:
        """Counts a trial; says whether the engine is to be replaced now."""
        self._failures = 0
        self._trials = 0 if good else self._trials + 1
        return self._trials.bit_count() == 1

    @property
    def open(self) -> bool:
        return self._trials > 1
