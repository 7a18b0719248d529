"""Record of one request, filled in where the work is done and read by metrics, access log and traces.

It holds names, numbers and times, and never any text of the request.

The stages of a request:

    parse    body to request model
    encode   text to sequences
    queue    from the submission of a sequence to the start of its batch
    batch    overhead of the batch's call: packing, transport to the engine and back
    infer    the engine's own time
    decode   rows to response
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

Stage = Literal["parse", "encode", "queue", "batch", "infer", "decode"]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

OTHER: Final = "-"
"""Stands for a method or route that the server does not know."""


class Span(NamedTuple):
    """An interval, in seconds of `time.monotonic()`."""

    started: float
    ended: float

    @property
    def duration_s(self) -> float:
        return self.ended - self.started


@dataclass(eq=False, slots=True)
class RequestRecord:
    """One request. Times are seconds of `time.monotonic()`."""

    id: str = ""
    method: str = ""  # OTHER if it is not a common method
    route: str = ""  # path, or OTHER if the server has no such route
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    traceparent: str | None = None  # as received, not validated
    client: str = ""  # owner of the API key, or IP address
    task: str = ""  # set for requests to a task's route
    model: str = ""  # served model that was asked, empty if there is none
    stages: dict[Stage, Span] = field(default_factory=dict)  # of several sequences, the slowest counts
    characters: int = 0  # of all inputs
    sequences: int = 0
    tokens: int = 0  # of all sequences
    batch_size: int = 0  # sequences of the largest batch that ran one of this request's, other requests' included
    body_bytes: int = 0
    bulk: bool = False  # whether the request has the priority bulk
    timeout_s: float | None = None  # timeout that the client asked for
    accepted: bool = False
    status: int | None = None  # of the response; None if the client disconnected before there was one
    code: str = ""  # of the error in the response

    @property
    def duration_s(self) -> float:
        return self.ended - self.started

    def accept(self, sequences: int, tokens: int) -> None:
        """Marks the request as accepted: all of its sequences are queued."""
        self.sequences, self.tokens, self.accepted = sequences, tokens, True

    def add_stage(self, stage: Stage, started: float, ended: float) -> None:
        """Records a stage, unless another sequence took longer in it."""
        known = self.stages.get(stage)
        if known is None or known.duration_s < ended - started:
            self.stages[stage] = Span(started, ended)

    def add_batch(self, size: int) -> None:
        """Records that a sequence ran in a batch of `size` sequences."""
        self.batch_size = max(self.batch_size, size)


_current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


@contextmanager
def recording(record: RequestRecord) -> Iterator[RequestRecord]:
    """Makes `record` the current one inside the block and in tasks started there."""
    token = _current.set(record)
    try:
        yield record
    finally:
        _current.reset(token)


class measure:  # noqa: N801  # a class runs in a third of the time of a generator-based context manager
    """Context manager that records the block as a stage of the current request, if there is one."""

    __slots__ = ("_stage", "_started")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *_: object) -> None:
        add_stage(self._stage, self._started, time.monotonic())


def add_stage(stage: Stage, started: float, ended: float) -> None:
    """Calls `RequestRecord.add_stage` on the current record, if there is one."""
    if (record := _current.get()) is not None:
        record.add_stage(stage, started, ended)


def add_batch(size: int) -> None:
    """Calls `RequestRecord.add_batch` on the current record, if there is one."""
    if (record := _current.get()) is not None:
        record.add_batch(size)
