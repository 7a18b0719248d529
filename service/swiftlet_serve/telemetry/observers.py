"""Observers of finished requests: the log of cut texts, and traces and the access log if the settings ask for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError
from swiftlet_serve.telemetry import access_log
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.telemetry.truncation_log import TruncationLog

if TYPE_CHECKING:
    from swiftlet_serve.telemetry.tracing import Tracer

log = logging.getLogger(__name__)

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
