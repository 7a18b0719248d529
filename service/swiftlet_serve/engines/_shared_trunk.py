"""Several heads in one engine: those of artifacts that share a trunk, or engines of their own.

A batch holds sequences for all heads. The trunk runs once for all of them, and once for sequences of the same tokens,
whichever heads read them. Each head then reads the hidden states of its sequences. Every step computes each row by
itself, so that an answer is the same to the bit as that of the artifact alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch, Cost, Engine, Row, helped_s


class Head(Engine, Protocol):
    """An engine that reads hidden states, as `Batch.given`."""

    @property
    def reads_all(self) -> bool:
        """Whether it reads those of all tokens of a sequence, and not those in focus alone."""


class Readings(NamedTuple):
    """The sequences of a batch, as a trunk reads them."""

    trunk: Batch  # each text once, with all positions that its heads read in focus, in ascending order
    numbers: Sequence[int]  # of the sequence in `trunk`, for each sequence of the batch
    places: Sequence[NDArray[np.int64] | None]  # of the positions that its head reads, in that focus; None: all

    @classmethod
    def of(cls, batch: Batch, reads_all: Sequence[bool], adapters: Sequence[int]) -> Readings:
        """Joins sequences of the same tokens and the same adapter.

        `reads_all` says of each head whether it reads all tokens, and `adapters` which adapter the trunk has for it.
        """
        if len(batch) == 1 and len(batch.focus) and not reads_all[batch.heads[0]]:  # the usual case, sooner
            return cls(batch.for_trunk().for_head(adapters[batch.heads[0]]), [0], [None])
        encodings = batch.encodings()
        numbers_of: dict[tuple[bytes, bytes, int, int], int] = {}
        keys = [(*_key(encoding), adapters[encoding.head]) for encoding in encodings]
        numbers = [numbers_of.setdefault(key, len(numbers_of)) for key in keys]
        read = [_read(encoding, reads_all=reads_all[encoding.head]) for encoding in encodings]
        texts = {number: encoding for encoding, number in zip(encodings, numbers, strict=True)}
        trunk = []
        for number, text in sorted(texts.items()):
            positions = np.concatenate([own for own, other in zip(read, numbers, strict=True) if other == number])
            focus = np.unique(positions)
            adapter = adapters[text.head]
            trunk.append(Encoding(text.input_ids, text.token_type_ids, focus, attended=text.attended, head=adapter))
        places = [np.searchsorted(trunk[n].focus, own) for own, n in zip(read, numbers, strict=True)]
        return cls(Batch.of(trunk), numbers, places)


class SharedTrunk:
    """The heads of several artifacts on one trunk, which may have an adapter for each head."""

    runs_network: ClassVar[bool] = True

    def __init__(self, trunk: Engine, heads: Sequence[Head], adapters: Sequence[int] = ()) -> None:
        """`adapters` are the numbers of the heads' adapters in the trunk; empty: it has none."""
        self._trunk, self._heads, self._adapters = trunk, heads, adapters or [0] * len(heads)
        self._reads_all = [head.reads_all for head in heads]
        self._last_call = threading.local()

    @property
    def title(self) -> str:
        count = len(set(self._adapters))
        adapters = f" in {count} forms" if count > 1 else ""
        return f"{self._trunk.title}, {len(self._heads)} heads on one trunk{adapters}"

    @property
    def cost(self) -> Cost:
        return replace(self._trunk.cost, shares_trunk=len(set(self._adapters)) == 1)

    @property
    def extra_tolerance(self) -> float:
        return self._trunk.extra_tolerance

    @property
    def kernel_faults(self) -> int:
        return getattr(self._trunk, "kernel_faults", 0)

    @property
    def helped_s(self) -> float:
        """The time that other cores spent on this thread's last call."""
        return helped_s(self._last_call)

    def run(self, batch: Batch) -> Sequence[Row]:
        """Computes a batch.

        Raises:
            ValueError: the batch is invalid, as for the engine of the trunk.
        """
        readings = Readings.of(batch, self._reads_all, self._adapters)
        hidden = self._trunk.run(readings.trunk)
        given = [
            hidden[number] if places is None else hidden[number][places]
            for number, places in zip(readings.numbers, readings.places, strict=True)
        ]
        seconds = helped_s(self._trunk)
        rows: dict[int, Row] = {}
        for head, members in _by_head(batch):
            own = batch if len(members) == len(batch) else batch.part(members)
            engine = self._heads[head]
            rows |= zip(members, engine.run(_head_batch(own, [given[b] for b in members], engine)), strict=True)
            seconds += helped_s(engine)
        self._last_call.helped_s = seconds
        return [rows[b] for b in range(len(batch))]

    def close(self) -> None:
        for engine in (self._trunk, *self._heads):
            engine.close()


