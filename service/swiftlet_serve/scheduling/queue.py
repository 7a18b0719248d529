"""The queues of one model. They are plain data: only the dispatcher changes them."""

from __future__ import annotations

import asyncio
import math
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import chain
from operator import attrgetter
from typing import Final

from swiftlet_models.encodings import Encoding
from swiftlet_serve.scheduling.client_times import ClientTimes
from swiftlet_serve.scheduling.latency_model import LatencyModel, work
from swiftlet_serve.telemetry.request_record import RequestRecord
from swiftlet_serve.types import Deadline, Executor, Priority, Row

LONG_S: Final = 0.5
"""A sequence is long if one core is predicted to take this time for it."""

LOOKAHEAD: Final = 256
"""Number of queued sequences among which a batch is chosen, unless the engine's batches are larger."""

ARRIVAL: Final = attrgetter("arrival")


def may_start_long(long_calls: int, cores: int) -> bool:
    """Returns whether one more long call may start: one core is kept for short ones.

    Calls of an engine that shares cores use this core as well while it is idle.
    """
    return long_calls < cores - 1


@dataclass(eq=False, slots=True)
class ArrivingRequest:
    """A request. Many sequences are queued part by part, and all of them count in the load from the beginning."""

    queues: ModelQueue
    priority: Priority
    encodings: Sequence[Encoding]
    lengths: Sequence[int]
    rows: Sequence[asyncio.Future[Row]]
    deadline: Deadline
    client: str
    record: RequestRecord | None
    submitted: float
    arrival: float  # virtual, of the next sequence
    queued: int = 0  # sequences that were inserted
    waiting: int = 0  # of those, the ones that wait in a queue
    most_waiting: int = sys.maxsize
    are_long: Sequence[bool] = ()  # which sequences were long when it arrived; empty: none

    def expect(self, sign: int = 1) -> None:
        """Counts the sequences that are not queued yet, or takes them from the count again."""
        self.expect_part(slice(self.queued, None), sign, requests=sign)

    def expect_part(self, part: slice, sign: int, requests: int = 0) -> None:
        """Counts some sequences before they are queued. `requests` is 1 with the first ones, -1 with the last ones."""
        lengths, short = self.lengths[part], self.queues.short[self.priority]
        if not self.are_long:
            short.expect(self.client, lengths, sign, requests)
            return
        for queue, is_long in ((short, False), (self.queues.long[self.priority], True)):
            if is_long in self.are_long:
                own = [length for length, one in zip(lengths, self.are_long[part], strict=True) if one is is_long]
                queue.expect(self.client, own, sign, requests)


@dataclass(eq=False, slots=True)
class QueuedSequence:
    """A sequence that waits for its row. Times are in seconds of the dispatcher's clock."""

    encoding: Encoding
    length: int  # tokens
    deadline: Deadline
    client: str
    arrival: float  # virtual time of arrival, which decides the order among the sequences of its client
    submitted: float
    row: asyncio.Future[Row]
    queue: SequenceQueue
    record: RequestRecord | None  # of its request
    request: ArrivingRequest
    suspect: bool = False  # whether this sequence may have caused the loss of a worker process
    joined: tuple[QueuedSequence, ...] = ()
    """Sequences of the same tokens and deadline for other heads of the trunk, which start with this one."""
    costs: bool = True  # whether it is not one of those that joined another

    @property
    def together(self) -> list[QueuedSequence]:
        """The sequence and those that joined it, unless their callers have gone."""
        return [self, *[item for item in self.joined if not item.row.done()]]

    def leave(self, _: object = None) -> None:
        """Removes the sequence from its queue, if it is there. The first one that joined it takes its place."""
        if self.queue.remove(self.client, [self]) and (left := self.together[1:]):
            first, *rest = left
            first.costs, first.joined = True, tuple(rest)
            self.queue.add(self.client, [first])


