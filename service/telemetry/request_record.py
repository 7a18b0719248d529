"""What is known of one request, noted where the work is done and read where the answer leaves.

It holds names, numbers and times, and never any of the request's text: it goes into logs, metrics and traces.

The stages of a request: `parse`, bytes to a request; `encode`, text to encodings; `queue`, from the submission of an
encoding to the start of its batch; `batch`, what the batch's call takes beside the engine's own work: to be packed, to
reach the engine and to come back; `infer`, the engine's own work; `decode`, rows to an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

Stage = Literal["parse", "encode", "queue", "batch", "infer", "decode"]
OTHER: Final = "-"  # for names that a client made up
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


class Span(NamedTuple):
    """A stretch of time, in seconds of `time.monotonic()`."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One request. Times are seconds of `time.monotonic()`."""

    id: str = ""
    method: str = ""  # OTHER where it is none of the usual ones
    route: str = ""  # the address, where the server has it; OTHER where not
    began: float = field(default_factory=time.monotonic)
    on_accept: Callable[[RequestRecord], None] | None = None  # called once it is admitted
    ended: float = 0.0
    traceparent: str | None = None  # as it came, unchecked
    client: str = ""  # the owner of the key, or the address
    task: str = ""  # where it is a task's route
    model: str = ""  # that is served and was asked; empty where none was found
    stages: dict[Stage, Span] = field(default_factory=dict)  # where a request has several encodings, of the slowest
    characters: int = 0  # of its inputs
    rows: int = 0  # encodings
    tokens: int = 0  # of them all
    batch_rows: int = 0  # of the largest batch that one of them ran in, neighbours included
    received: int = 0  # bytes of the body
    bulk: bool = False  # whether it can wait
    allowed_s: float | None = None  # until its deadline, where it brought one
    accepted: bool = False  # whether it was admitted
    status: int | None = None  # of the answer; None: the client hung up before there was one
    code: str = ""  # of the error that it was answered with

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def accept(self, rows: int, tokens: int) -> None:
        """Notes that all its encodings wait for their turn."""
        self.rows, self.tokens, self.accepted = rows, tokens, True
        if self.on_accept is not None:
            self.on_accept(self)

    def note(self, stage: Stage, began: float, ended: float) -> None:
        """Notes a stage, unless another encoding was slower at it."""
        known = self.stages.get(stage)
        if known is None or known.seconds < ended - began:
            self.stages[stage] = Span(began, ended)

    def ran(self, rows: int) -> None:
        """Notes that an encoding ran in a batch of so many rows."""
        self.batch_rows = max(self.batch_rows, rows)


_current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


def current() -> RequestRecord | None:
    """Of the request at hand, if there is one."""
    return _current.get()


@contextmanager
def recording(record: RequestRecord) -> Iterator[RequestRecord]:
    """What is noted inside the block, tasks started from there included, is of this request."""
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


class measure:  # noqa: N801  # reads as the function it could be, in a third of the time
    """Notes how long the block takes; without a request at hand, does nothing else than the block."""

    __slots__ = ("_began", "_stage")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        note(self._stage, self._began, time.monotonic())


def note(stage: Stage, began: float, ended: float) -> None:
    """As `RequestRecord.note`, of the request at hand; without one, does nothing."""
    if (record := _current.get()) is not None:
        record.note(stage, began, ended)


def ran(rows: int) -> None:
    """As `RequestRecord.ran`, of the request at hand; without one, does nothing."""
    if (record := _current.get()) is not None:
        record.ran(rows)


def accept(rows: int, tokens: int) -> None:
    """As `RequestRecord.accept`, of the request at hand; without one, does nothing."""
    if (record := _current.get()) is not None:
        record.accept(rows, tokens)
