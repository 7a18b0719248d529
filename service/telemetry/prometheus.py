"""Metrics in the Prometheus text format: every metric with its name, labels and help text.

Label values come from closed sets: served models and their tasks, stages, outcomes and error codes. A client can
never create a time series. All series exist from the start, with zeros.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from swiftlet_serve.service.errors import SwiftletError, Unavailable
from swiftlet_serve.service.telemetry.request_record import STAGES
from swiftlet_serve.service.telemetry.request_stats import DISCONNECTED, OUTCOMES, Histogram, ModelStats
from swiftlet_serve.service.telemetry.snapshot import Snapshot, SnapshotSource

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "swiftlet_"
SNAPSHOT_TIMEOUT_S: Final = 5.0  # half of Prometheus's default scrape timeout
ERROR_CODES: Final = tuple(sorted(code for kind in SwiftletError.__subclasses__() for code in kind.codes))
SERVER_ERROR_CODES: Final = tuple(
    sorted(code for kind in SwiftletError.__subclasses__() if kind.status >= 500 for code in kind.codes)
)
MODEL_LABELS: Final = ("task", "model")


async def scrape(runtime: SnapshotSource) -> bytes:
    """Returns the metrics in `MEDIA_TYPE`. Can be called from any event loop.

    All values are of one moment: they are copied on the runtime's event loop and formatted on a thread.

    Raises:
        Unavailable: the runtime's event loop is blocked.
    """
    future = asyncio.run_coroutine_threadsafe(runtime.snapshot(), runtime.loop)
    try:
        snapshot = await asyncio.wait_for(asyncio.wrap_future(future), SNAPSHOT_TIMEOUT_S)
    except TimeoutError:
        detail = "Metrics are temporarily unavailable because the event loop is blocked."
        raise Unavailable("overloaded", detail, retry_after=1.0) from None
    return await asyncio.to_thread(_format, snapshot)


def _format(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


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

    def _accepted_requests(self) -> Iterator[Metric]:
        yield self._counter(
            "requests_accepted",
            "Total accepted requests. A request is accepted once all of its sequences are queued.",
            lambda stats: stats.accepted,
        )
        finished = _counter(
            "requests_finished",
            "Total accepted requests that have ended, by outcome. answered includes client errors; failed: status 500 "
            "or higher; cancelled: the client disconnected. Accepted = answered + failed + cancelled + in flight.",
            [*MODEL_LABELS, "outcome"],
        )
        durations = _histogram(
            "request_duration_seconds",
            "Duration of accepted requests, from their headers to the response.",
            [*MODEL_LABELS, "outcome"],
        )
        stages = _histogram(
            "request_stage_duration_seconds",
            "Duration of the stages of accepted requests. parse: body to request; encode: text to tokens; queue: wait "
            "for a core; batch: packing and transport of the batch; infer: the engine's own time; decode: rows to "
            "response. For a request with several sequences, the slowest sequence counts.",
            [*MODEL_LABELS, "stage"],
        )
        for labels, stats in self._models:
            for outcome in OUTCOMES:
                finished.add_metric([*labels, outcome], stats.durations[outcome].count)
                _add(durations, [*labels, outcome], stats.durations[outcome])
            for stage in STAGES:
                _add(stages, [*labels, stage], stats.stages[stage])
        yield finished
        in_flight = GaugeMetricFamily(
            PREFIX + "requests_in_flight", "Accepted requests that have not ended.", labels=MODEL_LABELS
        )
        for labels, stats in self._models:
            in_flight.add_metric(labels, stats.in_flight)
        yield in_flight
        yield durations
        yield stages
        yield _by_reason(
            "requests_failed",
            "Total accepted requests that failed, by error code.",
            SERVER_ERROR_CODES,
            self._snapshot.stats.failed,
        )

    def _refused_requests(self) -> Iterator[Metric]:
        stats = self._snapshot.stats
        spoken = _counter(
            "dialect_requests",
            "Total requests in the protocols of other servers, by dialect and class of the status, or disconnected. "
            "They are also in the metrics of all requests.",
            ["dialect", "status"],
        )
        for (dialect, status), count in sorted(stats.dialects.items()):
            spoken.add_metric([dialect, status], count)
        yield spoken
        yield _by_reason(
            "requests_refused",
            "Total requests that ended before they were accepted, by error code or as disconnected.",
            (*ERROR_CODES, DISCONNECTED),
            stats.refused,
        )
        yield _total(
            "bulk_requests_shed",
            "Total requests of the priority bulk that were refused as overloaded.",
            stats.bulk_shed,
        )
        yield _total(
            "deadline_exceeded",
            "Total requests answered with status 504, whether accepted or not.",
            stats.deadline_exceeded,
        )
        unmet = _histogram(
            "unmet_deadline_seconds",
            "Timeouts requested by clients and not met, by reason: status 504, or an interactive request refused as "
            "overloaded.",
            ["reason"],
        )
        for reason, histogram in stats.unmet_deadlines.items():
            _add(unmet, [reason], histogram)
        yield unmet

    def _batches(self) -> Iterator[Metric]:
        sizes = _histogram("batch_size", "Sequences per engine batch.", MODEL_LABELS)
        tokens = _histogram("batch_tokens", "Tokens per engine batch, without padding.", MODEL_LABELS)
        for labels, stats in self._models:
            _add(sizes, labels, stats.batch_sizes)
            _add(tokens, labels, stats.batch_tokens)
        yield sizes
        yield tokens
        yield self._counter(
            "padding_tokens",
            "Total padding tokens. The padding ratio is padding tokens / (padding tokens + batch tokens).",
            lambda stats: stats.padding_tokens,
        )

    def _queue(self) -> Iterator[Metric]:
        queue = self._snapshot.queue
        yield _gauge(
            "queue_wait_seconds", "Minimum queueing time of an interactive request that arrives now.", queue.wait_s
        )
        yield _gauge("queue_oldest_age_seconds", "Age of the oldest queued sequence.", queue.oldest_age_s)
        yield _gauge("queue_sequences", "Queued sequences.", queue.sequences)
        yield _gauge("queue_tokens", "Tokens of the queued sequences.", queue.tokens)
        yield _gauge("batches_running", "Batches that the engine is running.", queue.running_batches)
        yield _gauge("cores", "Maximum number of batches that run at the same time.", self._snapshot.cores)
        yield _total("engine_busy_seconds", "Total time that batches have run, summed over all cores.", queue.busy_s)

    def _engine(self) -> Iterator[Metric]:
        yield _gauge("engine_ready", "Whether an engine is available (1) or not (0).", self._snapshot.ready)
        yield _total("engine_restarts", "Total worker processes that died or were killed.", self._snapshot.restarts)
        yield _total(
            "kernel_wrong_sums",
            "Total wrong sums that the engine found in its own work. The calls concerned were computed again.",
            self._snapshot.wrong_sums,
        )
        names = ["model", "task", "architecture", "precision", "engine", "version"]
        info = GaugeMetricFamily(PREFIX + "model_info", "Served models. The value is always 1.", labels=names)
        for model in self._snapshot.models:
            info.add_metric(list(model), 1)
        yield info

    def _counter(self, name: str, help_: str, value: Callable[[ModelStats], float]) -> Metric:
        family = _counter(name, help_, MODEL_LABELS)
        for labels, stats in self._models:
            family.add_metric(labels, value(stats))
        return family


def _counter(name: str, help_: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, help_, labels=labels)


def _total(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, help_, value=value)


def _histogram(name: str, help_: str, labels: Sequence[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, help_, labels=labels)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_, value=value)


def _by_reason(name: str, help_: str, reasons: Iterable[str], counts: dict[str, int]) -> Metric:
    family = _counter(name, help_, ["reason"])
    for reason in reasons:
        family.add_metric([reason], counts.get(reason, 0))
    return family


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    counts = accumulate(histogram.counts)
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), sum_value=histogram.sum)
