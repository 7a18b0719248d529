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
    trace_id: str = ""  # of its span, in hexadecimal digits; empty if the request is not traced
    client: str = ""  # owner of the API key, or IP address
    account: str = ""  # the client in rate limits and fair shares: the owner, or the network of one client
    task: str = ""  # set for requests to a task's route
    dialect: str = ""  # protocol of another server that the request speaks, empty for Swiftlet's own
    model: str = ""  # served model that was asked; empty for other requests
    version: int | None = None  # of the model in the model repository; None if it is from no repository
    stages: dict[Stage, Span] = field(default_factory=dict)  # of several sequences, the slowest counts
    characters: int = 0  # of all inputs
    sequences: int = 0
    tokens: int = 0  # of all sequences, as the network reads them, or the table of queries
    kept_tokens: int = 0  # of further sequences, whose rows were computed for earlier inputs
    left_out: int = 0  # tokens of all sequences that were cut off, beyond the model's limit
    truncated: tuple[str, ...] = ()  # JSON Pointers of the texts that were cut, in our own request
    batch_size: int = 0  # sequences of the largest batch with one of this request's, other requests' included
    body_bytes: int = 0
    bulk: bool = False  # whether the request has the priority bulk
    timeout_s: float | None = None  # timeout that the client asked for
    minimum_s: float = 0.0  # predicted time of the engine for this request alone, if it is refused or late
    parts: int = 1  # that are queued one by one, before the request is accepted: one for each member of an ensemble
    charged: bool = False  # whether its client's rate limit has counted it
    accepted: bool = False
    status: int | None = None  # of the response; None if the client disconnected before there was one
    code: str = ""  # of the error in the response

    @property
    def duration_s(self) -> float:
        return self.ended - self.started

    @property
    def input_tokens(self) -> int:
        """The tokens of all sequences before they were cut, also of those whose rows were there already."""
        return self.tokens + self.kept_tokens + self.left_out

    def accept(self, sequences: int, tokens: int) -> bool:
        """Notes that a part of the request is queued. Returns whether all of it is, so that it is accepted now."""
        self.sequences += sequences
        self.tokens += tokens
        self.parts -= 1
        self.accepted = not self.parts
        return self.accepted

    def add_stage(self, stage: Stage, started: float, ended: float) -> None:
        """Records a stage, unless another sequence took longer in it."""
        known = self.stages.get(stage)
        if known is None or known.ended - known.started < ended - started:
            self.stages[stage] = Span(started, ended)

    def add_call(self, submitted: float, started: float, ended: float, engine_s: float, size: int) -> None:
        """Records that a sequence ran in a batch.

        Args:
            submitted: when the sequence was queued.
            started: when the batch's call started.
            ended: when the call ended.
            engine_s: the engine's own time. The rest of the call counts as the stage `batch`, as if it came first.
            size: sequences of the batch.
        """
        self.add_stage("queue", submitted, started)
        self.add_stage("batch", started, ended - engine_s)
        self.add_stage("infer", ended - engine_s, ended)
        self.batch_size = max(self.batch_size, size)
