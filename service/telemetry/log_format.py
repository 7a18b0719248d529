"""How a line of the log is written: for a person, or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Final

TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MOST: Final = 16_384  # characters of a message: a line is an event, and nobody's flood


def formatter(kind: str) -> logging.Formatter:
    """Of "text" or "json"."""
    return Json() if kind == "json" else logging.Formatter(TEXT)


class Json(logging.Formatter):
    """A line of JSON for each record, whatever it holds. A record that brings fields has those for its message."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        said = getattr(record, "fields", None) or {"message": super().format(record)[:MOST]}
        return json.dumps(line | said)
