"""Scheduling of socket reads and pages. No burst of requests blocks the event loop, and no client blocks the others.

An event loop delivers everything that is readable in one iteration. Responses and engine calls wait until the last read
is processed. At ten times the capacity of a server that takes a tenth of a second, mostly spent on refusals, while
engines are idle. The scheduler therefore gives reads a time budget per iteration and defers the rest.

Clients take turns, and so do the connections of a client (`fair_queue`). Among equals, the oldest
read runs first. Reads that wait for longer than `STALE_S` switch this order to newest first, because the newest
requests have the most time left (adaptive LIFO, as in B. Maurer, "Fail at Scale", ACM Queue 13(8), 2015).

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
from typing import Final

from swiftlet_serve.http.connections.fair_queue import FairQueue, Reader

BUDGET_S: Final = 0.001  # per iteration: ten refusals, and less than a small batch takes
STALE_S: Final = 0.1
REST: Final = 4  # times the duration of pages and pipelined requests, which thus take a fifth of the time
REST_AFTER_S: Final = 0.004  # of rest that is due
MAX_TURN_S: Final = 0.05  # that a turn counts as: the process may have been suspended meanwhile
CROWDED_S: Final = 1.0  # wait of pages and pipelined requests before it is reported


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

    def schedule(self, reader: Reader) -> None:
        """Calls `reader.read` now if the iteration has budget left, and otherwise in a later iteration."""
        now = self._clock()
        if not self._scheduled:
            self._budget_end = now + BUDGET_S
            self._schedule_run()
        if self._fresh or now >= self._budget_end:
            self._fresh.add(reader, now)
        else:
            reader.read()

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

    @property
    def has_backlog(self) -> bool:
        """Whether first requests are deferred to a later iteration."""
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
