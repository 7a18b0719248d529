"""The vocabulary of the service: what travels between the tasks, the batcher and the engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.errors import Internal
from swiftlet_serve.service.topk import NOTHING, Ranked, rank, width

if TYPE_CHECKING:
    from pydantic import BaseModel  # an engine process needs none

Row = NDArray[np.float32]
"""One encoding's share of an engine's output, (F, O): for each of its F focus positions, the head's O numbers.

Of a `Ranked` encoding it is what `service.topk` makes of those.
"""

Outcome = Row | Internal
"""What became of one encoding."""

Deadline = float
"""When an answer stops being of use, in seconds of `time.monotonic()`."""

Priority = Literal["interactive", "bulk"]
"""Who waits for an answer: a person, or a program that has time."""

Scheduler = Literal["deadlines", "fifo"]
"""What may come in: what can be answered by its deadline, or whatever there is room for."""

Submit = Callable[[Sequence[Encoding], Deadline, Priority], Sequence[Awaitable[Row]]]
"""The seam of the service: all encodings of a request in, for each its row out, or all are refused at once.

A `Batcher` is one; so is a fake in a test. Whoever no longer wants a row cancels it.
"""


@dataclass(frozen=True, eq=False)
class Batch:
    """B encodings laid end to end, without padding: T tokens, N focus positions and M columns that count in all."""

    input_ids: NDArray[np.int64]  # (T,)
    token_type_ids: NDArray[np.int64]  # (T,)
    offsets: NDArray[np.int64]  # (B + 1,): encoding b is tokens offsets[b] to offsets[b + 1]
    focus: NDArray[np.int64]  # (N,): positions within their own encoding
    focus_offsets: NDArray[np.int64]  # (B + 1,): encoding b has focus[focus_offsets[b]:focus_offsets[b + 1]]
    most: NDArray[np.int64]  # (B,): how many of each row are wanted where encoding b is `Ranked`; 0 where it is not
    among: NDArray[np.int64]  # (M,)
    among_offsets: NDArray[np.int64]  # (B + 1,): encoding b has among[among_offsets[b]:among_offsets[b + 1]]

    @classmethod
    def of(cls, encodings: Sequence[Encoding]) -> Batch:
        """Lays encodings end to end."""
        most = [e.most if isinstance(e, Ranked) else 0 for e in encodings]
        among = [e.among if isinstance(e, Ranked) else NOTHING for e in encodings]
        return cls(
            input_ids=np.concatenate([e.input_ids for e in encodings]),
            token_type_ids=np.concatenate([e.token_type_ids for e in encodings]),
            offsets=_offsets(e.input_ids for e in encodings),
            focus=np.concatenate([e.focus for e in encodings]),
            focus_offsets=_offsets(e.focus for e in encodings),
            most=np.array(most),
            among=np.concatenate(among) if any(most) else NOTHING,
            among_offsets=_offsets(among),
        )

    @classmethod
    def whole(cls, **arrays: NDArray[np.int64]) -> Batch:
        """The first five of the fields, where nothing is `Ranked`."""
        none = np.zeros(len(arrays["offsets"]), np.int64)
        return cls(**arrays, most=none[1:], among=NOTHING, among_offsets=none)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """All of it, in the order in which it leaves the process and enters C++: where things are, then the things."""
        counts = self.offsets, self.focus_offsets, self.among_offsets, self.most
        return *counts, self.input_ids, self.token_type_ids, self.focus, self.among

    def encodings(self) -> list[Encoding]:
        """What the batch was made of, as views."""
        tokens, focus = self.offsets[1:-1], self.focus_offsets[1:-1]
        parts = np.split(self.input_ids, tokens), np.split(self.token_type_ids, tokens), np.split(self.focus, focus)
        wanted = zip(self.most.tolist(), np.split(self.among, self.among_offsets[1:-1]), strict=True)
        return [
            Ranked(*part, most, among) if most else Encoding(*part)
            for part, (most, among) in zip(zip(*parts, strict=True), wanted, strict=True)
        ]

    def shapes(self, outputs: int) -> list[tuple[int, int]]:
        """Those of the encodings' rows, where the head has so many outputs."""
        focus, among = self.focus_offsets.tolist(), self.among_offsets.tolist()
        return [
            (focus[b + 1] - focus[b], width(most, among[b + 1] - among[b], outputs))
            for b, most in enumerate(self.most.tolist())
        ]

    def rectangle(self) -> PaddedBatch:
        """The batch as B rows of S tokens, S being the longest; the rest of each row is zeros."""
        lengths = np.diff(self.offsets)
        B, S = len(self), int(lengths.max())  # noqa: N806
        row = np.repeat(np.arange(B), lengths)
        column = np.arange(len(self.input_ids)) - np.repeat(self.offsets[:-1], lengths)
        input_ids = np.zeros((B, S), np.int64)
        input_ids[row, column] = self.input_ids
        token_type_ids = np.zeros((B, S), np.int64)
        token_type_ids[row, column] = self.token_type_ids
        focus = np.repeat(np.arange(B), np.diff(self.focus_offsets)) * S + self.focus
        return PaddedBatch(input_ids, token_type_ids, lengths, focus)

    def split(self, rows: NDArray[np.float32]) -> list[Row]:
        """Cuts the head's numbers (N, O) into each encoding's row. No caller holds a view of another's."""
        # What are too many rows go to the last, whose shape is wrong then: there is no telling whose they are.
        focus, among = [*self.focus_offsets[:-1].tolist(), len(rows)], self.among_offsets.tolist()
        found = []
        for b, most in enumerate(self.most.tolist()):
            part = rows[focus[b] : focus[b + 1]]
            found.append(rank(part, most, self.among[among[b] : among[b + 1]]) if most else part.copy())
        return found


