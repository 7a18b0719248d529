"""Metrics in the formats of Prometheus: every metric with its name, labels and help text.

Label values come from closed sets: served models and their tasks, stages, outcomes and error codes. A client can
never create a time series. Series exist from the start, with zeros, except for responses and dialects.
"""

from __future__ import annotations

import asyncio
import gzip
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from swiftlet_serve import build_info
from swiftlet_serve.errors import SwiftletError, Unavailable
from swiftlet_serve.telemetry import endpoint_metrics, repository_metrics
from swiftlet_serve.telemetry.families import PREFIX, by_reason, counter, gauge, total
from swiftlet_serve.telemetry.families import histogram as new_histogram
from swiftlet_serve.telemetry.histogram import Histogram
from swiftlet_serve.telemetry.request_record import STAGES
from swiftlet_serve.telemetry.request_stats import DISCONNECTED, OUTCOMES, ModelStats, Sampled
from swiftlet_serve.telemetry.snapshot import Snapshot, SnapshotSource

TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
QUALITY: Final = re.compile(r"[01](\.[0-9]{0,3})?")  # RFC 9110, section 12.4.2
FORMATS: Final = {
    TEXT: "text/plain; version=0.0.4; charset=utf-8",
    OPENMETRICS: "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
"""The media types of the formats. OpenMetrics adds exemplars."""

GZIP_LEVEL: Final = 1  # on repetitive text, as small as level 6 to a fifth, in a third of the time
SNAPSHOT_TIMEOUT_S: Final = 5.0  # half of Prometheus's default scrape timeout
ERROR_CODES: Final = tuple(sorted(code for kind in SwiftletError.__subclasses__() for code in kind.codes))
SERVER_ERROR_CODES: Final = tuple(
    sorted(code for kind in SwiftletError.__subclasses__() if kind.status >= 500 for code in kind.codes)
)
MODEL_LABELS: Final = ("task", "model")


class Scrape(NamedTuple):
    """The metrics, in one of the formats of `FORMATS`."""

    body: bytes
    media_type: str
    encoding: str | None  # gzip or None


async def scrape(runtime: SnapshotSource, accept: str = "", accept_encoding: str = "") -> Scrape:
    """Returns the metrics in the format that a client prefers. Can be called from any event loop.

    All values are of one moment: they are copied on the runtime's event loop and formatted on a thread.

    Args:
        runtime: the server.
        accept: the value of the header Accept.
        accept_encoding: the value of the header Accept-Encoding.

    Raises:
        Unavailable: the runtime's event loop is blocked.
    """
    future = asyncio.run_coroutine_threadsafe(runtime.snapshot(), runtime.loop)
    try:
        snapshot = await asyncio.wait_for(asyncio.wrap_future(future), SNAPSHOT_TIMEOUT_S)
    except TimeoutError:
        detail = "Metrics are temporarily unavailable because the event loop is blocked."
        raise Unavailable("overloaded", detail, retry_after=1.0) from None
    return await asyncio.to_thread(_format, snapshot, accept, accept_encoding)


def _format(snapshot: Snapshot, accept: str, accept_encoding: str) -> Scrape:
    media_type = preferred(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    pid = snapshot.pid
    ProcessCollector(pid=lambda: "self" if pid is None else str(pid), registry=registry)
    generate = openmetrics.generate_latest if media_type == OPENMETRICS else generate_latest
    body = generate(registry)
    if any(name == "gzip" and quality > 0 for name, quality in qualities(accept_encoding)):
        return Scrape(gzip.compress(body, GZIP_LEVEL), FORMATS[media_type], "gzip")
    return Scrape(body, FORMATS[media_type], None)


def preferred(accept: str) -> str:
    """Returns the media type of `FORMATS` that a header Accept ranks highest; plain text if it has none of them."""
    best, best_quality = TEXT, 0.0
    for media_type, quality in qualities(accept):
        if media_type in FORMATS and quality > best_quality:
            best, best_quality = media_type, quality
    return best


def qualities(header: str) -> Iterator[tuple[str, float]]:
    """Yields the values that a header Accept or Accept-Encoding lists, with their qualities. Leaves out wrong ones."""
    for item in header.split(","):
        value, *parameters = [part.strip().lower() for part in item.split(";")]
        quality = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if QUALITY.fullmatch(quality):
            yield value, float(quality)


class SnapshotCollector(Collector):
    """Converts one snapshot to metrics."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._models = [([stats.task, model], stats) for model, stats in snapshot.stats.models.items()]

    def collect(self) -> Iterator[Metric]:
        yield from self._accepted_requests()
        yield from self._refused_requests()
        yield from self._batches()
        yield from self._queue()
        yield from self._engine()
        if self._snapshot.stats.endpoint is not None:
            yield from endpoint_metrics.collect(self._snapshot.stats.endpoint, self._add)
        if self._snapshot.repository is not None:
            yield from repository_metrics.collect(self._snapshot.repository, self._snapshot.stats.versions, self._add)

    def _accepted_requests(self) -> Iterator[Metric]:
        yield self._counter(
            "requests_accepted",
            "Total accepted requests. A request is accepted once all of its sequences are queued.",
            lambda stats: stats.accepted,
        )
        finished = counter(
            "requests_finished",
            "Total accepted requests that have ended, by outcome. answered includes client errors; failed: status 500 "
            "or higher; cancelled: the client disconnected. Accepted = answered + failed + cancelled + in flight.",
            [*MODEL_LABELS, "outcome"],
        )
        durations = new_histogram(
            "request_duration_seconds",
            "Duration of accepted requests, from their headers to the response.",
            [*MODEL_LABELS, "outcome"],
        )
        stages = new_histogram(
            "request_stage_duration_seconds",
            "Duration of the stages of accepted requests. parse: body to request; encode: text to tokens; queue: wait "
            "for a core; batch: packing and transport of the batch; infer: the engine's own time; decode: rows to "
            "response. For a request with several sequences, the slowest sequence counts.",
            [*MODEL_LABELS, "stage"],
        )
        for labels, stats in self._models:
            for outcome in OUTCOMES:
                finished.add_metric([*labels, outcome], stats.durations[outcome].count)
                exemplars = stats.exemplars if outcome == "answered" else {}
                self._add(durations, [*labels, outcome], stats.durations[outcome], exemplars)
            for stage in STAGES:
                self._add(stages, [*labels, stage], stats.stages[stage])
        yield finished
        in_flight = GaugeMetricFamily(
            PREFIX + "requests_in_flight", "Accepted requests that have not ended.", labels=MODEL_LABELS
        )
        for labels, stats in self._models:
            in_flight.add_metric(labels, stats.in_flight)
        yield in_flight
        yield durations
        yield stages
        yield by_reason(
            "requests_failed",
            "Total accepted requests that failed, by error code. deadline_exceeded includes deadline_too_short.",
            SERVER_ERROR_CODES,
            self._snapshot.stats.failed,
        )

    def _refused_requests(self) -> Iterator[Metric]:
        stats = self._snapshot.stats
        spoken = counter(
            "dialect_requests",
            "Total requests in the protocols of other servers, by dialect and class of the status, or disconnected. "
            "They are also in the metrics of all requests.",
            ["dialect", "status"],
        )
        for (dialect, status), count in sorted(stats.dialects.items()):
            spoken.add_metric([dialect, status], count)
        yield spoken
        responses = counter(
            "http_responses",
            "Total responses of all ports by route and status, with those to requests in batches. The route is - if "
            "the server has no such route.",
            ["route", "status"],
        )
        for (route, code), count in sorted(stats.responses.items()):
            responses.add_metric([route, str(code)], count)
        yield responses
        yield by_reason(
            "requests_refused",
            "Total requests that ended before they were accepted, by error code or as disconnected. deadline_exceeded "
            "includes deadline_too_short.",
            (*ERROR_CODES, DISCONNECTED),
            stats.refused,
        )
        yield total(
            "bulk_requests_shed",
            "Total requests of the priority bulk that were refused as overloaded.",
            stats.bulk_shed,
        )
        yield total(
            "deadline_exceeded",
            "Total requests answered with status 504, whether accepted or not.",
            stats.deadline_exceeded,
        )
        unmet = new_histogram(
            "unmet_deadline_seconds",
            "Timeouts requested by clients and not met, by reason: status 504, or an interactive request refused as "
            "overloaded.",
            ["reason"],
        )
        for reason, histogram in stats.unmet_deadlines.items():
            self._add(unmet, [reason], histogram)
        yield unmet

    def _batches(self) -> Iterator[Metric]:
        sizes = new_histogram("batch_size", "Sequences per engine batch.", MODEL_LABELS)
        tokens = new_histogram("batch_tokens", "Tokens per engine batch, without padding.", MODEL_LABELS)
        for labels, stats in self._models:
            self._add(sizes, labels, stats.batch_sizes)
            self._add(tokens, labels, stats.batch_tokens)
        yield sizes
        yield tokens
        yield self._counter(
            "truncated_texts",
            "Total texts that were cut to a limit of tokens, of accepted requests. A text or a pair of them "
            "counts once in each request.",
            lambda stats: stats.truncated_texts,
        )
        yield self._counter(
            "padding_tokens",
            "Total padding tokens. The padding ratio is padding tokens / (padding tokens + batch tokens).",
            lambda stats: stats.padding_tokens,
        )

    def _queue(self) -> Iterator[Metric]:
        queue = self._snapshot.queue
        yield gauge(
            "queue_wait_seconds",
            "Queueing time of an interactive request that arrives now, behind all that is queued.",
            queue.wait_s,
        )
        yield gauge("queue_oldest_age_seconds", "Age of the oldest queued sequence.", queue.oldest_age_s)
        yield gauge("queue_sequences", "Queued sequences.", queue.sequences)
        yield gauge("queue_tokens", "Tokens of the queued sequences.", queue.tokens)
        yield gauge("batches_running", "Batches that the engine is running.", queue.running_batches)
        yield gauge(
            "engine_cores",
            "CPU cores of the engine. Each core runs one batch at a time. At utilisation 1 all are busy.",
            self._snapshot.cores,
        )
        yield total("engine_busy_seconds", "Total time that batches have run, summed over all cores.", queue.busy_s)

    def _engine(self) -> Iterator[Metric]:
        yield gauge("engine_ready", "Whether an engine is available (1) or not (0).", self._snapshot.ready)
        yield total("engine_restarts", "Total worker processes that died or were killed.", self._snapshot.restarts)
        yield total(
            "kernel_wrong_sums",
            "Total wrong sums that the engine found in its own work. The calls concerned were computed again.",
            self._snapshot.kernel_faults,
        )
        yield from self._workers()
        yield gauge("fronts", "Front processes that answer requests; 0 if the server has none.", self._snapshot.fronts)
        yield total("front_restarts", "Total front processes that died or were killed.", self._snapshot.front_restarts)
        yield gauge("connections", "Open connections of clients on the public port.", self._snapshot.connections)
        yield total(
            "crowded_requests",
            "Total pages and pipelined requests that waited because such requests had filled their fifth of the event "
            "loop for a second or longer. Requests that run a model do not wait for them.",
            self._snapshot.stats.crowded,
        )
        yield gauge(
            "event_loop_lag_seconds",
            "Largest delay of the event loop in the last minute: how late it ran a timer. Every request waits as long.",
            self._snapshot.loop_lag_s,
        )
        build = GaugeMetricFamily(
            PREFIX + "build_info",
            "The version of Swiftlet, the Git commit of its source and the version of Python. The value is always 1.",
            labels=["version", "revision", "python"],
        )
        build.add_metric([build_info.version(), build_info.revision(), platform.python_version()], 1)
        yield build
        names = ["model", "task", "architecture", "precision", "engine", "version"]
        info = GaugeMetricFamily(PREFIX + "model_info", "Served models. The value is always 1.", labels=names)
        for model in self._snapshot.models:
            info.add_metric(list(model), 1)
        yield info

    def _workers(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            PREFIX + "worker_resident_memory_bytes",
            "Memory of the worker processes by role: serving and spare hold the models, and fronts have a number. "
            "Weights that processes share count in each.",
            labels=["worker"],
        )
        cpu = counter("worker_cpu_seconds", "Total CPU time of the worker processes, by role.", ["worker"])
        for role, pid in self._snapshot.workers.items():
            families = ProcessCollector(pid=partial(str, pid), registry=None).collect()
            families_of = {family.name: family for family in families}
            if families_of:  # empty if the process has just ended, or without /proc
                memory.add_metric([role], families_of["process_resident_memory_bytes"].samples[0].value)
                cpu.add_metric([role], families_of["process_cpu_seconds"].samples[0].value)
        yield memory
        yield cpu

    def _add(
        self,
        family: HistogramMetricFamily,
        labels: Sequence[str],
        histogram: Histogram,
        exemplars: Mapping[int, Sampled] = MappingProxyType({}),
    ) -> None:
        bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
        buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
        for at, (bound, count) in enumerate(zip(bounds, accumulate(histogram.counts), strict=True)):
            if (exemplar := exemplars.get(at)) is None:
                buckets.append((bound, count))
            else:
                buckets.append((bound, count, Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.at)))
        family.add_metric(labels, buckets, sum_value=histogram.sum)

    def _counter(self, name: str, help_: str, value: Callable[[ModelStats], float]) -> Metric:
        family = counter(name, help_, MODEL_LABELS)
        for labels, stats in self._models:
            family.add_metric(labels, value(stats))
        return family
