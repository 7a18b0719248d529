"""Measures the lag of the event loop: the delay of a timer that fires twice a second."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

INTERVAL_S: Final = 0.5
WINDOW_S: Final = 60.0  # as long as Prometheus's default scrape interval, so that no scrape misses a delay


class EventLoopLag:
    """Measures one event loop, between `start` and `stop`."""

    def __init__(self) -> None:
        self._delays: deque[float] = deque(maxlen=round(WINDOW_S / INTERVAL_S))
        self._timer: asyncio.TimerHandle | None = None

    @property
    def largest_s(self) -> float:
        """The largest delay within the last `WINDOW_S`, in seconds."""
        return max(self._delays, default=0.0)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts measuring a loop. Must be called on it."""
        due = loop.time() + INTERVAL_S
        self._timer = loop.call_at(due, self._fire, loop, due)

    def stop(self) -> None:
        """Stops measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._delays.append(max(0.0, loop.time() - due))
        self.start(loop)
