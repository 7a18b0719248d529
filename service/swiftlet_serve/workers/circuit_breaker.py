"""Circuit breaker of an engine: decides when to probe it, when to replace it and when to reject calls."""

from __future__ import annotations

from typing import Final

FAILURE_THRESHOLD: Final = 8
"""Consecutive failed calls after which the engine is probed."""


class CircuitBreaker:
    """Counts consecutive failed calls and consecutive failed probes of an engine.

    A client can send inputs that make every engine fail. Failed calls alone thus never open the breaker. After
    `threshold` failures the engine is probed with an input that it must be able to answer. If the probe fails, the
    engine is replaced and the new engine is probed. If that probe fails too, the breaker opens until a probe succeeds.
    While it is open, the engine is replaced again each time the number of failed probes has doubled.
    """

    def __init__(self, threshold: int = FAILURE_THRESHOLD) -> None:
        self._threshold = threshold
        self._failed_calls = 0
        self._failed_probes = 0

    def record_call(self, good: bool) -> bool:
        """Counts a call. Returns True if the engine must be probed now."""
        self._failed_calls = 0 if good else self._failed_calls + 1
        return self._failed_calls >= self._threshold

    def record_probe(self, good: bool) -> bool:
        """Counts a probe. Returns True if the engine must be replaced now."""
        self._failed_calls = 0
        self._failed_probes = 0 if good else self._failed_probes + 1
        return self._failed_probes.bit_count() == 1

    @property
    def open(self) -> bool:
        """Whether calls are rejected."""
        return self._failed_probes > 1
