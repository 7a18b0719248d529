"""Observers of finished requests: the log of cut texts, and traces and the access log if the settings ask for them."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError
from swiftlet_serve.telemetry import access_log
from swiftlet_serve.telemetry.request_record import RequestRecord

if TYPE_CHECKING:
    from swiftlet_serve.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

TRUNCATION_LOG_S: Final = 60.0
OTLP_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Observers:
    """The observers, and the tracer that sends on its own thread."""

    def __init__(self, tracer: Tracer | None, *, logs: bool) -> None:
        self.all: list[Callable[[RequestRecord], None]] = [
            TruncationLog().observe,
            *([access_log.log_request] if logs else []),
            *([tracer.trace_request] if tracer else []),
        ]
        self._tracer = tracer

    @classmethod
    def create(cls, traces_endpoint: str | None, version: str, *, logs: bool) -> Observers:
        """Creates the observers.

        Args:
            traces_endpoint: the setting; the environment may ask for traces too.
            version: the version of Swiftlet.
            logs: whether there is an access log.

        Raises:
            SetupError: the settings ask for traces, and OpenTelemetry is not installed.
        """
        return cls(_create_tracer(traces_endpoint, version), logs=logs)

    def close(self) -> None:
        """Sends the traces that were not sent yet."""
        if self._tracer:
            self._tracer.close()


def _create_tracer(endpoint: str | None, version: str) -> Tracer | None:
    """Creates the tracer if the settings or the environment ask for traces.

    Raises:
        SetupError: the settings ask for traces, and OpenTelemetry is not installed.
    """
    if endpoint is None and not any(os.environ.get(name) for name in OTLP_VARIABLES):
        return None
    try:
        from swiftlet_serve.telemetry.tracing import Tracer
    except ModuleNotFoundError as error:
        message = f"Traces need the package {error.name!r}. Run: {extras.installation('otel')}"
        if endpoint is not None:
            raise SetupError(message) from None
        log.warning("Tracing is disabled. %s", message)  # the variables may be meant for another program
        return None
    return Tracer.over_http(endpoint, version)


class TruncationLog:
    """A log line about cut texts, at most every `TRUNCATION_LOG_S`. The metric of cut texts counts all of them.

    Counts the cut texts of each model since the last line. Each process of a server has its own.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged = -math.inf  # when the last line was written

    def observe(self, record: RequestRecord) -> None:
        """Counts the cut texts of a finished request, and writes the line if it is due."""
        if not record.accepted or not record.truncated:
            return
        self._counts[record.model] += len(record.truncated)
        if record.ended - self._logged >= TRUNCATION_LOG_S:
            counts = ", ".join(f"{count} by {model}" for model, count in sorted(self._counts.items()))
            log.warning("texts cut to a limit of tokens: %s; X-Truncated tells the clients", counts)
            self._counts.clear()
            self._logged = record.ended
