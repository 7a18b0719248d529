"""What waits for an engine: encodings, each with its caller, in the order of their turns."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.types import Deadline, Priority, Row


@dataclass(eq=False, slots=True)
class QueuedSequence:
    """One encoding and the caller who waits for its row. Times are those of the pool's clock."""

    encoding: Encoding
    deadline: Deadline
    priority: Priority
    turn: float  # the time of arrival that decides when it runs
    submitted: float
    answer: asyncio.Future[Row]
    started: float = math.nan
    finished: float = math.nan
    engine_s: float = 0.0  # of its call, the engine's own time
    rows: int = 0  # of its batch
    suspect: bool = False  # whether the engine was lost while this ran, and this may have been why

    def __len__(self) -> int:
        return len(self.encoding.input_ids)


class Line:
    """Encodings in the order of their turns; those of one turn, in the order they came."""

    def __init__(self) -> None:
        self.tokens = 0
        self.squares = 0  # the sum of all lengths squared
        self._items: list[QueuedSequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedSequence]:
        return iter(self._items)

    @property
    def turn(self) -> float:
        """Of the first; there must be one."""
        return self._items[0].turn

    def before(self, turn: float) -> tuple[int, int, int]:
        """Rows, tokens and squares of what goes before a newcomer of that turn."""
        later = self._items[bisect_right(self._items, turn, key=_turn) :]
        tokens, squares = sum(len(item) for item in later), sum(len(item) ** 2 for item in later)
        return len(self) - len(later), self.tokens - tokens, self.squares - squares

    def add(self, item: QueuedSequence) -> None:
        insort(self._items, item, key=_turn)
        self.tokens += len(item)
        self.squares += len(item) ** 2

    def discard(self, item: QueuedSequence) -> None:
        """Removes an item from anywhere, if it is there."""
        at = bisect_left(self._items, item.turn, key=_turn)
        while at < len(self._items) and self._items[at].turn == item.turn:
            if self._items[at] is item:
                del self._items[at]
                self.tokens -= len(item)
                self.squares -= len(item) ** 2
                return
            at += 1


def _turn(item: QueuedSequence) -> float:
    return item.turn
