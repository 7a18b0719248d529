"""Statistics and snapshots as JSON, between a front and the coordinator."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from swiftlet_serve.telemetry.histogram import Histogram
from swiftlet_serve.telemetry.request_stats import MAX_RECENT, ModelStats, RequestStats, Sampled
from swiftlet_serve.telemetry.snapshot import ModelInfo, QueueState, Snapshot

PLAIN: Final = ("cores", "ready", "restarts", "kernel_faults", "connections", "loop_lag_s", "fronts", "front_restarts")
"""The fields of a snapshot that JSON holds as they are."""


class FrontReport(NamedTuple):
    """The state of a front."""

    stats: RequestStats
    connections: int
    loop_lag_s: float


def dump_report(report: FrontReport, recent: int) -> dict[str, Any]:
    """Returns a report as values for JSON, with the last `recent` answers of each model."""
    return {
        "stats": dump_stats(report.stats, recent),
        "connections": report.connections,
        "loop_lag_s": report.loop_lag_s,
    }


def load_report(fields: Mapping[str, Any]) -> FrontReport:
    """Returns the report whose JSON object is `fields`.

    Raises:
        KeyError, TypeError, ValueError: `fields` is not a report.
    """
    return FrontReport(load_stats(fields["stats"]), int(fields["connections"]), float(fields["loop_lag_s"]))


def dump_snapshot(snapshot: Snapshot, pid: int) -> dict[str, Any]:
    """Returns a snapshot as values for JSON; `pid` is the process that it was made in."""
    return {name: getattr(snapshot, name) for name in PLAIN} | {
        "models": snapshot.models,
        "stats": dump_stats(snapshot.stats),
        "queue": snapshot.queue,
        "workers": dict(snapshot.workers),
        "pid": pid,
    }


def load_snapshot(fields: Mapping[str, Any]) -> Snapshot:
    """Returns the snapshot whose JSON object is `fields`."""
    return Snapshot(
        models=[ModelInfo(*model) for model in fields["models"]],
        stats=load_stats(fields["stats"]),
        queue=QueueState(*fields["queue"]),
        workers=fields["workers"],
        pid=fields["pid"],
        **{name: fields[name] for name in PLAIN},
    )


def dump_stats(stats: RequestStats, recent: int = MAX_RECENT) -> dict[str, Any]:
    """Returns statistics as values for JSON, with the last `recent` answers of each model."""
    return {
        "models": {name: _dump_model(model, recent) for name, model in stats.models.items()},
        "refused": stats.refused,
        "failed": stats.failed,
        "dialects": [[*key, count] for key, count in stats.dialects.items()],
        "responses": [[*key, count] for key, count in stats.responses.items()],
        "crowded": stats.crowded,
        "bulk_shed": stats.bulk_shed,
        "deadline_exceeded": stats.deadline_exceeded,
        "unmet_deadlines": {reason: _dump(histogram) for reason, histogram in stats.unmet_deadlines.items()},
        "endpoint": None if stats.endpoint is None else stats.endpoint.dump(),
    }


def load_stats(fields: Mapping[str, Any]) -> RequestStats:
    """Returns the statistics whose JSON object is `fields`.

    Raises:
        KeyError, TypeError, ValueError: `fields` are not statistics.
    """
    stats = RequestStats()
    stats.models = {str(name): _load_model(model) for name, model in fields["models"].items()}
    stats.refused, stats.failed = Counter(fields["refused"]), Counter(fields["failed"])
    stats.dialects = Counter({(name, status): count for name, status, count in fields["dialects"]})
    stats.responses = Counter({(route, status): count for route, status, count in fields["responses"]})
    stats.crowded = int(fields["crowded"])
    stats.bulk_shed, stats.deadline_exceeded = int(fields["bulk_shed"]), int(fields["deadline_exceeded"])
    for reason, histogram in stats.unmet_deadlines.items():
        _load(histogram, fields["unmet_deadlines"][reason])
    if fields["endpoint"] is not None:
        stats.add_endpoint(fields["endpoint"])
    return stats


def _dump_model(stats: ModelStats, recent: int) -> dict[str, Any]:
    return {
        "task": stats.task,
        "accepted": stats.accepted,
        "in_flight": stats.in_flight,
        "padding_tokens": stats.padding_tokens,
        "truncated_texts": stats.truncated_texts,
        "histograms": [_dump(histogram) for histogram in stats.histograms],
        "exemplars": [[bucket, *sample] for bucket, sample in stats.exemplars.items()],
        "recent": list(stats.recent)[-recent:],
    }


def _load_model(fields: Mapping[str, Any]) -> ModelStats:
    stats = ModelStats.empty(str(fields["task"]))
    stats.accepted, stats.in_flight = int(fields["accepted"]), int(fields["in_flight"])
    stats.padding_tokens, stats.truncated_texts = int(fields["padding_tokens"]), int(fields["truncated_texts"])
    for histogram, counts in zip(stats.histograms, fields["histograms"], strict=True):
        _load(histogram, counts)
    stats.exemplars = {int(bucket): Sampled(*sample) for bucket, *sample in fields["exemplars"]}
    stats.recent = deque([(float(at), float(seconds)) for at, seconds in fields["recent"]], MAX_RECENT)
    return stats


def _dump(histogram: Histogram) -> list[Any]:
    """Returns the sum, and the index and count of each bucket that is not empty: most are."""
    return [histogram.sum, [[index, count] for index, count in enumerate(histogram.counts) if count]]


def _load(histogram: Histogram, fields: Any) -> None:
    sum_, pairs = fields
    if pairs:
        counts = [0] * len(histogram.counts)
        for index, count in pairs:
            counts[index] = int(count)
        histogram.add_counts(counts, float(sum_))