def _offsets(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Where each begins when they are laid end to end, and where the last ends."""
    return np.array(list(accumulate(map(len, parts), initial=0)))


class PaddedBatch(NamedTuple):
    """A padded batch; the fields are named as the inputs of an artifact's ONNX graph."""

    input_ids: NDArray[np.int64]  # (B, S)
    token_type_ids: NDArray[np.int64]  # (B, S)
    lengths: NDArray[np.int64]  # (B,): real tokens of each row
    focus: NDArray[np.int64]  # (N,): position s of row b is b * S + s


@dataclass(frozen=True)
class Cost:
    """What a batch costs an engine, counted in tokens, and how far a larger one still pays."""

    padded: bool  # whether a batch costs its rows times the longest of them, rather than its real tokens
    call_tokens: int  # what a call costs before its first token: a row that would pad more is better off in another
    max_tokens: int  # of a batch, as charged
    max_rows: int
    padded_attention: bool = False  # whether attention costs its rows times the longest, if nothing else does
    calls: int | None = None  # at the same time, beyond which nothing is gained; None: as many as there are cores


class TimedCall(NamedTuple):
    """A call of one row, and what it took."""

    tokens: int
    seconds: float


class Engine(Protocol):
    """A network in some runtime. It knows no task, and no architecture by name.

    `service/engines/<name>.py` makes one with `create(artifact: Artifact, threads: int)`; `threads` is what one call
    may use.
    """

    @property
    def title(self) -> str:
        """What runs the network, in words: one engine may choose among several ways, or fall back on another."""
        ...

    @property
    def cost(self) -> Cost: ...

    faithful: ClassVar[bool]
    """Whether it computes the artifact's network, so that the golden answers hold for it."""

    @property
    def rounding(self) -> float:
        """How far its arithmetic may be off beyond the artifact's tolerance, relative to the largest golden answer."""
        ...

    def run(self, batch: Batch) -> Sequence[Row]:
        """Blocks until the batch is done: for each encoding its row, as `batch.split` makes them of the head's numbers.

        May be called from several threads at once.
        """
        ...

    def close(self) -> None:
        """Frees what the engine holds. No call may follow."""
        ...


class WorkerLost(Exception):
    """The engine died, or was ended, during this call.

    `suspects` says whether this call may have been the cause: it took too long, or the engine died by itself.
    """

    def __init__(self, *, suspects: bool) -> None:
        super().__init__(f"an engine was lost, {'perhaps' if suspects else 'not'} because of this call")
        self.suspects = suspects


class BatchResult(NamedTuple):
    """A call that ended."""

    outcomes: list[Outcome]  # for each encoding its row, or why it has none
    engine_s: float  # the engine's own time, without the way there and back


class Executor(Protocol):
    """Where batches run, at most `size` at a time."""

    size: int
    restarts: int
    """Engines that were lost so far, and replaced."""

    def cost(self, model: str) -> Cost: ...

    def timed(self, model: str) -> Sequence[TimedCall]:
        """Calls that the engine made while it was loaded."""
        ...

    async def open(self) -> None:
        """Begins to watch over the engines, on the event loop that `run` will be called on."""
        ...

    def run(self, model: str, encodings: Sequence[Encoding], patience_s: float) -> Awaitable[BatchResult]:
        """Begins a batch, at once if it can: a turn of the event loop may be as long as a call.

        Raises:
            WorkerLost: there was no answer within `patience_s`, or the engine died or was ended meanwhile.
            Unavailable: there is no engine, and none is expected soon.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether it can take calls now."""
        ...

    async def close(self, grace_s: float) -> bool:
        """Frees the engines; no call may follow. Says whether nothing was left running."""
        ...


RequestT = TypeVar("RequestT", bound="BaseModel")
EncodingT = TypeVar("EncodingT", bound=Encoding)


class Task(Protocol[RequestT, EncodingT]):
    """What a question means: how it becomes encodings, and how their rows become an answer. Both are pure."""

    Request: type[RequestT]
    Response: Any  # the type of what `decode` gives, as the documentation shows it

    def encode(self, request: RequestT) -> list[EncodingT]:
        """Raises errors.Unprocessable for a request that cannot be answered."""
        ...

    def decode(self, request: RequestT, encodings: Sequence[EncodingT], rows: Sequence[Row]) -> object:
        """The response, as JSON-serialisable values; `rows[i]` belongs to `encodings[i]`."""
        ...

    def split(self, request: RequestT) -> list[RequestT]:
        """For each input a request with it alone. Raises errors.Unprocessable for what no request may bring."""
        ...

    def single(self, response: Any) -> object:
        """Of the response to a request with one input, what stands for it in the response to several."""
        ...
