"""Lines of a file: read as a stream, counted and hashed, and divided into shards at the ends of records."""

from __future__ import annotations

import hashlib
from codecs import BOM_UTF8 as BYTE_ORDER_MARK
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from swiftlet_serve.errors import SetupError

MAX_RECORD_BYTES: Final = 1 << 22  # of one row; the texts that a request may hold are far shorter
SHARD_BYTES: Final = 1 << 26  # a shard of fewer rows ends here


class Piece(NamedTuple):
    """A part of a file that belongs to one shard."""

    start: int  # the first byte, or the first row for formats with row numbers
    stop: int
    rows: int
    sha256: str  # of the bytes, or empty if the format has row numbers


class Lines(Iterator[str]):
    """The lines of a stream as texts. Bytes that are not UTF-8 become surrogates, so that they can be written again.

    `consumed` counts the bytes of the lines so far. `has_nul` and `is_invalid` describe the lines since `begin`.
    """

    def __init__(self, stream: BinaryIO, name: str, offset: int = 0, length: int | None = None) -> None:
        """Reads from the position of the stream, which is `offset` bytes after its start, at most `length` bytes."""
        self._stream, self._name, self._offset = stream, name, offset
        self._left = length
        self._hash = hashlib.sha256()
        self._record = 0  # bytes since `begin`
        self.consumed = 0
        self.has_nul = self.is_invalid = False

    @property
    def position(self) -> int:
        """The position of the next line in the file."""
        return self._offset + self.consumed

    def begin(self) -> None:
        """Begins a record."""
        self._record, self.has_nul, self.is_invalid = 0, False, False

    def __next__(self) -> str:
        """Returns the next line, with its end.

        Raises:
            SetupError: the record exceeds `MAX_RECORD_BYTES`.
        """
        limit = MAX_RECORD_BYTES - self._record + 1
        line = self._stream.readline(limit if self._left is None else min(limit, self._left))
        if not line:
            raise StopIteration
        self._record += len(line)
        if self._record > MAX_RECORD_BYTES:
            at = self.position + len(line) - self._record
            raise SetupError(
                f"{self._name} has a row of more than {MAX_RECORD_BYTES} bytes, which begins at byte {at}. "
                "Shorten it. In CSV, a quote that is never closed and lines that end with CR alone also cause this."
            )
        if self._left is not None:
            self._left -= len(line)
        self.consumed += len(line)
        self._hash.update(line)
        self.has_nul |= b"\0" in line
        if self.position == len(line):
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.is_invalid = True
            return line.decode("utf-8", "surrogateescape")

    def digest(self) -> str:
        """Returns the SHA-256 of the lines since the last call, and begins a new one."""
        digest, self._hash = self._hash.hexdigest(), hashlib.sha256()
        return digest


def divide(lines: Lines, records: Iterator[object], start: int, shard_rows: int) -> Iterator[Piece]:
    """Divides the lines into pieces of at most `shard_rows` records.

    Args:
        lines: the lines after the header.
        records: yields once for each row, as soon as its last line has been read.
        start: the position of the first line.
        shard_rows: rows of a piece.
    """
    begin, rows = 0, 0
    for _ in records:
        rows += 1
        if rows == shard_rows or lines.consumed - begin >= SHARD_BYTES:
            yield Piece(start + begin, start + lines.consumed, rows, lines.digest())
            begin, rows = lines.consumed, 0
    if rows:
        yield Piece(start + begin, start + lines.consumed, rows, lines.digest())
