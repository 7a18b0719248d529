"""OpenTelemetry traces: one span per task request, with one child span per stage. Requires the extra `otel`.

Spans are built from the request record after the response was sent, so tracing does not delay it. They hold the same
data as the access log, and never any text of the request.
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

from swiftlet_serve.telemetry.request_record import RequestRecord, Span

CLOSE_TIMEOUT_S: Final = 1.0  # a collector that hangs must not delay shutdown


class Tracer:
    """Converts request records to spans."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        """Creates a tracer; `version` is the service's. The OTEL_* environment variables take effect."""
        named = {SERVICE_VERSION: version} | ({} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: "swiftlet"})
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("swiftlet", version)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def over_http(cls, endpoint: str | None, version: str) -> Tracer:
        """Returns a tracer that exports by OTLP over HTTP. The default endpoint is OTEL_EXPORTER_OTLP_ENDPOINT."""
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint)), version)

    def trace_request(self, record: RequestRecord) -> None:
        """Exports the spans of a finished task request, within the caller's trace if the request names one."""
        if not record.task:
            return
        offset_ns = time.time_ns() - time.monotonic_ns()
        parent = self._propagator.extract({"traceparent": record.traceparent} if record.traceparent else {})
        root = self._tracer.start_span(
            f"{record.method} {record.route}",
            parent,
            trace.SpanKind.SERVER,
            _attributes(record),
            start_time=_unix_ns(record.started, offset_ns),
        )
        if (context := root.get_span_context()).trace_flags.sampled:
            record.trace_id = trace.format_trace_id(context.trace_id)
        if record.status is None or record.status >= 500:
            root.set_status(trace.StatusCode.ERROR)
        parent = trace.set_span_in_context(root)
        for stage, span in record.stages.items():
            self._add_child(stage, span, parent, offset_ns)
        root.end(_unix_ns(record.ended, offset_ns))

    def _add_child(self, name: str, span: Span, context: Context, offset_ns: int) -> None:
        child = self._tracer.start_span(name, context, start_time=_unix_ns(span.started, offset_ns))
        child.end(_unix_ns(span.ended, offset_ns))

    def close(self) -> None:
        """Exports the remaining spans. Gives up after `CLOSE_TIMEOUT_S`."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)


def _unix_ns(monotonic_s: float, offset_ns: int) -> int:
    """Converts a time of the monotonic clock to nanoseconds since 1970."""
    return round(1e9 * monotonic_s) + offset_ns


def _attributes(record: RequestRecord) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "swiftlet.request_id": record.id,
        "swiftlet.task": record.task,
        "swiftlet.model": record.model,
        "swiftlet.sequences": record.sequences,
        "swiftlet.tokens": record.tokens,
        "swiftlet.batch_size": record.batch_size,
    }
    if record.status is not None:
        attributes["http.response.status_code"] = record.status
    if record.code:
        attributes["error.type"] = record.code
    return attributes
