"""What GET /status says: how the server does now, in a few numbers for a person; /metrics has more, for Prometheus."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, Field

from swiftlet_serve.service.percentile import percentile
from swiftlet_serve.service.telemetry.request_stats import ModelStats
from swiftlet_serve.service.telemetry.snapshot import Snapshot

WINDOW_S: Final = 60.0  # how old an answer may be to count as recent


class Recent(BaseModel):
    """The last answers of a model: at most 1000, and none older than a minute."""

    answers: Annotated[int, Field(description="How many there are.")]
    p50_ms: Annotated[float | None, Field(description="Half of them took no longer; null where there are none.")]
    p99_ms: Annotated[float | None, Field(description="99 of 100 took no longer; null where there are none.")]


class ModelStatus(BaseModel):
    """How one model does."""

    name: Annotated[str, Field(description="The model.")]
    task: Annotated[str, Field(description="Its task.")]
    answered: Annotated[int, Field(description="Requests that were answered since the start.")]
    failed: Annotated[int, Field(description="Requests that were accepted and failed.")]
    cancelled: Annotated[int, Field(description="Requests that were accepted and whose clients hung up.")]
    in_flight: Annotated[int, Field(description="Requests that were accepted and have not ended.")]
    recent: Annotated[Recent, Field(description="Its last answers.")]


class QueueStatus(BaseModel):
    """What waits for a core."""

    rows: Annotated[int, Field(description="Encodings that wait.")]
    tokens: Annotated[int, Field(description="Their tokens.")]
    age_ms: Annotated[float, Field(description="How long the oldest has waited.")]
    wait_ms: Annotated[float, Field(description="How long an interactive request that comes now waits, at least.")]


class Status(BaseModel):
    """How the server does now."""

    ready: Annotated[bool, Field(description="Whether there is an engine that works.")]
    engine_restarts: Annotated[int, Field(description="Engines that were lost and replaced.")]
    cores: Annotated[int, Field(description="Calls to the engine that may run at the same time.")]
    calls: Annotated[int, Field(description="Calls to the engine that run.")]
    refused: Annotated[int, Field(description="Requests that ended before they were accepted, since the start.")]
    queue: Annotated[QueueStatus, Field(description="The work that waits for a core.")]
    models: Annotated[list[ModelStatus], Field(description="Those served.")]


def describe(look: Snapshot, now: float) -> Status:
    """What one look at the runtime tells; `now` is of `time.monotonic()`."""
    queue = look.queue
    return Status(
        ready=look.ready,
        engine_restarts=look.restarts,
        cores=look.cores,
        calls=queue.running_batches,
        refused=look.stats.refused.total(),
        queue=QueueStatus(
            rows=queue.sequences, tokens=queue.tokens, age_ms=_ms(queue.oldest_age_s), wait_ms=_ms(queue.wait_s)
        ),
        models=[_model(name, account, now) for name, account in look.stats.models.items()],
    )


def _model(name: str, account: ModelStats, now: float) -> ModelStatus:
    took = sorted(seconds for at, seconds in account.recent if now - at <= WINDOW_S)
    return ModelStatus(
        name=name,
        task=account.task,
        answered=account.durations["answered"].count,
        failed=account.durations["failed"].count,
        cancelled=account.durations["cancelled"].count,
        in_flight=account.in_flight,
        recent=Recent(
            answers=len(took),
            p50_ms=_ms(percentile(took, 0.50)) if took else None,
            p99_ms=_ms(percentile(took, 0.99)) if took else None,
        ),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 2)
