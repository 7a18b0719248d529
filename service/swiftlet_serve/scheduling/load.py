"""The load of the executor at one moment, and the waiting time that follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from swiftlet_serve.scheduling.client_times import ClientTimes
from swiftlet_serve.scheduling.latency_model import Utilization
from swiftlet_serve.scheduling.queue import ModelQueue, QueuedSequence, SequenceQueue, may_start_long
from swiftlet_serve.types import Priority

BULK_EVERY: Final = 20
"""While both priorities are queued, one batch in this number is bulk."""

MANY_CLIENTS: Final = 64
"""With more clients in the queues, the wait under fair shares is bounded instead of predicted, which is quicker."""

NONE: Final[Mapping[str, float]] = MappingProxyType({})

AdmissionPolicy = Literal["deadline", "fifo"]
"""Whether deadlines decide what is admitted and started. Only benchmarks use "fifo", which ignores them."""


class RunningCall(NamedTuple):
    """A batch that an engine works on."""

    model: ModelQueue
    batch: list[QueuedSequence]
    lengths: list[int]  # of the sequences that the engine computes: several heads may read one
    started: float
    expected_s: float

    @property
    def is_long(self) -> bool:
        """Whether its sequences are long."""
        return self.batch[0].queue.is_long

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
    times: Mapping[Priority, ClientTimes]
    interactive: Utilization  # of the executor, by interactive calls
    policy: AdmissionPolicy

    @property
    def queued_tokens(self) -> int:
        """Tokens of all queued sequences."""
        return sum([queue.tokens for queue in self.queues])

    def busiest(self, count: int) -> list[str]:
        """Returns the clients with the most queued tokens."""
        tokens: Counter[str] = Counter()
        for queue in self.queues:
            for client, lane in queue.lanes.items():
                tokens[client] += lane.tokens
        return [client for client, _ in tokens.most_common(count)]

    def has_others(self, client: str) -> bool:
        """Returns whether clients other than this one have queued sequences."""
        return any(len(queue.lanes) > (client in queue.lanes) for queue in self.queues)

    def queued_tokens_of(self, client: str) -> int:
        """Returns the tokens of all queued sequences of a client."""
        return sum([queue.lanes[client].tokens for queue in self.queues if client in queue.lanes])


def wait_s(
    load: Load,
    priority: Priority,
    model: ModelQueue | None = None,
    request_s: float = 0.0,
    client: str | None = None,
    reserved_s: Mapping[str, float] = NONE,
    *,
    is_long: bool = False,
) -> float:
    """Predicts how long a new request waits until its last sequence may start.

    Without long sequences, it does not wait for those that are queued, and has the cores where none runs.

    Args:
        load: the executor's load.
        priority: the priority of the request.
        model: the model of the request; None for the lower bound over all models.
        request_s: the predicted seconds of the request alone. All that arrives meanwhile goes before its last sequence.
        client: the client of the request. None for the upper bound over all clients.
        reserved_s: one core's seconds for the requests that are still being read, of each client.
        is_long: whether the request has a long sequence.
    """
    long_calls = sum([call.is_long for call in load.calls])
    has_idle_core = len(load.calls) < load.cores and (model is None or model.has_room)
    has_idle_core &= not is_long or may_start_long(long_calls, load.cores)
    queues = [queue for queue in load.queues if queue.rows and (is_long or not queue.is_long)]
    is_idle = has_idle_core and not queues
    if is_idle and not reserved_s:
        return 0.0
    calls: Collection[RunningCall] = () if is_idle else [call for call in load.calls if is_long or not call.is_long]
    request = Request(priority, client, load.now + request_s, request_s, reserved_s)
    wait = _drain_s(load, request, calls, queues, load.cores if is_long else max(1, load.cores - long_calls))
    if model is not None and model.max_calls < load.cores:
        calls = [call for call in calls if call.model is model]
        queues = [queue for queue in queues if queue.model is model]
        wait = max(wait, _drain_s(load, request, calls, queues, model.max_calls))
    return wait


class Request(NamedTuple):
    """A new request, as `wait_s` describes it."""

    priority: Priority
    client: str | None
    arrival: float  # virtual arrival of its last sequence
    request_s: float
    reserved_s: Mapping[str, float]


def _drain_s(
    load: Load,
    request: Request,
    calls: Collection[RunningCall],
    queues: Sequence[SequenceQueue],
    cores: int,
) -> float:
    """Predicts the seconds until these cores have finished the calls and all that goes before the request.

    Bulk work gets the share of the cores that interactive work leaves free, and at least one batch in `BULK_EVERY`.
    """
    before_s, share = sum([call.remaining_s(load.now) for call in calls]), float(cores)
    if request.priority == "bulk":
        before_s += sum(
            [queue.ahead_s(request.arrival, load.now) for queue in queues if queue.priority == "interactive"]
        )
        share *= max(1 / BULK_EVERY, 1 - load.interactive.share(load.now))
    queues = [queue for queue in queues if queue.priority == request.priority]
    if request.client is None:
        return before_s / cores + sum([queue.ahead_s(request.arrival, load.now) for queue in queues]) / share
    ahead = _ahead(request, request.client, queues, load.times[request.priority], load.now)
    wait = before_s / cores + ahead.seconds(0.0) / share
    if not ahead.others or not wait:
        return wait
    return before_s / cores + ahead.seconds(wait + request.request_s / share) / share


class Ahead(NamedTuple):
    """One core's seconds for the sequences of the same priority that go before the last one of a request."""

    certain_s: float
    others: Sequence[tuple[float, float, float]] = ()  # of other clients: queued, lately used per second, and at most

    def seconds(self, during_s: float) -> float:
        """Returns the sum if the request waits so long. Other clients are expected to send as much as lately."""
        return self.certain_s + sum([min(queued + during_s * rate, most) for queued, rate, most in self.others])


def _ahead(request: Request, client: str, queues: Sequence[SequenceQueue], times: ClientTimes, now: float) -> Ahead:
    """Predicts the work that goes before the last sequence of a request, of the queues of its priority.

    Of the request's client, these are the sequences that arrived before. Each other client is served until its virtual
    time reaches the start of the last sequence, or until it has no more work.
    """
    reserved_s = request.reserved_s
    before_s = reserved_s.get(client, 0.0) + sum([queue.ahead_s(request.arrival, now, client) for queue in queues])
    until = times.of(client) + before_s + request.request_s
    count = len(reserved_s) + sum([len(queue.lanes) for queue in queues])
    if count > MANY_CLIENTS:  # a bound
        everything_s = sum(reserved_s.values()) + sum([queue.ahead_s(request.arrival, now) for queue in queues])
        return Ahead(min(everything_s, before_s + count * (until - times.served)))
    others_s = dict(reserved_s)
    for queue in queues:
        for name, lane in queue.lanes.items():
            others_s[name] = others_s.get(name, 0.0) + queue.model.latency.backlog_s(*lane.total)
    others_s.pop(client, None)
    return Ahead(
        before_s,
        [(queued, times.rate(name, now), max(0.0, until - times.of(name))) for name, queued in others_s.items()],
    )
