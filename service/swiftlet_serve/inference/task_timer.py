"""Time limits of the asyncio tasks of one event loop, with one timer for all.

`asyncio.timeout_at` starts and cancels a timer for each task, which takes 8 us of a request (uvloop, Zen 3). Few
deadlines pass. One timer for the earliest deadline takes 2 us.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Final

from swiftlet_serve.errors import deadline_exceeded

RESOLUTION_S: Final = 0.001  # of uvloop's timers


class TaskTimer:
    """Cancels the tasks of one event loop at their deadlines. Times are the loop's, which are `time.monotonic()`."""

    def __init__(self) -> None:
        self._limits: set[Limit] = set()  # of tasks that run
        self._loop: asyncio.AbstractEventLoop | None = None  # of the timer
        self._timer: asyncio.TimerHandle | None = None
        self._next_check = math.inf  # when the timer fires: at the earliest deadline, or before

    def limit(self, deadline: float) -> Limit:
        """Returns a context manager that cancels the current task at the deadline, and then raises DeadlineExceeded."""
        return Limit(self, deadline)

    def add(self, limit: Limit) -> None:
        """Starts watching a limit."""
        self._limits.add(limit)
        loop = asyncio.get_running_loop()
        if limit.deadline < self._next_check or loop is not self._loop:
            self._set_timer(loop, limit.deadline)

    def discard(self, limit: Limit) -> None:
        """Stops watching a limit. The timer stays: it fires once and has no effect."""
        self._limits.discard(limit)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop, self._next_check = loop, at
        self._timer = loop.call_at(at + RESOLUTION_S, self._check, loop)  # never early

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._next_check = None, math.inf
        now = loop.time()
        for limit in [limit for limit in self._limits if limit.deadline <= now]:
            self._limits.discard(limit)
            limit.expire()
        if self._limits:
            self._set_timer(loop, min(limit.deadline for limit in self._limits))


class Limit:
    """A deadline of the task that enters it."""

    __slots__ = ("_cancellations", "_is_expired", "_task", "_timer", "deadline")

    def __init__(self, timer: TaskTimer, deadline: float) -> None:
        self.deadline = deadline
        self._timer = timer
        self._is_expired = False

    def expire(self) -> None:
        """Cancels the task."""
        self._is_expired = True
        self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # for the type checker
        self._task, self._cancellations = task, task.cancelling()
        self._timer.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.discard(self)
        # As asyncio.timeout: if the task was cancelled for another reason too, it stays cancelled.
        if self._is_expired and self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise deadline_exceeded() from error
