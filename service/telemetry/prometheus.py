"""What /metrics says, in the format of Prometheus: every metric by its name, its labels and its meaning.

Labels are closed sets: the models served and their tasks, the stages of a request, its endings, and the codes of the
errors. Nothing that a client sends ever becomes one. All series are there from the start, with zeros.
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
from swiftlet_serve.service.telemetry.request_stats import DISCONNECTED, ENDINGS, Histogram, ModelStats
from swiftlet_serve.service.telemetry.snapshot import Snapshot, SnapshotSource

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "swiftlet_"
PATIENCE_S: Final = 5.0  # for the event loop to be looked at; Prometheus waits for twice as long
CODES: Final = tuple(sorted(code for kind in SwiftletError.__subclasses__() for code in kind.codes))
FAILURES: Final = tuple(
    sorted(code for kind in SwiftletError.__subclasses__() if kind.status >= 500 for code in kind.codes)
)


async def scrape(runtime: SnapshotSource) -> bytes:
    """The metrics in `MEDIA_TYPE`; from any event loop.

    The numbers are all of one moment: they are copied between two turns of the runtime's own loop, and written out on a
    thread.

    Raises:
        Unavailable: that loop is blocked.
    """
    looking = asyncio.run_coroutine_threadsafe(runtime.snapshot(), runtime.loop)
    try:
        look = await asyncio.wait_for(asyncio.wrap_future(looking), PATIENCE_S)
    except TimeoutError:
        detail = "The server is too busy to say how it is."
        raise Unavailable("overloaded", detail, retry_after=1.0) from None
    return await asyncio.to_thread(_write, look)


def _write(snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Metrics(snapshot))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class Metrics(Collector):
    """One look at a runtime, as metrics."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._accounts = [([account.task, model], account) for model, account in snapshot.stats.accounts.items()]

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._batches()
        yield from self._queue()
        yield from self._engine()

    def _requests(self) -> Iterator[Metric]:
        stats = self._snapshot.stats
        yield self._counter(
            "requests_accepted",
            "Requests that were let in: all their encodings waited for a core.",
            lambda a: a.accepted,
        )
        finished = _counter(
            "requests_finished",
            "Accepted requests that ended. answered: also with what is wrong with the request; failed: with a status "
            "of 500 or more; cancelled: the client hung up. Accepted = answered + failed + cancelled + in flight.",
            ["task", "model", "outcome"],
        )
        seconds = _histogram(
            "request_duration_seconds",
            "From an accepted request's head to its answer.",
            ["task", "model", "outcome"],
        )
        for labels, account in self._accounts:
            for ending in ENDINGS:
                finished.add_metric([*labels, ending], account.seconds[ending].count)
                _add(seconds, [*labels, ending], account.seconds[ending])
        yield finished
        yield self._gauge("requests_in_flight", "Accepted requests that have not ended.", lambda a: a.in_flight)
        yield seconds
        stages = _histogram(
            "request_stage_duration_seconds",
            "Of accepted requests: parse, bytes to a request; encode, text to tokens; queue, waiting for a core; "
            "batch, the call beside the engine's own time; infer, the engine's own time; decode, numbers to an answer. "
            "Where a request has several encodings, of the slowest.",
            ["task", "model", "stage"],
        )
        for labels, account in self._accounts:
            for stage in STAGES:
                _add(stages, [*labels, stage], account.stages[stage])
        yield stages
        yield _by_reason(
            "requests_refused",
            "Requests that ended before they were accepted, by the code of the error, or as the client hung up.",
            (*CODES, DISCONNECTED),
            stats.refusals,
        )
        shed = _counter("bulk_requests_shed", "Of the refusals as overloaded, those of requests of the priority bulk.")
        shed.add_metric([], stats.bulk_shed)
        yield shed
        yield _by_reason(
            "requests_failed", "Accepted requests that failed, by the code of the error.", FAILURES, stats.failures
        )
        late = _counter("deadline_exceeded", "Requests, accepted or not, that were answered 504.")
        late.add_metric([], stats.late)
        yield late
        unmet = _histogram(
            "unmet_deadline_seconds",
            "How long the requests had allowed that brought a deadline and were answered 504, or refused as overloaded "
            "although they were not bulk.",
            ["reason"],
        )
        for reason, histogram in stats.unmet.items():
            _add(unmet, [reason], histogram)
        yield unmet

    def _batches(self) -> Iterator[Metric]:
        rows = _histogram("batch_size", "Encodings of a call to the engine.", ["task", "model"])
        tokens = _histogram("batch_tokens", "Tokens of a call to the engine, without padding.", ["task", "model"])
        for labels, account in self._accounts:
            _add(rows, labels, account.rows)
            _add(tokens, labels, account.tokens)
        yield rows
        yield tokens
        yield self._counter(
            "padding_tokens",
            "Tokens that calls were padded with; over these and those of swiftlet_batch_tokens, the padding ratio.",
            lambda account: account.padding,
        )

    def _queue(self) -> Iterator[Metric]:
        queue = self._snapshot.queue
        yield _value(
            "queue_wait_seconds", "How long an interactive request that comes now waits, at least.", queue.wait_s
        )
        yield _value(
            "queue_oldest_age_seconds", "How long the oldest of what waits for a core has waited.", queue.age_s
        )
        yield _value("queue_sequences", "Encodings that wait for a core.", queue.rows)
        yield _value("queue_tokens", "Tokens that wait for a core.", queue.tokens)
        yield _value("batches_running", "Calls to the engine that run.", queue.running)
        yield _value("cores", "Calls to the engine that may run at the same time.", self._snapshot.cores)
        busy = _counter("engine_busy_seconds", "Time that all cores together have spent in calls.")
        busy.add_metric([], queue.busy_s)
        yield busy

    def _engine(self) -> Iterator[Metric]:
        yield _value("engine_ready", "Whether there is an engine that works.", self._snapshot.ready)
        restarts = _counter("engine_restarts", "Engines that died or were ended, and were replaced.")
        restarts.add_metric([], self._snapshot.restarts)
        yield restarts
        names = ["model", "task", "architecture", "precision", "engine", "version"]
        info = GaugeMetricFamily(PREFIX + "model_info", "The models served; always 1.", labels=names)
        for model in self._snapshot.models:
            info.add_metric(list(model), 1)
        yield info

    def _counter(self, name: str, help_: str, of: Callable[[ModelStats], float]) -> Metric:
        family = _counter(name, help_, ["task", "model"])
        for labels, account in self._accounts:
            family.add_metric(labels, of(account))
        return family

    def _gauge(self, name: str, help_: str, of: Callable[[ModelStats], float]) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, help_, labels=["task", "model"])
        for labels, account in self._accounts:
            family.add_metric(labels, of(account))
        return family


def _counter(name: str, help_: str, labels: Sequence[str] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, help_, labels=labels)


def _histogram(name: str, help_: str, labels: Sequence[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, help_, labels=labels)


def _by_reason(name: str, help_: str, reasons: Iterable[str], counts: dict[str, int]) -> Metric:
    family = _counter(name, help_, ["reason"])
    for reason in reasons:
        family.add_metric([reason], counts.get(reason, 0))
    return family


def _value(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_, value=value)


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    counts = accumulate(histogram.counts)
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), sum_value=histogram.sum)