class Apart:
    """The networks of several artifacts, where they cannot share a trunk."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self._last_call = threading.local()
        self.runs_network = all(engine.runs_network for engine in engines)

    @property
    def title(self) -> str:
        return self.engines[0].title

    @property
    def cost(self) -> Cost:
        return self.engines[0].cost

    @property
    def extra_tolerance(self) -> float:
        return max(engine.extra_tolerance for engine in self.engines)

    @property
    def kernel_faults(self) -> int:
        return max(getattr(engine, "kernel_faults", 0) for engine in self.engines)

    @property
    def helped_s(self) -> float:
        """The time that other cores spent on this thread's last call."""
        return helped_s(self._last_call)

    def run(self, batch: Batch) -> Sequence[Row]:
        rows: dict[int, Row] = {}
        seconds = 0.0
        for head, members in _by_head(batch):
            rows |= zip(members, self.engines[head].run(batch.part(members).for_head(0)), strict=True)
            seconds += helped_s(self.engines[head])
        self._last_call.helped_s = seconds
        return [rows[b] for b in range(len(batch))]

    def close(self) -> None:
        for engine in self.engines:
            engine.close()


class OneHead:
    """One of the heads of an engine, as an engine."""

    runs_network: ClassVar[bool] = True

    def __init__(self, engine: Engine, head: int) -> None:
        self._engine, self._head = engine, head
        self.title, self.cost, self.extra_tolerance = engine.title, engine.cost, engine.extra_tolerance

    @property
    def helped_s(self) -> float:
        return helped_s(self._engine)

    def run(self, batch: Batch) -> Sequence[Row]:
        return self._engine.run(batch.for_head(self._head))

    def close(self) -> None:
        self._engine.close()


def _key(encoding: Encoding) -> tuple[bytes, bytes, int]:
    return encoding.input_ids.tobytes(), encoding.token_type_ids.tobytes(), encoding.attends_to


def _read(encoding: Encoding, *, reads_all: bool) -> NDArray[np.int64]:
    """Returns the positions whose hidden states a head reads; at least one, because no sequence is empty."""
    if reads_all:
        return np.arange(len(encoding.input_ids))
    return encoding.focus if len(encoding.focus) else np.zeros(1, np.int64)


def _by_head(batch: Batch) -> Iterator[tuple[int, list[int]]]:
    """Yields each head with the places of its sequences."""
    heads = batch.heads.tolist()
    for head in sorted(set(heads)):
        yield head, [b for b, own in enumerate(heads) if own == head]


def _head_batch(batch: Batch, given: Sequence[Row], head: Head) -> Batch:
    """Returns the batch of a head, whose tokens are the hidden states that it reads of each sequence."""
    counts = [len(rows) for rows in given]
    zeros = np.zeros(sum(counts), np.int64)
    ends = batch.focus_offsets.tolist()
    return replace(
        batch,
        input_ids=zeros,
        token_type_ids=zeros,
        offsets=np.array(list(accumulate(counts, initial=0))),
        focus=batch.focus if head.reads_all else np.concatenate([np.arange(b - a) for a, b in pairwise(ends)]),
        attended=np.array(counts),
        heads=np.zeros(len(counts), np.int64),
        given=given[0] if len(given) == 1 else np.concatenate(given),
    )
