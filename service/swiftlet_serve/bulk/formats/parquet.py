"""Parquet. Kept columns keep their types. The answer and the error are columns of texts, the answer as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from swiftlet_serve.bulk.durable import HashedStream
from swiftlet_serve.bulk.formats import changed
from swiftlet_serve.bulk.lines import Piece
from swiftlet_serve.bulk.records import CHUNK_ROWS, Chunk, Header, Layout, Record, RowAnswer, as_text
from swiftlet_serve.errors import SetupError

# The pieces of a row group, at most. Each piece decodes the row group up to its own end.
GROUP_PIECES: Final = 100


def header(stream: BinaryIO, name: str, delimiter: str) -> Header:  # noqa: ARG001  # all formats share one signature
    header = _header(_open(stream, name))
    if len(set(header.columns or ())) < len(header.columns or ()):
        raise SetupError(f"{name} has two columns of the same name. Rename one.")
    return header


def split(stream: BinaryIO, name: str, delimiter: str, shard_rows: int) -> Iterator[Piece]:  # noqa: ARG001  # as above
    metadata = _open(stream, name).metadata
    return pieces([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)], shard_rows)


def pieces(groups: Sequence[int], shard_rows: int) -> Iterator[Piece]:
    """Divides row groups of these numbers of rows. Small groups are joined, and large ones divided."""
    start = stop = 0
    for rows in groups:
        step = max(shard_rows, -(-rows // GROUP_PIECES))
        stop += rows
        while stop - start >= step:
            yield Piece(start, start + step, step, "")
            start += step
    if stop > start:
        yield Piece(start, stop, stop - start, "")


def read(
    stream: BinaryIO, name: str, layout: Layout, piece: Piece, header: Header, inputs: Sequence[str]
) -> Iterator[Chunk]:
    file = _open(stream, name)
    if _header(file) != header or file.metadata.num_rows < piece.stop:
        raise changed(name)
    kept = list(layout.kept or ())
    columns, first = list(dict.fromkeys([*inputs, *kept])), 0
    for group in range(file.metadata.num_row_groups):
        last = first + file.metadata.row_group(group).num_rows
        if first < piece.stop and piece.start < last:
            at = first
            for batch in _batches(file, name, group, columns):
                low, high = max(piece.start - at, 0), min(piece.stop - at, batch.num_rows)
                if low < high:
                    yield chunk_of(pa.Table.from_batches([batch.slice(low, high - low)]), inputs, kept)
                at += batch.num_rows
                if at >= piece.stop:
                    break
        first = last


def _batches(file: pq.ParquetFile, name: str, group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(CHUNK_ROWS, [group], columns, use_threads=False)
    except (pa.ArrowException, OSError):
        raise SetupError(f"{name} has a damaged row group {group}.") from None


def _header(file: pq.ParquetFile) -> Header:
    schema = file.schema_arrow
    return Header(list(schema.names), [str(field.type) for field in schema])


def _open(stream: BinaryIO, name: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(stream)
    except (pa.ArrowException, OSError):
        raise SetupError(f"{name} cannot be read as Parquet.") from None


def chunk_of(table: pa.Table, inputs: Sequence[str], kept: Sequence[str]) -> Chunk:
    """Returns the rows of a table. The kept columns stay as they are."""
    values = {name: _texts(table.column(name)) for name in inputs}
    records = []
    for i in range(table.num_rows):
        row = {name: column[i] for name, column in values.items()}
        records.append(Record(row, "invalid_utf8" if any(value is INVALID for value in row.values()) else None))
    return Chunk(records, table.select(kept))


INVALID: Final = object()


def _texts(column: pa.ChunkedArray) -> list[Any]:
    """Returns the values of a column, with `INVALID` instead of texts that are not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return INVALID


def with_answers(table: pa.Table, layout: Layout, answers: Sequence[RowAnswer]) -> pa.Table:
    """Returns a table with the columns of the answers, as JSON, and of the errors."""
    texts = [None if answer.error else as_text(answer.answer) for answer in answers]
    for name, values in ((layout.answer, texts), (layout.error, [answer.error for answer in answers])):
        table = table.append_column(name, pa.array(values, pa.string()))
    return table


class ParquetWriter:
    """Writes a row group for each chunk."""

    def __init__(self, stream: HashedStream, layout: Layout) -> None:
        self._stream, self._layout = stream, layout
        self._writer: pq.ParquetWriter | None = None

    def write(self, chunk: Chunk, answers: Sequence[RowAnswer]) -> None:
        table = chunk.table if chunk.table is not None else self._texts(chunk)
        table = with_answers(table, self._layout, answers)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _texts(self, chunk: Chunk) -> pa.Table:
        """Returns columns of texts, for an input without types."""
        kept, names = chunk.kept(self._layout.kept), list(self._layout.kept or ())
        columns = {name: [_valid(as_text(row.get(name))) for row in kept] for name in names}
        return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _valid(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def writer(stream: HashedStream, layout: Layout) -> ParquetWriter:
    return ParquetWriter(stream, layout)


def count(path: Path, layout: Layout) -> int:  # noqa: ARG001  # as above
    try:
        rows: int = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from None
    return rows
