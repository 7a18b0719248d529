"""Several heads in one engine: those of artifacts that share a trunk, or engines of their own.

A batch holds sequences for all heads. The trunk runs once for all of them, and once for sequences of the same tokens,
whichever heads read them. Each head then reads the hidden states of its sequences. Every step computes each row by
itself, so that an answer is the same to the bit as that of the artifact alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.tokenizer import Encoding
from swiftlet_serve.types import Batch, Cost, Engine, Row


class Head(Engine, Protocol):
    """An engine that reads hidden states, as `Batch.given`."""

    @property
    def reads_all(self) -> bool:
        """Whether it reads those of all tokens of a sequence, and not those in focus alone."""


class Readings(NamedTuple):
    """The sequences of a batch, as a trunk reads them."""

    trunk: list[Encoding]  # each once, with all positions that its heads read in focus, in ascending order
    numbers: list[int]  # of the sequence in `trunk`, for each sequence of the batch

    @classmethod
    def of(cls, encodings: Sequence[Encoding], reads_all: Sequence[bool]) -> Readings:
        """Joins sequences of the same tokens. `reads_all` says of each head whether it reads all tokens."""
        places: dict[tuple[bytes, bytes, int], int] = {}
        numbers = [places.setdefault(_key(encoding), len(places)) for encoding in encodings]
        positions: list[list[NDArray[np.int64]]] = [[] for _ in places]
        firsts: dict[int, Encoding] = {}
        for encoding, number in zip(encodings, numbers, strict=True):
            firsts.setdefault(number, encoding)
            positions[number].append(_read(encoding, reads_all=reads_all[encoding.head]))
        return cls([_alone(firsts[n], np.unique(np.concatenate(positions[n]))) for n in range(len(places))], numbers)


class SharedTrunk:
    """The heads of several artifacts on one trunk."""

    runs_network: ClassVar[bool] = True

    def __init__(self, trunk: Engine, heads: Sequence[Head]) -> None:
        self._trunk, self._heads = trunk, heads
        self._last_call = threading.local()

    @property
    def title(self) -> str:
        return f"{self._trunk.title}, {len(self._heads)} heads on one trunk"

    @property
    def cost(self) -> Cost:
        return replace(self._trunk.cost, shares_trunk=True)

    @property
    def extra_tolerance(self) -> float:
        return self._trunk.extra_tolerance

    @property
    def kernel_faults(self) -> int:
        return getattr(self._trunk, "kernel_faults", 0)

    @property
    def helped_s(self) -> float:
        """The time that other cores spent on this thread's last call."""
        seconds: float = getattr(self._last_call, "helped_s", 0.0)
        return seconds

    def run(self, batch: Batch) -> Sequence[Row]:
        """Computes a batch.

        Raises:
            ValueError: the batch is invalid, as for the engine of the trunk.
        """
        encodings = batch.encodings()
        readings = Readings.of(encodings, [head.reads_all for head in self._heads])
        hidden = self._trunk.run(Batch.of(readings.trunk))
        helped_s = _helped_s(self._trunk)
        rows: dict[int, Row] = {}
        for head, members in _by_head(encodings):
            engine = self._heads[head]
            own, given = [encodings[i] for i in members], []
            for encoding, number in zip(own, (readings.numbers[i] for i in members), strict=True):
                there = readings.trunk[number].focus
                given.append(hidden[number][np.searchsorted(there, _read(encoding, reads_all=engine.reads_all))])
            rows |= zip(members, _run_head(engine, own, given), strict=True)
            helped_s += _helped_s(engine)
        self._last_call.helped_s = helped_s
        return [rows[i] for i in range(len(encodings))]

    def close(self) -> None:
        for engine in (self._trunk, *self._heads):
            engine.close()


class Apart:
    """The networks of several artifacts, where they cannot share a trunk."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self.runs_network = all(engine.runs_network for engine in engines)

    @property
    def title(self) -> str:
        return self._engines[0].title

    @property
    def cost(self) -> Cost:
        return self._engines[0].cost

    @property
    def extra_tolerance(self) -> float:
        return max(engine.extra_tolerance for engine in self._engines)

    @property
    def kernel_faults(self) -> int:
        return max(getattr(engine, "kernel_faults", 0) for engine in self._engines)

    def run(self, batch: Batch) -> Sequence[Row]:
        encodings, rows = batch.encodings(), dict[int, Row]()
        for head, members in _by_head(encodings):
            own = Batch.of([replace(encodings[i], head=0) for i in members])
            rows |= zip(members, self._engines[head].run(own), strict=True)
        return [rows[i] for i in range(len(encodings))]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


class OneHead:
    """One of the heads of an engine, as an engine."""

    runs_network: ClassVar[bool] = True

    def __init__(self, engine: Engine, head: int) -> None:
        self._engine, self._head = engine, head
        self.title, self.cost, self.extra_tolerance = engine.title, engine.cost, engine.extra_tolerance

    @property
    def helped_s(self) -> float:
        return _helped_s(self._engine)

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


def _alone(encoding: Encoding, focus: NDArray[np.int64]) -> Encoding:
    """Returns a sequence with other positions in focus, whose rows are not reduced."""
    return Encoding(encoding.input_ids, encoding.token_type_ids, focus, attended=encoding.attended)


def _by_head(encodings: Sequence[Encoding]) -> Iterator[tuple[int, list[int]]]:
    """Yields each head with the places of its sequences."""
    for head in sorted({encoding.head for encoding in encodings}):
        yield head, [i for i, encoding in enumerate(encodings) if encoding.head == head]


def _run_head(head: Head, encodings: Sequence[Encoding], given: Sequence[Row]) -> list[Row]:
    """Runs a head on the hidden states of some sequences."""
    plain, counts = Batch.of(encodings).for_head(0), [len(rows) for rows in given]
    total, positions = sum(counts), [np.arange(len(encoding.focus)) for encoding in encodings]
    batch = replace(
        plain,
        input_ids=np.zeros(total, np.int64),
        token_type_ids=np.zeros(total, np.int64),
        offsets=np.array(list(accumulate(counts, initial=0))),
        focus=plain.focus if head.reads_all else np.concatenate(positions),
        attended=np.array(counts),
        given=np.concatenate(given),
    )
    return list(head.run(batch))


def _helped_s(engine: Engine) -> float:
    seconds: float = getattr(engine, "helped_s", 0.0)
    return seconds
