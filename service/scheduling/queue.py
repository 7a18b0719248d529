"""The queues of one model. They are plain data: only the dispatcher changes them."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.scheduling.latency_model import LatencyModel
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.types import Deadline, Executor, Priority, Row


@dataclass(eq=False, slots=True)
class QueuedSequence:
    """A sequence that waits for its row. Times are in seconds of the dispatcher's clock."""

    encoding: Encoding
    length: int  # tokens
    deadline: Deadline
    priority: Priority
    arrival: float  # virtual time of arrival, which decides the order
    submitted: float
    row: asyncio.Future[Row]
    queue: SequenceQueue
    record: RequestRecord | None  # of its request
    started: float = math.nan
    suspect: bool = False  # whether this sequence may have caused the loss of a worker process

    def leave(self, _: object = None) -> None:
        """Removes the sequence from its queue, if it is there."""
        self.queue.discard(self)


class SequenceQueue:
    """Sequences in the order of their virtual arrival. Equal arrivals keep the order of insertion."""

    def __init__(self) -> None:
        self.tokens = 0  # sum of all lengths
        self.squares = 0  # sum of all squared lengths
        self._items: list[QueuedSequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedSequence]:
        return iter(self._items)

    @property
    def first_arrival(self) -> float:
        """The virtual arrival of the first sequence. The queue must not be empty."""
        return self._items[0].arrival

    def ahead_of(self, arrival: float) -> tuple[int, int, int]:
        """Returns the rows, tokens and squares that go before a new sequence with this arrival."""
        if not self._items or self._items[-1].arrival <= arrival:  # the usual case
            return len(self._items), self.tokens, self.squares
        later = self._items[bisect_right(self._items, arrival, key=_arrival) :]
        tokens, squares = sum([item.length for item in later]), sum([item.length**2 for item in later])
        return len(self._items) - len(later), self.tokens - tokens, self.squares - squares

    def add(self, item: QueuedSequence) -> None:
        """Inserts a sequence by its virtual arrival."""
        insort(self._items, item, key=_arrival)
        self.tokens += item.length
        self.squares += item.length**2

    def discard(self, item: QueuedSequence) -> None:
        """Removes a sequence if it is in the queue."""
        at = bisect_left(self._items, item.arrival, key=_arrival)
        while at < len(self._items) and self._items[at].arrival == item.arrival:
            if self._items[at] is item:
                del self._items[at]
                self.tokens -= item.length
                self.squares -= item.length**2
                return
            at += 1


class ModelQueue:
    """One model's queues, its number of running calls and its latency model."""

    def __init__(self, name: str, executor: Executor, counted_as: str | None = None) -> None:
        """`name` is the name under which the executor knows the model, and `counted_as` that in the statistics."""
        self.name = name
        self.counted_as = counted_as or name
        self.by_priority: dict[Priority, SequenceQueue] = {"interactive": SequenceQueue(), "bulk": SequenceQueue()}
        self.running_calls = 0
        self.mean_call_s = 0.0  # moving average of the predicted durations
        self._executor = executor

    @cached_property
    def latency(self) -> LatencyModel:
        """The latency model. It is made at first use, because the engine's cost is known once the engine is loaded."""
        latency = LatencyModel(self._executor.cost(self.name))
        for tokens, seconds in self._executor.timed_calls(self.name):
            latency.learn([tokens], seconds)
        return latency

    @property
    def max_calls(self) -> int:
        """The number of calls that may run at the same time."""
        return min(self._executor.size, self.latency.cost.max_calls or self._executor.size)

    def backlog_s(self, priority: Priority, arrival: float) -> float:
        """Predicts one core's seconds for the queued sequences that go before a new one with this arrival."""
        queue = self.by_priority[priority]
        return self.latency.backlog_s(*queue.ahead_of(arrival)) if queue else 0.0

    def work_s(self, lengths: Sequence[int]) -> float:
        """Predicts one core's seconds for sequences of these lengths, in batches as full as the limits allow."""
        return self.latency.backlog_s(len(lengths), sum(lengths), sum([n * n for n in lengths]))


def _arrival(item: QueuedSequence) -> float:
    return item.arrival
