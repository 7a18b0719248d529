"""Deferred handling of SIGINT and SIGTERM, so that a run saves a checkpoint before it stops."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class DeferredInterrupt:
    """Defers the first SIGINT or SIGTERM while it is entered. A second signal takes effect at once.

    Ignored signals stay ignored. Outside the main thread, where Python delivers no signals, nothing is deferred.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The deferred signal."""
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._handlers[number] = signal.signal(number, self._defer)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore_handlers()

    def deliver(self) -> None:
        """Raises the deferred signal again, if there is one."""
        if self.signal is not None:
            signal.raise_signal(self.signal)

    def _defer(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002  # the signature of a handler
        self.signal = number
        self._restore_handlers()

    def _restore_handlers(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
