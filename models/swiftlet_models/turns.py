"""Lets an event loop run between the pieces of a long loop on another thread.

Python's lock goes to a thread that waits for it only after the switch interval, and a loop that serves requests needs
the lock several times for each. A request that is alone with a busy thread thus takes several times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class _OfThread(threading.local):
    give_way: Callable[[], None] | None = None  # of the class, because a missing attribute takes 2 µs to find


_of_thread = _OfThread()


@contextmanager
def giving_way(give_way: Callable[[], None]) -> Iterator[None]:
    """Has the loops of this thread call a function before each item. The function waits if others should run first."""
    _of_thread.give_way = give_way
    try:
        yield
    finally:
        _of_thread.give_way = None


def in_turns(items: Iterable[T], every: int = 1) -> Iterable[T]:
    """Returns items to loop over. On a thread that gives way, others can run before every so many of them."""
    give_way = _of_thread.give_way
    return items if give_way is None else _in_turns(items, give_way, every)


def _in_turns(items: Iterable[T], give_way: Callable[[], None], every: int) -> Iterator[T]:
    for number, item in enumerate(items):
        if not number % every:
            give_way()
        yield item
