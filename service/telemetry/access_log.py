"""The access log: a line for each request. It has names, numbers and times, and nothing of what was asked."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from swiftlet_serve.service.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def note(record: RequestRecord) -> None:
    """Logs a request. Its address is told only where it is one of the server's: any other may be somebody's text."""
    fields = {name: value for name, value in _fields(record).items() if value not in (None, "")}
    log.info("%s", " ".join(f"{name}={value}" for name, value in fields.items()), extra={"fields": fields})


def _fields(record: RequestRecord) -> dict[str, Any]:
    found = TRACE.fullmatch(record.traceparent or "")
    return {
        "request_id": record.id,
        "trace_id": found and found[1],
        "client": record.client,
        "method": record.method,
        "route": record.route,
        "model": record.model,
        "status": record.status,
        "code": record.code if record.status else "disconnected",
        "ms": round(1000 * record.seconds, 3),
        **{f"{stage}_ms": round(1000 * span.seconds, 3) for stage, span in record.stages.items()},
        "characters": record.characters or None,
        "rows": record.rows or None,
        "tokens": record.tokens or None,
        "batch_rows": record.batch_rows or None,
        "bytes": record.received or None,
    }
