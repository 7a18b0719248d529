"""The queues of one model. They are plain data: only the dispatcher changes them."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Final

from swiftlet_models.encodings import Encoding
from swiftlet_serve.scheduling.client_times import ClientTimes
from swiftlet_serve.scheduling.latency_model import LatencyModel
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Executor, Priority, Row

LONG_S: Final = 0.5
"""A sequence is long if one core is predicted to take this time for it."""


def may_start_long(long_calls: int, cores: int) -> bool:
    """Returns whether one more long call may start: one core is kept for short ones.

    Calls of an engine that shares cores use this core as well while it is idle.
    """
    return long_calls < cores - 1


@dataclass(eq=False, slots=True)
class QueuedSequence:
    """A sequence that waits for its row. Times are in seconds of the dispatcher's clock."""

    encoding: Encoding
    length: int  # tokens
    deadline: Deadline
    priority: Priority
    client: str
    arrival: float  # virtual time of arrival, which decides the order among the sequences of its client
    submitted: float
    row: asyncio.Future[Row]
    queue: SequenceQueue
    record: RequestRecord | None  # of its request
    started: float = math.nan
    suspect: bool = False  # whether this sequence may have caused the loss of a worker process
    joined: list[QueuedSequence] = field(default_factory=list)
    """Sequences of the same tokens and deadline for other heads of the trunk, which start with this one."""
    costs: bool = True  # whether it is not one of those that joined another

    @property
    def together(self) -> list[QueuedSequence]:
        """The sequence and those that joined it, unless their callers have gone."""
        return [self, *(item for item in self.joined if not item.row.done())]

    def leave(self, _: object = None) -> None:
        """Removes the sequence from its queue, if it is there. The first one that joined it takes its place."""
        if self.queue.discard(self) and (left := self.together[1:]):
            first, *rest = left
            first.costs, first.joined = True, rest
            self.queue.add(first)


class Lane:
    """The sequences of one client in the order of their virtual arrival. Equal arrivals keep the order of insertion."""

    __slots__ = ("items", "squares", "tokens")

    def __init__(self) -> None:
        self.tokens = 0  # sum of all lengths
        self.squares = 0  # sum of all squared lengths
        self.items: list[QueuedSequence] = []

    @property
    def total(self) -> tuple[int, int, int]:
        """All rows, tokens and squares."""
        return len(self.items), self.tokens, self.squares

    def ahead_of(self, arrival: float) -> tuple[int, int, int]:
        """Returns the rows, tokens and squares that go before a new sequence with this arrival."""
        if not self.items or self.items[-1].arrival <= arrival:  # the usual case
            return self.total
        later = self.items[bisect_right(self.items, arrival, key=_arrival) :]
        tokens, squares = sum([item.length for item in later]), sum([item.length**2 for item in later])
        return len(self.items) - len(later), self.tokens - tokens, self.squares - squares

    def add(self, item: QueuedSequence) -> None:
        """Inserts a sequence by its virtual arrival."""
        if not self.items or self.items[-1].arrival <= item.arrival:  # the usual case
            self.items.append(item)
        else:
            insort(self.items, item, key=_arrival)
        self.tokens += item.length
        self.squares += item.length**2

    def discard(self, item: QueuedSequence) -> bool:
        """Removes a sequence. Returns False if it is not there."""
        at = bisect_left(self.items, item.arrival, key=_arrival)
        while at < len(self.items) and self.items[at].arrival == item.arrival:
            if self.items[at] is item:
                del self.items[at]
                self.tokens -= item.length
                self.squares -= item.length**2
                return True
            at += 1
        return False


