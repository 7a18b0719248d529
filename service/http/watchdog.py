"""Ends a process whose event loop is blocked, so that whoever supervises it starts another."""

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
PATIENCE_S: Final = 5.0


class Watchdog:
    """Counts its own ticks since the event loop last showed itself.

    It counts, and reads no clock: a process that was stopped or starved as a whole has missed the same ticks, and is
    not blamed for it.
    """

    def __init__(self, end: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """`end` is called, on another thread, where the loop has been blocked for `patience_s`."""
        self._ticks = round(patience_s / TICK_S)
        self._end = end
        self._missed = 0
        self._stop = threading.Event()

    def start(self) -> None:
        """Watches the running event loop, which must be that of the calling thread."""
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _seen(self) -> None:
        self._missed = 0

    def _watch(self) -> None:
        while not self._stop.wait(TICK_S):
            self._missed += 1
            if self._missed > self._ticks:
                log.critical("The event loop is blocked; ending the process. It is here:\n%s", self._stack())
                self._end()
                return
            try:
                self._loop.call_soon_threadsafe(self._seen)
            except RuntimeError:  # it is closed
                return

    def _stack(self) -> str:
        """Where the watched thread is: frames and lines of code, no values."""
        frame = sys._current_frames().get(self._watched)
        return "".join(traceback.format_stack(frame))