class Totals:
    """The number of some sequences, and what they cost."""

    __slots__ = ("rows", "squares", "tokens")

    def __init__(self) -> None:
        self.rows = 0
        self.tokens = 0  # sum of all lengths
        self.squares = 0  # sum of all squared lengths

    @property
    def total(self) -> tuple[int, int, int]:
        """All rows, tokens and squares."""
        return self.rows, self.tokens, self.squares

    def count(self, rows: int, tokens: int, squares: int, sign: int = 1) -> None:
        """Adds sequences, or takes them away."""
        self.rows += sign * rows
        self.tokens += sign * tokens
        self.squares += sign * squares


class Lane(Totals):
    """The sequences of one client in the order of their virtual arrival. Equal arrivals keep the order of insertion."""

    __slots__ = ("arriving", "expected", "items")

    def __init__(self) -> None:
        super().__init__()
        self.items: list[QueuedSequence] = []
        self.expected = Totals()  # those that count already, and are not among the items
        self.arriving = 0  # requests of these

    def ahead_of(self, arrival: float) -> tuple[int, int, int]:
        """Returns the rows, tokens and squares of the items that go before a new sequence with this arrival."""
        rows, tokens, squares = self.expected.total
        if self.items and self.items[-1].arrival > arrival:
            later = work([item.length for item in self.items[bisect_right(self.items, arrival, key=ARRIVAL) :]])
            rows, tokens, squares = rows + later[0], tokens + later[1], squares + later[2]
        return self.rows - rows, self.tokens - tokens, self.squares - squares

    def add(self, items: Sequence[QueuedSequence]) -> None:
        """Inserts sequences, which are in the order of their virtual arrival."""
        if not self.items or self.items[-1].arrival <= items[0].arrival:  # the usual case
            self.items += items
        else:
            for item in items:
                insort(self.items, item, key=ARRIVAL)

    def remove(self, items: list[QueuedSequence]) -> list[QueuedSequence]:
        """Removes those of these sequences that are in the lane, and returns them."""
        if self.items[: len(items)] == items:  # the usual case
            del self.items[: len(items)]
            return items
        arrivals = [item.arrival for item in items]
        start = bisect_left(self.items, min(arrivals), key=ARRIVAL)
        stop = bisect_right(self.items, max(arrivals), start, key=ARRIVAL)
        within, leaving = self.items[start:stop], set(items)
        self.items[start:stop] = [item for item in within if item not in leaving]
        return [item for item in within if item in leaving]


