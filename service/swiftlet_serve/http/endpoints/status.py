"""The response of GET /status: a few numbers to read. GET /metrics has all of them for Prometheus."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from swiftlet_serve.telemetry.percentile import percentile
from swiftlet_serve.telemetry.request_stats import ModelStats
from swiftlet_serve.telemetry.snapshot import Snapshot

WINDOW_S: Final = 60.0  # maximum age of a recent response


class Recent(BaseModel):
    """Latest responses of a model: at most 1000, of the last minute."""

    answers: Annotated[int, Field(description="Number of responses.")]
    p50_ms: Annotated[float | None, Field(description="Median latency in milliseconds; null without responses.")]
    p99_ms: Annotated[
        float | None, Field(description="99th percentile of the latency in milliseconds; null without responses.")
    ]


class ModelStatus(BaseModel):
    """Status of a model."""

    name: Annotated[str, Field(description="Name of the model.")]
    task: Annotated[str, Field(description="Task of the model.")]
    answered: Annotated[int, Field(description="Requests answered since the start.")]
    failed: Annotated[int, Field(description="Accepted requests that failed.")]
    cancelled: Annotated[int, Field(description="Accepted requests whose client disconnected.")]
    in_flight: Annotated[int, Field(description="Accepted requests in progress.")]
    recent: Annotated[Recent, Field(description="Latest responses.")]


class QueueStatus(BaseModel):
    """Sequences that wait for an engine."""

    sequences: Annotated[int, Field(description="Number of queued sequences.")]
    tokens: Annotated[int, Field(description="Number of queued tokens.")]
    age_ms: Annotated[float, Field(description="Time that the oldest sequence has waited, in milliseconds.")]
    wait_ms: Annotated[float, Field(description="Minimum wait of a new interactive request, in milliseconds.")]


class Status(BaseModel):
    """Status of the server."""

    ready: Annotated[bool, Field(description="Whether an engine is ready.")]
    engine_restarts: Annotated[int, Field(description="Worker processes that were lost and replaced.")]
    cores: Annotated[int, Field(description="Maximum number of engine calls at a time.")]
    calls: Annotated[int, Field(description="Engine calls in progress.")]
    refused: Annotated[int, Field(description="Requests refused since the start.")]
    queue: Annotated[QueueStatus, Field(description="Queued work.")]
    models: Annotated[list[ModelStatus], Field(description="Served models.")]


def describe(snapshot: Snapshot, now: float) -> Status:
    """Describes a snapshot of the runtime; `now` is a time of `time.monotonic()`."""
    queue = snapshot.queue
    return Status(
        ready=snapshot.ready,
        engine_restarts=snapshot.restarts,
        cores=snapshot.cores,
        calls=queue.running_batches,
        refused=snapshot.stats.refused.total(),
        queue=QueueStatus(
            sequences=queue.sequences,
            tokens=queue.tokens,
            age_ms=_ms(queue.oldest_age_s),
            wait_ms=_ms(queue.wait_s),
        ),
        models=[_model(name, stats, now) for name, stats in snapshot.stats.models.items()],
    )


def _model(name: str, stats: ModelStats, now: float) -> ModelStatus:
    took = sorted(seconds for at, seconds in stats.recent if now - at <= WINDOW_S)
    return ModelStatus(
        name=name,
        task=stats.task,
        answered=stats.durations["answered"].count,
        failed=stats.durations["failed"].count,
        cancelled=stats.durations["cancelled"].count,
        in_flight=stats.in_flight,
        recent=Recent(
            answers=len(took),
            p50_ms=_ms(percentile(took, 0.50)) if took else None,
            p99_ms=_ms(percentile(took, 0.99)) if took else None,
        ),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
