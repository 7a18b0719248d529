"""Ends a process whose event loop is blocked, so that its supervisor can restart it."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
TIMEOUT_S: Final = 5.0


class Watchdog:
    """Counts its own ticks since the event loop last responded.

    Counting ticks instead of reading a clock spares a process that was suspended as a whole: the watchdog then misses
    the same ticks.
    """

    def __init__(self, on_blocked: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
        """Creates a watchdog; `on_blocked` is called on another thread if the loop is blocked for `timeout_s`."""
        self._max_missed = round(timeout_s / TICK_S)
        self._on_blocked = on_blocked
        self._missed = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        """Watches the running event loop of the calling thread."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _reset(self) -> None:
        self._missed = 0

    def _watch(self) -> None:
        while not self._stopped.wait(TICK_S):
            self._missed += 1
            if self._missed > self._max_missed:
                log.critical("The event loop is blocked; ending the process. Stack of its thread:\n%s", self._stack())
                self._on_blocked()
                return
            try:
                self._loop.call_soon_threadsafe(self._reset)
            except RuntimeError:  # the loop is closed
                return

    def _stack(self) -> str:
        """Returns the watched thread's stack: frames and lines of code, without values."""
        frame = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame))
