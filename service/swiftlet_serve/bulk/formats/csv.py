"""CSV as RFC 4180 describes it, in UTF-8, with a header. Quoted fields may hold line ends. Blank lines are skipped.

One reader divides a file and reads its pieces: Python's, which takes exactly the lines of a row before it returns the
row. A piece therefore never begins within a quoted field.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from swiftlet_serve.bulk.durable import HashedStream
from swiftlet_serve.bulk.formats import changed
from swiftlet_serve.bulk.lines import MAX_RECORD_BYTES, Lines, Piece, divide
from swiftlet_serve.bulk.records import CHUNK_ROWS, Chunk, Header, Layout, Record, RowAnswer, as_text
from swiftlet_serve.errors import SetupError

LONE_RETURN: Final = re.compile(rb"\r(?!\n)")

csv.field_size_limit(MAX_RECORD_BYTES)  # `Lines` limits the row


def header(stream: BinaryIO, name: str, delimiter: str) -> Header:
    return Header(_head(stream, name, delimiter)[0])


def split(stream: BinaryIO, name: str, delimiter: str, shard_rows: int) -> Iterator[Piece]:
    _, start = _head(stream, name, delimiter)
    stream.seek(start)
    lines = Lines(stream, name, start)
    return divide(lines, _rows(lines, delimiter, name), start, shard_rows)


def _head(stream: BinaryIO, name: str, delimiter: str) -> tuple[list[str], int]:
    """Returns the names of the columns, and the position of the first row of data."""
    lines = Lines(stream, name)
    fields = next(_rows(lines, delimiter), None)
    if fields is None and _has_lone_return(stream):
        raise SetupError(f"{name} has lines that end with CR alone. Write it with LF or CRLF at the end of each line.")
    if not fields or lines.has_nul or lines.is_invalid:
        raise SetupError(f"{name} has no header. The first row must name the columns, in UTF-8.")
    if len(set(fields)) < len(fields):
        raise SetupError(f"{name} has two columns of the same name. Rename one.")
    return fields, lines.consumed


def _has_lone_return(stream: BinaryIO) -> bool:
    """Returns whether a CR without LF stands inside the first line. A line ends with LF."""
    stream.seek(0)
    return LONE_RETURN.search(stream.readline(MAX_RECORD_BYTES)) is not None


def read(
    stream: BinaryIO,
    name: str,
    layout: Layout,
    piece: Piece,
    header: Header,
    inputs: Sequence[str],  # noqa: ARG001  # all formats share one signature
) -> Iterator[Chunk]:
    stream.seek(piece.start)
    lines, names = Lines(stream, name, piece.start, piece.stop - piece.start), header.columns or ()
    rows = _rows(lines, layout.delimiter)
    while chunk := [_record(fields, names, lines) for fields in islice(rows, CHUNK_ROWS)]:
        yield Chunk(chunk)
    if lines.digest() != piece.sha256:
        raise changed(name)


def _rows(lines: Lines, delimiter: str, name: str | None = None) -> Iterator[list[str] | None]:
    """Yields the fields of each row, or None for a row with wrong quotes.

    Raises:
        SetupError: `name` is given, and a quote is never closed. The rows after it cannot be told apart.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.begin()
        position = lines.position
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if name is not None and "unexpected end of data" in str(error):
                raise SetupError(f"{name} has a quote that is never closed, in the row at byte {position}.") from None
            yield None
        else:
            if fields:
                yield fields


def _record(fields: list[str] | None, names: Sequence[str], lines: Lines) -> Record:
    """Returns the row that was read last."""
    if fields is None:
        return Record({}, "invalid_csv")
    values = dict(zip(names, fields, strict=False))
    if lines.is_invalid:
        return Record(values, "invalid_utf8")
    if lines.has_nul:
        return Record(values, "nul_byte")
    return Record(values, None if len(fields) == len(names) else "wrong_field_count")


class CsvWriter:
    """Writes a header and one row for each row. Lines end with CRLF, as RFC 4180 says."""

    def __init__(self, stream: HashedStream, layout: Layout) -> None:
        assert layout.kept is not None  # noqa: S101  # the plan has refused it
        self._stream, self._layout, self._kept = stream, layout, layout.kept
        self._flush([[*layout.kept, layout.answer, layout.error]])

    def write(self, chunk: Chunk, answers: Sequence[RowAnswer]) -> None:
        self._flush(
            [
                *(as_text(kept.get(name)) for name in self._kept),
                None if answer.error else as_text(answer.answer),
                answer.error,
            ]
            for kept, answer in zip(chunk.kept(self._kept), answers, strict=True)
        )

    def close(self) -> None:
        pass

    def _flush(self, rows: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._layout.delimiter).writerows(rows)
        self._stream.write(text.getvalue().encode("utf-8", "surrogateescape"))


def writer(stream: HashedStream, layout: Layout) -> CsvWriter:
    return CsvWriter(stream, layout)


def count(path: Path, layout: Layout) -> int:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as stream:
        try:
            return sum(1 for _ in csv.reader(stream, delimiter=layout.delimiter)) - 1
        except csv.Error as error:
            raise ValueError(str(error)) from None