class SequenceQueue:
    """The sequences of one model and priority, either long or not, in a lane for each client."""

    def __init__(self, times: ClientTimes, *, is_long: bool = False) -> None:
        """`times` holds the virtual times of the clients in this priority."""
        self.times = times
        self.is_long = is_long
        self.lanes: dict[str, Lane] = {}  # those with sequences
        self.tokens = 0  # sum of all lengths
        self.squares = 0  # sum of all squared lengths
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[QueuedSequence]:
        """Iterates over all sequences, in no particular order."""
        return chain.from_iterable([lane.items for lane in self.lanes.values()])

    def ahead_of(self, arrival: float) -> tuple[int, int, int]:
        """Returns the rows, tokens and squares that may go before a new sequence with this arrival, of any client."""
        if len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            return lane.ahead_of(arrival)
        return self._size, self.tokens, self.squares

    @property
    def turn(self) -> tuple[float, float]:
        """The virtual time of the client that is next, and the virtual arrival of its first sequence."""
        return min([(self.times.of(client), lane.items[0].arrival) for client, lane in self.lanes.items()])

    def in_turn(self, cost_s: Callable[[int], float]) -> Iterator[QueuedSequence]:
        """Yields the sequences in the order of fair shares between clients.

        `cost_s` returns the engine time of a sequence of a length. The queue must not change meanwhile.
        """
        if len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            yield from lane.items
            return
        heads = [
            (self.times.of(client), lane.items[0].arrival, number, lane.items, 0)
            for number, (client, lane) in enumerate(self.lanes.items())
        ]
        heapify(heads)
        while heads:
            time, _, number, items, at = heads[0]
            yield items[at]
            following = at + 1
            if following == len(items):
                heappop(heads)
            else:
                time += cost_s(items[at].length)
                heapreplace(heads, (time, items[following].arrival, number, items, following))

    def add(self, item: QueuedSequence) -> None:
        """Inserts a sequence into the lane of its client."""
        lane = self.lanes.get(item.client)
        if lane is None:
            lane = self.lanes[item.client] = Lane()
        lane.add(item)
        self.tokens += item.length
        self.squares += item.length**2
        self._size += 1

    def discard(self, item: QueuedSequence) -> bool:
        """Removes a sequence. Returns False if it is not in the queue."""
        lane = self.lanes.get(item.client)
        if lane is None or not lane.discard(item):
            return False
        self.tokens -= item.length
        self.squares -= item.length**2
        self._size -= 1
        if not lane.items:
            del self.lanes[item.client]
        return True


class ModelQueue:
    """The queues of a model, or of several that share a trunk, its number of running calls and its latency model."""

    def __init__(
        self, name: str, executor: Executor, times: Mapping[Priority, ClientTimes], stats_names: Sequence[str] = ()
    ) -> None:
        """Creates the queues of a model, or of several that share a trunk. They are empty.

        Args:
            name: the name of the model in the executor.
            executor: knows the cost of its calls.
            times: the virtual times of the clients in each priority, which all models share.
            stats_names: the name in the statistics of each head's model. Empty: the same name.
        """
        self.name = name
        self.stats_names = stats_names or [name]
        self.short = {key: SequenceQueue(times[key]) for key in times}
        self.long = {key: SequenceQueue(times[key], is_long=True) for key in times}
        self.running_calls = 0
        self.mean_call_s = 0.0  # moving average of the predicted durations, without long calls
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

    def is_long(self, length: int) -> bool:
        """Returns whether sequences of a length have a queue of their own, so that they cannot take the last core.

        Other engines than those that share cores would leave that core idle.
        """
        return self.latency.cost.shares_cores and self._executor.size > 1 and self.latency.single_s(length) >= LONG_S

    def queues(self, priority: Priority, *, long: bool = True) -> list[SequenceQueue]:
        """Returns the queues of a priority, with the long sequences or without."""
        return [self.short[priority], self.long[priority]] if long else [self.short[priority]]

    def sequence_s(self, length: int) -> float:
        """Predicts one core's seconds for a sequence, as part of full batches."""
        return self.latency.backlog_s(1, length, length * length)

    def backlog_s(self, priority: Priority, arrival: float, client: str | None = None, *, long: bool = True) -> float:
        """Predicts one core's seconds for the queued sequences that go before a new one with this arrival.

        Of all clients, or of one; with the long sequences or without.
        """
        total = 0.0
        for queue in self.queues(priority, long=long):
            lane = queue if client is None else queue.lanes.get(client)
            if queue and lane is not None:
                total += self.latency.backlog_s(*lane.ahead_of(arrival))
        return total

    def lanes_s(self, priority: Priority, *, long: bool = True) -> Iterator[tuple[str, float]]:
        """Predicts one core's seconds for all sequences of each client, once for each queue."""
        for queue in self.queues(priority, long=long):
            for client, lane in queue.lanes.items():
                yield client, self.latency.backlog_s(*lane.total)

    def work_s(self, lengths: Sequence[int]) -> float:
        """Predicts one core's seconds for sequences of these lengths, in batches as full as the limits allow."""
        return self.latency.backlog_s(len(lengths), sum(lengths), sum([n * n for n in lengths]))


def _arrival(item: QueuedSequence) -> float:
    return item.arrival