class SequenceQueue(Totals):
    """The sequences of one model and priority, either long or not, in a lane for each client."""

    def __init__(self, model: ModelQueue, priority: Priority, times: ClientTimes, *, is_long: bool = False) -> None:
        """`times` holds the virtual times of the clients in this priority."""
        super().__init__()
        self.model = model
        self.priority = priority
        self.times = times
        self.is_long = is_long
        self.lanes: dict[str, Lane] = {}  # those with sequences

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[QueuedSequence]:
        """Iterates over all sequences, in no particular order."""
        return chain.from_iterable([lane.items for lane in self.lanes.values()])

    def ahead_s(self, arrival: float, now: float, client: str | None = None) -> float:
        """Predicts one core's seconds for the sequences that go before a new one with this virtual arrival.

        Those of one client, or of all: with several clients, any sequence may go before. Of each request whose
        sequences are not all queued, as much goes before as arrives from now on.
        """
        if client is not None:
            lane = self.lanes.get(client)
        elif len(self.lanes) == 1:
            (lane,) = self.lanes.values()
        else:
            return self.model.latency.backlog_s(*self.total)
        if lane is None:
            return 0.0
        ahead_s = self.model.latency.backlog_s(*lane.ahead_of(arrival))
        if not lane.arriving:
            return ahead_s
        return ahead_s + min(self.model.latency.backlog_s(*lane.expected.total), lane.arriving * (arrival - now))

    @property
    def is_ready(self) -> bool:
        """Whether a sequence waits that is not only expected."""
        return any(lane.items for lane in self.lanes.values())

    @property
    def turn(self) -> tuple[float, float]:
        """The virtual time of the client that is next, and the virtual arrival of its first sequence."""
        lanes = self.lanes.items()
        return min([(self.times.of(client), lane.items[0].arrival) for client, lane in lanes if lane.items])

    def in_turn(self) -> Iterator[QueuedSequence]:
        """Yields the sequences in the order of fair shares between clients. The queue must not change meanwhile."""
        if len(self.lanes) == 1:
            (lane,) = self.lanes.values()
            yield from lane.items
            return
        heads = [
            (self.times.of(client), lane.items[0].arrival, number, lane.items, 0)
            for number, (client, lane) in enumerate(self.lanes.items())
            if lane.items
        ]
        heapify(heads)
        while heads:
            time, _, number, items, at = heads[0]
            yield items[at]
            following = at + 1
            if following == len(items):
                heappop(heads)
            else:
                time += self.model.sequence_s(items[at].length)
                heapreplace(heads, (time, items[following].arrival, number, items, following))

    def add(self, client: str, items: Sequence[QueuedSequence]) -> None:
        """Inserts sequences of a client, which are in the order of their virtual arrival."""
        lane = self._lane(client)
        lane.add(items)
        self._count([item.length for item in items], 1, lane, self)
        for item in items:
            item.request.waiting += 1

    def expect(self, client: str, lengths: Sequence[int], sign: int, requests: int) -> None:
        """Counts sequences of a client before they are inserted, or takes them from the count again.

        `requests` is the number of requests that begin or end with them.
        """
        lane = self._lane(client)
        lane.arriving = max(0, lane.arriving + requests)  # the lane may be a new one
        self._count(lengths, sign, lane, lane.expected, self)
        if not lane.rows:
            del self.lanes[client]

    def _lane(self, client: str) -> Lane:
        lane = self.lanes.get(client)
        if lane is None:
            lane = self.lanes[client] = Lane()
        return lane

    def remove(self, client: str, items: list[QueuedSequence]) -> bool:
        """Removes those of these sequences of a client that are in the queue. Returns whether there are any."""
        lane = self.lanes.get(client)
        if lane is None or not (removed := lane.remove(items)):
            return False
        self._count([item.length for item in removed], -1, lane, self)
        for item in removed:
            item.request.waiting -= 1
        if not lane.rows:
            del self.lanes[client]
        return True

    @staticmethod
    def _count(lengths: Sequence[int], sign: int, *totals: Totals) -> None:
        change = work(lengths)
        for total in totals:
            total.count(*change, sign)


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
        self.short = {key: SequenceQueue(self, key, times[key]) for key in times}
        self.long = {key: SequenceQueue(self, key, times[key], is_long=True) for key in times}
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
    def queues(self) -> list[SequenceQueue]:
        """All queues of the model."""
        return [*self.short.values(), *self.long.values()]

    @property
    def has_room(self) -> bool:
        """Whether another call may start beside those that run, if a core is idle."""
        return self.running_calls < self.max_calls

    @property
    def max_calls(self) -> int:
        """The number of calls that may run at the same time."""
        return min(self._executor.size, self.latency.cost.max_calls or self._executor.size)

    def most_waiting(self, lengths: Sequence[int]) -> int:
        """Returns how many sequences of one request wait in a queue at most: those of the next call of each core.

        If the engine pads, more of them wait, so that those of similar lengths find each other. Sequences for the heads
        of a trunk all wait, so that they can join.
        """
        cost = self.latency.cost
        if cost.shares_trunk:
            return sys.maxsize
        rows = self.max_calls * min(cost.max_rows, math.ceil(cost.max_tokens * len(lengths) / max(1, sum(lengths))))
        return max(rows, LOOKAHEAD) if cost.padded or cost.padded_attention else rows

    def is_long(self, length: int) -> bool:
        """Returns whether sequences of a length have a queue of their own, so that they cannot take the last core.

        Other engines than those that share cores would leave that core idle.
        """
        return self.latency.cost.shares_cores and self._executor.size > 1 and self.latency.single_s(length) >= LONG_S

    def sequence_s(self, length: int) -> float:
        """Predicts one core's seconds for a sequence, as part of full batches."""
        return self.latency.backlog_s(1, length, length * length)

    def work_s(self, lengths: Sequence[int]) -> float:
        """Predicts one core's seconds for sequences of these lengths, in batches as full as the limits allow."""
        return self.latency.backlog_s(*work(lengths))
