"""A worker: leases shards, and writes an output file and a line of the manifest for each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

from swiftlet_serve.bulk import formats
from swiftlet_serve.bulk.budget import Budget
from swiftlet_serve.bulk.durable import HashedStream, new_file
from swiftlet_serve.bulk.leases import Leases
from swiftlet_serve.bulk.manifest import Entry, Manifest
from swiftlet_serve.bulk.plan import Plan, Shard
from swiftlet_serve.bulk.records import Chunk, RowAnswer
from swiftlet_serve.bulk.scorer import Running, Scorer
from swiftlet_serve.bulk.sources import reading
from swiftlet_serve.errors import SetupError

AHEAD: Final = 2  # chunks whose batches wait or run while a chunk is decoded and written

Part = tuple[int | None, Chunk, Sequence[RowAnswer]]
"""A shard, some of its rows and their answers. Without a shard: no more rows until other workers finish theirs."""

NOTHING: Final[Part] = (None, Chunk(()), ())


class Worker:
    """Scores the shards of a plan that no other worker has."""

    def __init__(
        self,
        directory: Path,
        plan: Plan,
        manifest: Manifest,
        leases: Leases,
        scorer: Scorer,
        budget: Budget,
        on_rows: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Creates a worker.

        Args:
            directory: the output directory.
            plan: the job.
            manifest: the finished shards of the job.
            leases: the leases of this worker.
            scorer: answers the rows.
            budget: the number of bad rows that the job may have.
            on_rows: called with the rows of the unfinished shard that have been written.
        """
        self._directory, self._plan, self._manifest, self._leases = directory, plan, manifest, leases
        self._scorer, self._budget, self._on_rows = scorer, budget, on_rows
        self._input = formats.load(plan.settings.input_format)
        self._output = formats.load(plan.settings.output_format)
        self._codes: Counter[str] = Counter()

    def run(self) -> None:
        """Works until all shards are finished, by this worker or others.

        Raises:
            SetupError: the input has changed, the disk is full, or there are too many bad rows. Finished shards stay.
        """
        self._check_budget(0)
        for index, parts in groupby(self._answered(), itemgetter(0)):
            if index is not None:
                self._write(self._plan.shards[index], parts)

    def _write(self, shard: Shard, parts: Iterator[Part]) -> None:
        """Writes a shard, adds it to the manifest and returns its lease."""
        path = self._directory / self._plan.output_name(shard)
        try:
            with new_file(path) as stream:
                rows, bad, cut = self._write_rows(stream, shard, parts)
            entry = Entry(
                shard.index,
                path.name,
                rows,
                bad,
                cut,
                stream.size,
                stream.sha256(),
                self._plan.settings.model_sha256,
                self._plan.sha256,
            )
            self._manifest.add(entry, self._leases)
        except OSError as error:
            raise SetupError(
                f"{path} cannot be written: {error.strerror or type(error).__name__}. The finished shards are kept: "
                "start the command again to go on."
            ) from error
        self._leases.release(shard.index)
        self._on_rows(0)

    def _write_rows(self, stream: HashedStream, shard: Shard, parts: Iterator[Part]) -> tuple[int, int, int]:
        """Returns the number of rows, of bad rows and of cut rows."""
        writer = self._output.writer(stream, self._plan.layout)
        rows = bad = cut = 0
        for _, chunk, answers in parts:
            writer.write(chunk, answers)
            rows += len(answers)
            codes = [answer.error for answer in answers if answer.error is not None]
            bad += len(codes)
            cut += sum(answer.cut for answer in answers)
            self._codes.update(codes)
            self._check_budget(bad)
            self._on_rows(rows)
        writer.close()
        if rows != shard.piece.rows:
            raise formats.changed(self._plan.sources[shard.source].path)
        return rows, bad, cut

    def _check_budget(self, more: int) -> None:
        self._budget.check(self._manifest.bad_rows + more, self._plan.rows, self._codes)

    def _answered(self) -> Iterator[Part]:
        """Yields the rows of this worker's shards in order. Later chunks are read while earlier ones run."""
        running: deque[tuple[int, Running]] = deque()

        def finish() -> Part:
            index, oldest = running.popleft()
            return index, oldest.chunk, self._scorer.finish(oldest)

        for shard in self._leased():
            if shard is None:
                while running:
                    yield finish()
                yield NOTHING  # ends the last shard, whose lease others may wait for
                continue
            for chunk in self._read(shard):
                for part in self._scorer.start(chunk):
                    running.append((shard.index, part))
                    if len(running) > AHEAD:
                        yield finish()
        while running:
            yield finish()

    def _read(self, shard: Shard) -> Iterator[Chunk]:
        plan, source = self._plan, self._plan.sources[shard.source]
        inputs = list(plan.settings.columns.values())
        with reading(source.path), source.open() as stream:
            yield from self._input.read(stream, source.path, plan.layout, shard.piece, plan.header, inputs)

    def _leased(self) -> Iterator[Shard | None]:
        """Yields shards with their leases, and None before it waits for another worker."""
        taken: set[int] = set()
        for shard in self._plan.shards:
            if shard.index not in self._manifest.entries and self._leases.take(shard.index):
                taken.add(shard.index)
                if self._is_finished(shard):
                    self._leases.release(shard.index)
                else:
                    yield shard
        yield None
        for shard in self._plan.shards:
            if shard.index in self._manifest.entries or shard.index in taken:
                continue
            self._leases.wait(shard.index)
            if self._is_finished(shard):
                self._leases.release(shard.index)
            else:  # its worker is dead
                yield shard
                yield None

    def _is_finished(self, shard: Shard) -> bool:
        """Returns whether another worker has finished a shard. Its line is written before its lease ends."""
        self._manifest.refresh()
        return shard.index in self._manifest.entries
