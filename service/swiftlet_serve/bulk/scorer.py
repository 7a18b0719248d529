"""Answers rows on an engine of this process. No client waits for a single row, so there are no queues.

The calling thread reads, encodes and decodes, while other threads run batches. A row takes the steps of a request: it
is validated as strictly, has the same limits, and a failing batch is halved until only the failing row has no answer.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import BaseModel

from swiftlet_models.encodings import Encoding, distinct, keys_of
from swiftlet_serve.bulk.batches import batches
from swiftlet_serve.bulk.records import Chunk, RowAnswer
from swiftlet_serve.bulk.requests import RequestMaker
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.inference import partial_results
from swiftlet_serve.inference.loading import LoadedModel
from swiftlet_serve.inference.partial_results import Input
from swiftlet_serve.inference.pipeline import check_size
from swiftlet_serve.machine.process_setup import SWITCH_INTERVAL_S
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import Batch, Outcome
from swiftlet_serve.workers.hosted_model import EngineModel, run_batch

MAX_SEQUENCES: Final = 4096  # of a chunk, unless one row has more
MAX_TOKENS: Final[int] = Settings.model_fields["max_queued_tokens"].default  # of one row, as of one request


class Encoded(NamedTuple):
    """A row as sequences, or its error code."""

    request: BaseModel | None
    sequences: Sequence[Encoding]
    error: str | None = None


@dataclass(frozen=True)
class Running:
    """A chunk whose batches run or wait for a thread."""

    chunk: Chunk
    rows: Sequence[Encoded]
    keys: Sequence[bytes | int]  # of the sequences of all rows; those with one key are computed once
    batches: Sequence[tuple[Sequence[bytes | int], Future[list[Outcome]]]]


class Scorer:
    """Runs the rows of chunks through a model."""

    def __init__(self, model: LoadedModel, maker: RequestMaker, cores: int) -> None:
        self._task, self._maker, self._cost = model.task, maker, model.engine.cost
        self._hosted = EngineModel(model.engine, model.manifest.widths)
        self._switch_s = sys.getswitchinterval()
        # A thread that has run a batch needs the interpreter to take the next. By default it would wait 5 ms for the
        # thread that encodes, which is half of the time of a batch of a small network.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.freeze()  # keeps the garbage collector from scanning the objects of start-up again and again
        self._threads = ThreadPoolExecutor(min(cores, self._cost.max_calls or cores), "core")

    def start(self, chunk: Chunk) -> Iterator[Running]:
        """Encodes the rows of a chunk and starts their batches. Yields parts of the chunk if it has many sequences."""
        rows: list[Encoded] = []
        first = sequences = 0
        for number, record in enumerate(chunk.records):
            rows.append(self._encode(self._maker.make(record)))
            sequences += len(rows[-1].sequences)
            if sequences >= MAX_SEQUENCES:
                yield self._run(chunk.part(first, number + 1), rows)
                rows, first, sequences = [], number + 1, 0
        if rows:
            yield self._run(chunk.part(first, len(chunk.records)), rows)

    def finish(self, running: Running) -> list[RowAnswer]:
        """Waits for the batches of a chunk, and returns the answer to each row."""
        outcomes: dict[bytes | int, Outcome] = {}
        for keys, future in running.batches:
            outcomes.update(zip(keys, future.result(), strict=True))
        rest = iter([outcomes[key] for key in running.keys])
        return [self._decode(row, [next(rest) for _ in row.sequences]) for row in running.rows]

    def close(self) -> None:
        """Waits for the batches that run, and drops those that wait."""
        self._threads.shutdown(cancel_futures=True)
        sys.setswitchinterval(self._switch_s)
        gc.unfreeze()

    def _encode(self, request: BaseModel | str) -> Encoded:
        if isinstance(request, str):
            return Encoded(None, (), request)
        try:
            sequences = partial_results.encode_whole(self._task, request)
            check_size(self._task, [*distinct(sequences).values()], MAX_TOKENS)
        except SwiftletError as error:
            return Encoded(request, (), error.code)
        return Encoded(request, sequences)

    def _run(self, chunk: Chunk, rows: Sequence[Encoded]) -> Running:
        sequences = [sequence for row in rows for sequence in row.sequences]
        computed = distinct(sequences)
        keys, lengths = [*computed], [len(sequence.input_ids) for sequence in computed.values()]
        groups = [[keys[index] for index in group] for group in batches(lengths, self._cost)]
        calls = [(group, self._threads.submit(self._call, [computed[key] for key in group])) for group in groups]
        return Running(chunk, rows, keys_of(sequences), calls)

    def _call(self, sequences: Sequence[Encoding]) -> list[Outcome]:
        return run_batch(self._hosted, Batch.of(sequences))

    def _decode(self, row: Encoded, outcomes: Sequence[Outcome]) -> RowAnswer:
        if row.request is None or row.error is not None:
            return RowAnswer(None, row.error)
        try:
            response = partial_results.decode(self._task, [Input(row.request, row.sequences)], outcomes)
        except SwiftletError as error:
            return RowAnswer(None, error.code)
        return RowAnswer(self._task.single(response), cut=any(sequence.left_out for sequence in row.sequences))
