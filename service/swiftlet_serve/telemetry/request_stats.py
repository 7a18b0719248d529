"""Request statistics: counters and histograms of requests and batches, kept on the event loop.

The counters balance at every moment. For each model: accepted = answered + failed + cancelled + in flight. A request is
accepted once all of its sequences are queued. A request that ends before is refused and counted by its reason, so every
request is either accepted or refused.

Plain numbers keep counting cheap: adding a value to a `Histogram` takes 0.3 µs, and a request adds ten. A histogram of
prometheus_client takes six times as long.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, get_args

from swiftlet_serve.telemetry.endpoint_stats import EndpointStats
from swiftlet_serve.telemetry.histogram import Histogram
from swiftlet_serve.telemetry.request_record import STAGES, RequestRecord, Stage

RequestOutcome = Literal["answered", "failed", "cancelled"]
"""Outcome of an accepted request. `failed`: status 500 or higher. `cancelled`: the client disconnected before the
response. `answered`: any other status, client errors included."""
OUTCOMES: Final[tuple[RequestOutcome, ...]] = get_args(RequestOutcome)

DISCONNECTED: Final = "disconnected"
"""Reason of requests whose clients disconnected before they were accepted. All other reasons are error codes."""

DEADLINE_EXCEEDED: Final = "deadline_exceeded"
DEADLINE_TOO_SHORT: Final = "deadline_too_short"  # counts as the other
OVERLOADED: Final = "overloaded"

# Upper bounds of the buckets.
REQUEST_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0)
STAGE_BUCKETS_S: Final = (0.0001, 0.0005, 0.002, 0.005, 0.02, 0.05, 0.2, 1.0, 5.0)
BATCH_SIZE_BUCKETS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
TOKEN_BUCKETS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
INITIAL_OVERHEAD_S: Final = 0.001  # a usual one
MAX_RECENT: Final = 1000  # recent answers that are kept one by one, for each model


class Sampled(NamedTuple):
    """A request that stands for its bucket: an exemplar."""

    trace_id: str
    value: float
    at: float  # seconds since 1970


@dataclass(eq=False, slots=True)
class ModelStats:
    """Statistics of one model."""

    task: str
    accepted: int
    in_flight: int
    durations: dict[RequestOutcome, Histogram]  # of accepted requests, in seconds
    stages: dict[Stage, Histogram]  # durations in seconds
    batch_sizes: Histogram  # sequences
    batch_tokens: Histogram  # without padding
    padding_tokens: int
    truncated_texts: int
    exemplars: dict[int, Sampled]  # of the durations of answered requests, the latest of each bucket
    recent: deque[tuple[float, float]]  # recent answers: time of `time.monotonic()` and duration in seconds

    @classmethod
    def empty(cls, task: str) -> ModelStats:
        """Returns statistics with all counters at zero."""
        return cls(
            task,
            accepted=0,
            in_flight=0,
            durations={outcome: Histogram(REQUEST_BUCKETS_S) for outcome in OUTCOMES},
            stages={stage: Histogram(STAGE_BUCKETS_S) for stage in STAGES},
            batch_sizes=Histogram(BATCH_SIZE_BUCKETS),
            batch_tokens=Histogram(TOKEN_BUCKETS),
            padding_tokens=0,
            truncated_texts=0,
            exemplars={},
            recent=deque(maxlen=MAX_RECENT),
        )

    def copy(self) -> ModelStats:
        return replace(
            self,
            durations={outcome: histogram.copy() for outcome, histogram in self.durations.items()},
            stages={stage: histogram.copy() for stage, histogram in self.stages.items()},
            batch_sizes=self.batch_sizes.copy(),
            batch_tokens=self.batch_tokens.copy(),
            exemplars=self.exemplars.copy(),
            recent=self.recent.copy(),
        )

    @property
    def histograms(self) -> list[Histogram]:
        """All histograms, in a fixed order."""
        return [*self.durations.values(), *self.stages.values(), self.batch_sizes, self.batch_tokens]

    def add(self, other: ModelStats) -> None:
        """Adds the statistics that another process has of the same model."""
        self.accepted += other.accepted
        self.in_flight += other.in_flight
        self.padding_tokens += other.padding_tokens
        self.truncated_texts += other.truncated_texts
        for histogram, theirs in zip(self.histograms, other.histograms, strict=True):
            histogram.add_counts(theirs.counts, theirs.sum)
        for bucket, sample in other.exemplars.items():
            if bucket not in self.exemplars or self.exemplars[bucket].at < sample.at:
                self.exemplars[bucket] = sample
        self.recent = deque(sorted([*self.recent, *other.recent]), MAX_RECENT)


@dataclass(eq=False, slots=True)
class VersionStats:
    """Statistics of one version of a model in the model repository."""

    durations: dict[RequestOutcome, Histogram]  # of accepted requests, in seconds

    @classmethod
    def empty(cls) -> VersionStats:
        """Returns statistics with all counters at zero."""
        return cls({outcome: Histogram(REQUEST_BUCKETS_S) for outcome in OUTCOMES})

    def copy(self) -> VersionStats:
        return VersionStats({outcome: histogram.copy() for outcome, histogram in self.durations.items()})


class RequestStats:
    """Statistics of one server, or of one of its processes."""

    def __init__(self) -> None:
        self.models: dict[str, ModelStats] = {}  # by name; only these are ever counted
        self.versions: dict[tuple[str, int], VersionStats] = {}  # of models in the model repository, by name and number
        self.refused: Counter[str] = Counter()  # by reason
        self.failed: Counter[str] = Counter()  # accepted requests, by error code
        self.dialects: Counter[tuple[str, str]] = Counter()  # requests, by dialect and class of the status
        self.responses: Counter[tuple[str, int]] = Counter()  # by route and status
        self.crowded = 0  # pages and pipelined requests that waited because such requests filled their share
        self.bulk_shed = 0  # bulk requests refused as overloaded
        self.deadline_exceeded = 0  # requests answered with 504, accepted or not
        self.minimum_overhead_s = INITIAL_OVERHEAD_S  # shortest time of an answered request outside queue and engine
        # Timeouts asked for by clients, of requests answered with 504 and interactive requests refused as overloaded.
        self.unmet_deadlines = {reason: Histogram(REQUEST_BUCKETS_S) for reason in (DEADLINE_EXCEEDED, OVERLOADED)}
        self.endpoint: EndpointStats | None = None  # that gets copies of requests; None without one

    def add_model(self, model: str, task: str, version: int | None = None) -> None:
        """Counts the requests of another model from now on. The counters of one that was served before go on.

        Args:
            model: the name of the model.
            task: its task.
            version: its version in the model repository, which is also counted by itself.
        """
        if model not in self.models:
            self.models[model] = ModelStats.empty(task)
        if version is not None:
            self.versions.setdefault((model, version), VersionStats.empty())

    def remove_version(self, model: str, version: int) -> None:
        """Forgets a version that is no longer served, so that the number of time series stays limited."""
        self.versions.pop((model, version), None)

    def accept(self, record: RequestRecord) -> None:
        """Counts a request as accepted and in flight."""
        stats = self.models[record.model]
        stats.accepted += 1
        stats.in_flight += 1

    def finish(self, record: RequestRecord) -> None:
        """Counts a request that has ended, accepted or refused."""
        if record.status is not None:
            self.responses[record.route, record.status] += 1
        if record.dialect:
            self.dialects[record.dialect, f"{record.status // 100}xx" if record.status else DISCONNECTED] += 1
        code = DEADLINE_EXCEEDED if record.code == DEADLINE_TOO_SHORT else record.code
        shed = code == OVERLOADED and not record.accepted
        self.deadline_exceeded += code == DEADLINE_EXCEEDED
        self.bulk_shed += shed and record.bulk
        if record.timeout_s is not None and (code == DEADLINE_EXCEEDED or (shed and not record.bulk)):
            self.unmet_deadlines[code].add(record.timeout_s)
        if not record.accepted:
            if record.status is None or code:
                self.count_refused(code or DISCONNECTED)
            return
        stats = self.models[record.model]
        outcome = outcome_of(record)
        stats.in_flight -= 1
        stats.truncated_texts += len(record.truncated)
        duration_s = record.duration_s
        stats.durations[outcome].add(duration_s)
        if record.version is not None and (version := self.versions.get((record.model, record.version))) is not None:
            version.durations[outcome].add(duration_s)
        for stage, span in record.stages.items():
            stats.stages[stage].add(span.ended - span.started)
        if outcome == "answered":
            stats.recent.append((record.ended, duration_s))
            if record.trace_id:
                bucket = bisect_left(REQUEST_BUCKETS_S, duration_s)
                stats.exemplars[bucket] = Sampled(record.trace_id, duration_s, time.time())
            if record.sequences == 1 and record.batch_size:  # it ran in one call
                engine_s = record.stages["queue"].duration_s + record.stages["infer"].duration_s
                self.minimum_overhead_s = min(self.minimum_overhead_s, duration_s - engine_s)
        elif outcome == "failed":
            self.failed[code] += 1

    def count_refused(self, reason: str) -> None:
        """Counts a request that ended before it was accepted."""
        self.refused[reason] += 1

    def add_crowded(self) -> None:
        """Counts a page or pipelined request that waited because such requests filled their share of the event loop."""
        self.crowded += 1

    def add_batch(self, model: str, size: int, tokens: int, padding_tokens: int) -> None:
        """Counts a batch that the engine ran."""
        if (stats := self.models.get(model)) is not None:
            stats.batch_sizes.add(size)
            stats.batch_tokens.add(tokens)
            stats.padding_tokens += padding_tokens

    def add(self, other: RequestStats) -> None:
        """Adds the statistics of another process of the same server."""
        for model, stats in other.models.items():
            self.models.setdefault(model, ModelStats.empty(stats.task)).add(stats)
        for own, theirs in (
            (self.refused, other.refused),
            (self.failed, other.failed),
            (self.dialects, other.dialects),
            (self.responses, other.responses),
        ):
            own.update(theirs)  # type: ignore[arg-type]  # the same counter of the other
        self.crowded += other.crowded
        self.bulk_shed += other.bulk_shed
        self.deadline_exceeded += other.deadline_exceeded
        for reason, histogram in other.unmet_deadlines.items():
            self.unmet_deadlines[reason].add_counts(histogram.counts, histogram.sum)
        if other.endpoint is not None:
            self.add_endpoint(other.endpoint.dump())

    def add_endpoint(self, fields: Mapping[str, Any]) -> None:
        """Adds the statistics of the endpoint, as `EndpointStats.dump` returns them."""
        if self.endpoint is None:
            self.endpoint = EndpointStats()
        self.endpoint.add(fields)

    def end_in_flight(self, seconds: float) -> None:
        """Counts the requests in flight as cancelled after these seconds: their process was lost."""
        for stats in self.models.values():
            for _ in range(stats.in_flight):
                stats.durations["cancelled"].add(seconds)
            stats.in_flight = 0

    def copy(self) -> RequestStats:
        """Returns a copy that later requests do not change."""
        copy = RequestStats()
        copy.models = {model: stats.copy() for model, stats in self.models.items()}
        copy.versions = {version: stats.copy() for version, stats in self.versions.items()}
        copy.refused, copy.failed = self.refused.copy(), self.failed.copy()
        copy.dialects, copy.responses = self.dialects.copy(), self.responses.copy()
        copy.crowded = self.crowded
        copy.bulk_shed, copy.deadline_exceeded = self.bulk_shed, self.deadline_exceeded
        copy.unmet_deadlines = {reason: histogram.copy() for reason, histogram in self.unmet_deadlines.items()}
        if self.endpoint is not None:
            copy.add_endpoint(self.endpoint.dump())
        return copy


def outcome_of(record: RequestRecord) -> RequestOutcome:
    """Returns the outcome of an accepted request that has ended."""
    if record.status is None:
        return "cancelled"
    return "failed" if record.status >= 500 else "answered"
