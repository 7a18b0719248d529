"""JSON Lines: one JSON object on each line. Blank lines are skipped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from pydantic_core import from_json

from swiftlet_serve.bulk.durable import HashedStream
from swiftlet_serve.bulk.formats import changed
from swiftlet_serve.bulk.lines import Lines, Piece, divide
from swiftlet_serve.bulk.records import CHUNK_ROWS, Chunk, Header, Layout, Record, RowAnswer, as_json


def header(stream: BinaryIO, name: str, delimiter: str) -> Header:  # noqa: ARG001  # all formats share one signature
    return Header()


def split(stream: BinaryIO, name: str, delimiter: str, shard_rows: int) -> Iterator[Piece]:  # noqa: ARG001  # as above
    lines = Lines(stream, name)
    return divide(lines, _texts(lines), 0, shard_rows)


def read(
    stream: BinaryIO,
    name: str,
    layout: Layout,
    piece: Piece,
    header: Header,  # noqa: ARG001  # as above
    inputs: Sequence[str],  # noqa: ARG001  # as above
) -> Iterator[Chunk]:
    stream.seek(piece.start)
    lines = Lines(stream, name, piece.start, piece.stop - piece.start)
    texts = _texts(lines)
    while chunk := [_record(text, lines, layout) for text in islice(texts, CHUNK_ROWS)]:
        yield Chunk(chunk)
    if lines.digest() != piece.sha256:
        raise changed(name)


def _texts(lines: Lines) -> Iterator[str]:
    """Yields the lines that are not blank."""
    while True:
        lines.begin()
        text = next(lines, None)
        if text is None:
            return
        if not text.isspace():
            yield text


def _record(text: str, lines: Lines, layout: Layout) -> Record:
    """Returns the row of the line that was read last."""
    if lines.is_invalid:
        return Record({}, "invalid_utf8")
    if lines.has_nul:
        return Record({}, "nul_byte")
    try:
        values = from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return Record({}, "invalid_json")
    if not isinstance(values, dict) or not _is_finite(values):
        return Record({}, "invalid_json")
    if layout.kept is None and (layout.answer in values or layout.error in values):
        return Record(values, "column_conflict")
    return Record(values)


def _is_finite(value: Any) -> bool:
    """Returns whether no number is infinite, as the parser makes of one beyond the range of doubles such as 1e400."""
    if isinstance(value, float):
        return math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_finite, parts))


class JsonWriter:
    """Writes one object for each row."""

    def __init__(self, stream: HashedStream, layout: Layout) -> None:
        self._stream, self._layout = stream, layout

    def write(self, chunk: Chunk, answers: Sequence[RowAnswer]) -> None:
        layout = self._layout
        for record, kept, answer in zip(chunk.records, chunk.kept(layout.kept), answers, strict=True):
            if record.error == "invalid_utf8":
                kept = {name: _valid(value) for name, value in kept.items()}
            row = {**kept, layout.answer: answer.answer, layout.error: answer.error}
            self._stream.write(as_json(row) + b"\n")

    def close(self) -> None:
        pass


def _valid(value: Any) -> Any:
    """Returns a text with U+FFFD instead of bytes that are not UTF-8."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value


def writer(stream: HashedStream, layout: Layout) -> JsonWriter:
    return JsonWriter(stream, layout)


def count(path: Path, layout: Layout) -> int:  # noqa: ARG001  # as above
    with path.open("rb") as stream:
        return sum(1 for _ in stream)
