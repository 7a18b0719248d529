"""Scheduling of socket reads and pages. No burst of requests blocks the event loop, and no client blocks the others.

An event loop delivers everything that is readable in one iteration. Responses and engine calls wait until the last read
is processed. At ten times the capacity of a server that takes a tenth of a second, mostly spent on refusals, while
engines are idle. The scheduler therefore gives reads a time budget per iteration and defers the rest.

Clients take turns, and so do the connections of a client. Among equals, the oldest read runs first. Reads that wait for
longer than `STALE_S` switch this order to newest first, because the newest requests have the most time left (adaptive
LIFO, as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015).

Two kinds of requests cost a client nothing and can keep the loop busy for ever: requests that were pipelined behind
others, and pages, which are all requests that run no model. They have a separate queue, which is never newest
first, and at most a fifth of the loop's time: once they took a millisecond, the next one waits four times as long. At
most one page starts in an iteration.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, Protocol, TypeVar

Item = TypeVar("Item")

BUDGET_S: Final = 0.001  # per iteration: ten refusals, and less than a small batch takes
STALE_S: Final = 0.1
REST: Final = 4  # times the duration of pages and pipelined requests, which thus take a fifth of the time
REST_AFTER_S: Final = 0.004  # of rest that is due
MAX_TURN_S: Final = 0.05  # that a turn counts as: the process may have been suspended meanwhile
CROWDED_S: Final = 1.0  # wait of pages and pipelined requests before it is reported
# Under overload, the oldest item is often too late to be of use. In a simulation at three times the capacity, 94 % of
# the turns are useful if one in 16 is the oldest's, and 98.5 % if one in 64 is.
FAIR_EVERY: Final = 64


class Reader(Protocol):
    """A connection that waits for its turn."""

    @property
    def client(self) -> Hashable:
        """The client that its turns count for."""
        ...

    def read(self) -> None:
        """Uses the turn. Must not raise."""


class ReadScheduler:
    """Gives connections their turns on one event loop, within a time budget per iteration."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_crowded: Callable[[Hashable], None] = lambda _: None,
    ) -> None:
        """Creates a scheduler.

        Args:
            clock: returns the time in seconds.
            on_crowded: called with the client of each page or pipelined request that has to wait, while such requests
                have queued for longer than `CROWDED_S`.
        """
        self._clock = clock
        self._on_crowded = on_crowded
        self._fresh = FairQueue(STALE_S)
        self._background = FairQueue(math.inf)  # pages and pipelined requests
        self._pages: set[Reader] = set()  # background connections that start a page
        self._crowded_since = 0.0  # when the background last was empty
        self._budget_end = 0.0
        self._scheduled = False  # whether `_run` is called in the next iteration
        self._page_started = 0.0  # the page of this iteration
        self._starts_page = False  # whether a page runs in the next iteration
        self._is_resting = False  # whether the background waits for its share
        self._rest_end = 0.0

    def request_turn(self, reader: Reader) -> bool:
        """Returns whether a connection may read now. If not, its `read` is called in a later iteration."""
        now = self._clock()
        if not self._scheduled:
            self._budget_end = now + BUDGET_S
            self._schedule_run()
        if self._fresh or now >= self._budget_end:
            self._fresh.add(reader, now)
            return False
        return True

    def schedule_pipelined(self, reader: Reader) -> None:
        """Calls `reader.read` in a later iteration, for a request that was received behind another one."""
        self._defer(reader)

    def schedule_page(self, reader: Reader) -> None:
        """Calls `reader.read`, which starts a page, now or in a later iteration."""
        if self._background or self._is_resting or self._starts_page:
            self._pages.add(reader)
            self._defer(reader)
        else:
            self._start_page(reader)

    def cancel(self, reader: Reader) -> None:
        """Removes a connection."""
        self._fresh.discard(reader)
        self._background.discard(reader)
        self._pages.discard(reader)

    def has_backlog(self) -> bool:
        """Returns whether first requests are deferred to a later iteration."""
        return bool(self._fresh)

    @property
    def is_idle(self) -> bool:
        """Whether no connection waits for its turn."""
        return not self._fresh and not self._background

    def _defer(self, reader: Reader) -> None:
        now = self._clock()
        if not self._background:
            self._crowded_since = now
        elif now - self._crowded_since > CROWDED_S:
            self._on_crowded(reader.client)
        self._background.add(reader, now)
        if self._may_run_background():
            self._schedule_run()

    def _may_run_background(self) -> bool:
        return bool(self._background) and not self._is_resting and not self._starts_page

    def _schedule_run(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._budget_end = self._clock() + BUDGET_S
        try:
            if self._may_run_background():  # in every iteration, to make progress
                self._run_background()
            while self._fresh and (now := self._clock()) < self._budget_end:
                self._fresh.take(now).read()
            while self._may_run_background() and self._clock() < self._budget_end:
                self._run_background()
        finally:
            if self._fresh or self._may_run_background():
                self._schedule_run()

    def _run_background(self) -> None:
        started = self._clock()
        reader = self._background.take(started)
        if reader in self._pages:
            self._pages.discard(reader)
            self._start_page(reader)
        else:
            reader.read()
            self._charge(started)

    def _start_page(self, reader: Reader) -> None:
        """Starts a page. The loop runs its first step, which is often its only one, between the two callbacks."""
        loop = asyncio.get_running_loop()
        self._starts_page = True
        loop.call_soon(self._before_page)
        try:
            reader.read()
        finally:
            loop.call_soon(self._after_page)

    def _before_page(self) -> None:
        self._page_started = self._clock()

    def _after_page(self) -> None:
        self._starts_page = False
        self._charge(self._page_started)
        if self._may_run_background():
            self._schedule_run()

    def _charge(self, started: float) -> None:
        """Counts the time since `started`, and begins a rest if it is due."""
        now = self._clock()
        took_s = min(now - started, MAX_TURN_S)
        self._rest_end = max(self._rest_end + took_s, now) + REST * took_s  # while it runs, it does not rest
        if not self._is_resting and self._rest_end - now >= REST_AFTER_S:
            self._is_resting = True
            asyncio.get_running_loop().call_later(self._rest_end - now, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        if self._background:
            self._schedule_run()


class FairQueue:
    """Connections that wait for a turn. Clients take turns, and so do the connections of a client.

    If a connection waits for too long, the newest comes first, because its request has the most time left. One turn in
    `FAIR_EVERY` still goes to the oldest: a client that sends its next request at once is always the newest.
    """

    def __init__(self, stale_s: float) -> None:
        """Creates an empty queue. Once the oldest connection has waited `stale_s` seconds, the newest come first."""
        self._stale_s = stale_s
        self._count = 0  # of turns
        self._clients: Turns[Hashable] = Turns()
        self._readers: dict[Hashable, Turns[Reader]] = {}  # by their clients
        self._since: dict[Reader, float] = {}  # the longest wait first

    def __bool__(self) -> bool:
        return bool(self._since)

    def add(self, reader: Reader, now: float) -> None:
        """Adds a connection. One that waits already keeps its place."""
        if reader not in self._since:
            self._since[reader] = now
            self._readers.setdefault(reader.client, Turns()).add(reader)
            self._clients.add(reader.client)

    def take(self, now: float) -> Reader:
        """Removes the connection whose turn it is, and returns it."""
        self._count += 1
        if now - next(iter(self._since.values())) > self._stale_s and self._count % FAIR_EVERY:
            reader = next(reversed(self._since))
        else:
            reader = self._readers[self._clients.choose()].choose()
        readers = self._readers[reader.client]
        readers.take(reader)
        self._clients.take(reader.client)
        if readers:
            self._clients.add(reader.client)
        else:
            del self._readers[reader.client]
        del self._since[reader]
        return reader

    def discard(self, reader: Reader) -> None:
        """Removes a connection, if it waits, and forgets its turn."""
        self._since.pop(reader, None)
        readers = self._readers.get(reader.client)
        if readers is not None:
            readers.discard(reader)
            if not readers:
                del self._readers[reader.client]
                self._clients.discard(reader.client)


class Turns(Generic[Item]):
    """Waiting items. Each has one turn per round.

    An item that waits again after its turn goes behind all others. A round has as many turns as items waited when it
    began. New items cannot prolong it.
    """

    def __init__(self) -> None:
        self._waiting: dict[Item, None] = {}  # the longest wait first
        self._next: dict[Item, None] = {}  # wait for the next round
        self._served: set[Item] = set()  # in this round
        self._turns_left = 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self._next)

    def add(self, item: Item) -> None:
        """Adds an item. One that waits already keeps its place."""
        if item not in self._waiting:
            (self._next if item in self._served else self._waiting)[item] = None

    def choose(self) -> Item:
        """Returns the item whose turn it is. It goes on waiting until `take`."""
        if not self._waiting or not self._turns_left:
            self._waiting.update(self._next)
            self._next.clear()
            self._served.clear()
            self._turns_left = len(self._waiting)
        return next(iter(self._waiting))

    def take(self, item: Item) -> None:
        """Removes an item that waits, and counts its turn."""
        self.discard(item)
        self._turns_left = max(0, self._turns_left - 1)
        if self:
            self._served.add(item)
        else:
            self._served.clear()

    def discard(self, item: Item) -> None:
        """Removes an item, if it waits, and forgets its turn."""
        self._waiting.pop(item, None)
        self._next.pop(item, None)
        self._served.discard(item)
