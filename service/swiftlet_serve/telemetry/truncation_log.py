"""A log line about cut texts, at most once a minute. The metric of cut texts counts all of them."""

from __future__ import annotations

import logging
import math
from collections import Counter
from typing import Final

from swiftlet_serve.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0


class TruncationLog:
    """Counts the cut texts of each model since the last line. Each process of a server has its own."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged = -math.inf  # when the last line was written

    def observe(self, record: RequestRecord) -> None:
        """Counts the cut texts of a finished request, and writes the line if it is due."""
        if not record.accepted or not record.truncated:
            return
        self._counts[record.model] += len(record.truncated)
        if record.ended - self._logged >= INTERVAL_S:
            counts = ", ".join(f"{count} by {model}" for model, count in sorted(self._counts.items()))
            log.warning("texts cut to the model's limit of tokens: %s; X-Truncated tells the clients", counts)
            self._counts.clear()
            self._logged = record.ended
