"""The load of the executor at one moment, and the waiting time that follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from swiftlet_serve.service.scheduling.latency_model import Utilization
from swiftlet_serve.service.scheduling.queue import ModelQueue, QueuedSequence, SequenceQueue
from swiftlet_serve.service.types import Priority

BULK_EVERY: Final = 20
"""While both priorities are queued, one batch in this number is bulk."""

AdmissionPolicy = Literal["deadline", "fifo"]
"""Whether deadlines decide what is admitted and started. Only benchmarks use "fifo", which ignores them."""


class RunningCall(NamedTuple):
    """A batch that an engine works on."""

    model: ModelQueue
    batch: list[QueuedSequence]
    started: float
    expected_s: float

    def remaining_s(self, now: float) -> float:
        """Predicts the remaining seconds. An overdue call is expected to take as long again as it is overdue."""
        return abs(self.started + self.expected_s - now)


class Load(NamedTuple):
    """A view of the queues and the running calls. It is valid until the dispatcher changes them."""

    now: float
    cores: int
    calls: Collection[RunningCall]
    models: Mapping[str, ModelQueue]
    queues: Sequence[SequenceQueue]  # of all models
    interactive: Utilization  # of the executor, by interactive calls
    policy: AdmissionPolicy

    @property
    def queued_tokens(self) -> int:
        """Tokens of all queued sequences."""
        return sum([queue.tokens for queue in self.queues])


def wait_s(load: Load, priority: Priority, model: ModelQueue | None = None, own_s: float = 0.0) -> float:
    """Predicts how long a new request waits until its last sequence may start.

    Args:
        load: the executor's load.
        priority: the priority of the request.
        model: the model of the request; None for the lower bound over all models.
        own_s: the predicted seconds of the request itself. Its last sequence queues behind all that arrives meanwhile.
    """
    has_idle_core = len(load.calls) < load.cores and (model is None or model.running_calls < model.max_calls)
    if has_idle_core and not load.queued_tokens:
        return 0.0
    arrival = load.now + own_s
    wait = _drain_s(load, priority, arrival, load.calls, load.models.values(), load.cores)
    if model is not None and model.max_calls < load.cores:
        calls = [call for call in load.calls if call.model is model]
        wait = max(wait, _drain_s(load, priority, arrival, calls, [model], model.max_calls))
    return wait


def _drain_s(
    load: Load,
    priority: Priority,
    arrival: float,
    calls: Collection[RunningCall],
    models: Collection[ModelQueue],
    cores: int,
) -> float:
    """Predicts the seconds in which these cores finish the calls and all that is queued before the arrival.

    Bulk work gets the share of the cores that interactive work leaves free, and at least one batch in `BULK_EVERY`.
    """
    ahead_s = sum([call.remaining_s(load.now) for call in calls])
    ahead_s += sum([model.backlog_s("interactive", arrival) for model in models])
    if priority == "interactive":
        return ahead_s / cores
    free_share = max(1 / BULK_EVERY, 1 - load.interactive.share(load.now))
    return (ahead_s + sum([model.backlog_s("bulk", arrival) for model in models]) / free_share) / cores
