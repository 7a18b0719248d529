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
PATIENCE_S: Final = 0.002  # that a busy event loop keeps a thread from its next piece: a quarter of the time is its own

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Lets an event loop finish what it has to do after each piece of a thread's work."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self._loop, self._clock = loop, clock
        self._ends = clock() + PIECE_S

    def __call__(self) -> None:
        """Returns at once within a piece, and after it once the loop has had a turn."""
        if self._clock() < self._ends:
            return
        turn = threading.Lock()
        turn.acquire()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(turn.release)
            turn.acquire(timeout=PATIENCE_S)
        self._ends = self._clock() + PIECE_S


async def run_in_thread(threads: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a function on one of these threads. Long texts must not block the event loop."""
    loop = asyncio.get_running_loop()

    def run() -> T:
        with giving_way(Turns(loop)):
            return function(*args, **kwargs)

    return await loop.run_in_executor(threads, run)
