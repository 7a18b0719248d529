"""The log: written by a thread of its own, so that nobody waits for whoever reads it."""

from __future__ import annotations

import logging
import queue
import threading
from logging.handlers import QueueHandler
from typing import Final

from swiftlet_serve.service.telemetry import log_format

MAX_WAITING: Final = 1000  # records: beyond it they are dropped, counted and told
CLOSE_S: Final = 1.0


class Logs(QueueHandler):
    """Hands records to a thread that writes them to standard error; what that cannot keep up with is dropped."""

    def __init__(self, level: str, writer: logging.Handler | None = None, kind: str = "text") -> None:
        """`kind` is that of the lines, "text" or "json"."""
        self._waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_WAITING)
        super().__init__(self._waiting)
        self.setFormatter(logging.Formatter("%(message)s"))  # the writer adds the rest
        self._writer = writer or logging.StreamHandler()
        self._writer.setFormatter(log_format.formatter(kind))
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        logging.basicConfig(level=level, handlers=[self], force=True)

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def end(self) -> bool:
        """Writes what waits; says whether it could within a second. Nothing may be logged afterwards."""
        try:
            self._waiting.put(None, timeout=CLOSE_S)
        except queue.Full:
            return False
        self._thread.join(CLOSE_S)
        return not self._thread.is_alive()

    def _write(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._writer.handle(record)
            if dropped := self._dropped:
                self._dropped = 0
                told = "%d messages were dropped: nobody reads the log fast enough"
                self._writer.handle(logging.LogRecord(__name__, logging.WARNING, "", 0, told, (dropped,), None))
