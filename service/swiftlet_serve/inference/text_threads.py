"""Threads that do the work of long requests beside an event loop, which goes first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from swiftlet_models.turns import giving_way

PIECE_S: Final = 0.0007  # of work between two turns of the event loop, each of which costs 0.05 ms
LEAST_S: Final = 0.0001  # that is left of a piece: otherwise it is over
PATIENCE_S: Final = 0.002  # that a busy event loop keeps a thread from its next piece: a quarter of the time is its own

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Lets an event loop finish what it has to do after each piece of a thread's work.

    The time that the thread waits, because the loop or another program runs, is no work.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        work: Callable[[], float] = time.thread_time,
    ) -> None:
        """Begins a piece, on the thread that works. `clock` returns the time and `work` its CPU time, in seconds."""
        self._loop, self._clock, self._work = loop, clock, work
        self._earliest = self._end = 0.0
        self._begin()

    def __call__(self) -> None:
        """Returns at once within a piece, and after it once the loop has had a turn."""
        now = self._clock()
        if now < self._earliest:  # a look at the CPU time takes several times as long
            return
        if (left := self._end - self._work()) > LEAST_S:
            self._earliest = now + left
            return
        turn = threading.Lock()
        turn.acquire()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(turn.release)
            turn.acquire(timeout=PATIENCE_S)
        self._begin()

    def _begin(self) -> None:
        self._earliest = self._clock() + PIECE_S  # time before which the piece cannot end
        self._end = self._work() + PIECE_S  # of the piece, as CPU time


async def run_in_thread(threads: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function on one of these threads. Long texts must not block the event loop."""
    loop = asyncio.get_running_loop()

    def run() -> T:
        with giving_way(Turns(loop)):
            return function(*args, **kwargs)

    return await loop.run_in_executor(threads, run)
