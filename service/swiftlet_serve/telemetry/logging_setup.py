"""Logging: formats of log lines, and a handler that writes them on its own thread.

A slow reader of stderr therefore never blocks the event loop.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from typing import Any, Final, NoReturn

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_MESSAGE_CHARACTERS: Final = 16_384  # longer messages are cut in JSON lines
MAX_QUEUED_RECORDS: Final = 1000  # further records are dropped and counted
CLOSE_TIMEOUT_S: Final = 1.0


def make_formatter(kind: str) -> logging.Formatter:
    """Returns the formatter for log lines of the kind "text" or "json"."""
    return JsonFormatter() if kind == "json" else logging.Formatter(TEXT_FORMAT)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON. The `fields` of a record, if it has any, replace its message."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, "fields", None) or {"message": super().format(record)[:MAX_MESSAGE_CHARACTERS]}
        return json.dumps(line | fields)


class QueuedLogHandler(QueueHandler):
    """Root log handler. A thread writes queued records to stderr; records beyond the queue's capacity are dropped."""

    def __init__(self, level: str, writer: logging.Handler | None = None, kind: str = "text") -> None:
        """Installs the handler on the root logger. `kind` is the format of the lines, "text" or "json"."""
        self._records: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_QUEUED_RECORDS)
        super().__init__(self._records)
        self.setFormatter(logging.Formatter("%(message)s"))  # the writer adds time, level and name
        self._writer = writer or logging.StreamHandler()
        self._writer.setFormatter(make_formatter(kind))
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()
        logging.basicConfig(level=level, handlers=[self], force=True)

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def flush_and_stop(self) -> bool:
        """Writes all queued records. Returns False on timeout. No record may be logged afterwards."""
        try:
            self._records.put(None, timeout=CLOSE_TIMEOUT_S)
        except queue.Full:
            return False
        self._thread.join(CLOSE_TIMEOUT_S)
        return not self._thread.is_alive()

    def exit(self, status: int) -> NoReturn:
        """Writes the queued records and ends the process at once, without waiting for its other threads."""
        self.flush_and_stop()
        os._exit(status)

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            self._writer.handle(record)
            if dropped := self._dropped:
                self._dropped = 0
                message = "%d log messages were dropped: the reader of stderr is too slow"
                self._writer.handle(logging.LogRecord(__name__, logging.WARNING, "", 0, message, (dropped,), None))
