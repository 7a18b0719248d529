"""Traces for OpenTelemetry: of each request to a task a span, and in it one for each stage. Needs the extra `otel`.

Spans are made when a request has ended, from the times in its record, so a request that is answered pays for them after
its answer. They hold what the access log holds, and never any text.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from swiftlet_serve.service.telemetry.request_record import RequestRecord, Span

CLOSE_S: Final = 1.0  # for what has not been sent yet: a collector that hangs keeps nobody


class Tracer:
    """Makes spans of records."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        """`version` is that of the service. OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER and so on count."""
        named = {SERVICE_VERSION: version} | ({} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "swiftlet"})
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("swiftlet", version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def sending(cls, endpoint: str | None, version: str) -> Tracer:
        """Sends them by OTLP over HTTP; None: to where OTEL_EXPORTER_OTLP_ENDPOINT says."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint)), version)

    def note(self, record: RequestRecord) -> None:
        """Traces a request to a task, as part of its caller's trace if there is one."""
        if not record.task:
            return
        ahead_ns = time.time_ns() - time.monotonic_ns()
        parent = self._propagator.extract({"traceparent": record.traceparent} if record.traceparent else {})
        root = self._tracer.start_span(
            f"{record.method} {record.route}",
            parent,
            trace.SpanKind.SERVER,
            _attributes(record),
            start_time=_ns(record.began, ahead_ns),
        )
        if record.status is None or record.status >= 500:
            root.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(root)
        for stage, span in record.stages.items():
            self._stage(stage, span, inside, ahead_ns)
        root.end(_ns(record.ended, ahead_ns))

    def _stage(self, name: str, span: Span, inside: Context, ahead_ns: int) -> None:
        child = self._tracer.start_span(name, inside, start_time=_ns(span.began, ahead_ns))
        child.end(_ns(span.ended, ahead_ns))

    def close(self) -> None:
        """Sends what has not been sent, if that does not take long."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _ns(at_s: float, ahead_ns: int) -> int:
    """A moment of the monotonic clock, as nanoseconds since 1970."""
    return round(1e9 * at_s) + ahead_ns


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "swiftlet.request_id": record.id,
        "swiftlet.task": record.task,
        "swiftlet.model": record.model,
        "swiftlet.rows": record.rows,
        "swiftlet.tokens": record.tokens,
        "swiftlet.batch_rows": record.batch_rows,
    }
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    if record.code:
        attributes["error.type"] = record.code
    return attributes
