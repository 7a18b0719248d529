"""Access log: one line per request, with names, numbers and durations but no text of the request."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from swiftlet_serve.telemetry.request_record import RequestRecord

log = logging.getLogger(__name__)

TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def log_request(record: RequestRecord) -> None:
    """Logs a finished request. Only known routes are logged: any other path may contain a user's text."""
    fields = {name: value for name, value in _fields(record).items() if value not in (None, "")}
    log.info("%s", " ".join(f"{name}={value}" for name, value in fields.items()), extra={"fields": fields})


def _fields(record: RequestRecord) -> dict[str, Any]:
    match = TRACEPARENT.fullmatch(record.traceparent or "")
    return {
        "request_id": record.id,
        "trace_id": match and match[1],
        "client": record.client,
        "method": record.method,
        "route": record.route,
        "model": record.model,
        "status": record.status,
        "code": record.code if record.status else "disconnected",
        "ms": round(1000 * record.duration_s, 3),
        **{f"{stage}_ms": round(1000 * span.duration_s, 3) for stage, span in record.stages.items()},
        "characters": record.characters or None,
        "sequences": record.sequences or None,
        "tokens": record.tokens or None,
        "truncated": len(record.truncated) or None,
        "batch_size": record.batch_size or None,
        "bytes": record.body_bytes or None,
    }
