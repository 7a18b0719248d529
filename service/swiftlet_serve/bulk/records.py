"""Rows of a file: records, and chunks of records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from swiftlet_serve.types import json_text

CHUNK_ROWS: Final = 2048  # rows that are read, encoded and sorted together

UNREADABLE: Final = {
    "invalid_json": "the line is not a JSON object, or has a number that is too large",
    "invalid_csv": "the row breaks the quoting rules of CSV",
    "wrong_field_count": "the row has more or fewer fields than the header",
    "invalid_utf8": "the row holds bytes that are not UTF-8",
    "nul_byte": "the row holds a NUL byte",
    "missing_value": "the row lacks an input column, or its value is null",
    "wrong_type": "the value of an input column is not a text",
    "column_conflict": "the row has a column of the name of the answer or the error",
}
"""Codes of rows that make no request. Other bad rows have the codes of the HTTP API."""


class Record(NamedTuple):
    """A row of the input: the values of its readable columns by name."""

    values: Mapping[str, Any]
    error: str | None = None  # one of `UNREADABLE`


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a shard."""

    records: Sequence[Record]
    table: Any = None  # the kept columns as a pyarrow.Table, if the input has one

    def part(self, start: int, stop: int) -> Chunk:
        """Returns the rows from `start` up to `stop`."""
        table = None if self.table is None else self.table.slice(start, stop - start)
        return replace(self, records=self.records[start:stop], table=table)

    def kept(self, columns: Sequence[str] | None) -> list[Mapping[str, Any]]:
        """Returns the values of each row in `columns`, or in all columns if that is None."""
        if self.table is not None:
            rows: list[Mapping[str, Any]] = self.table.to_pylist()
            return rows
        if columns is None:
            return [record.values for record in self.records]
        return [{name: record.values.get(name) for name in columns} for record in self.records]


class RowAnswer(NamedTuple):
    """The answer to a row, or its error code."""

    answer: Any
    error: str | None = None
    cut: bool = False  # whether the model did not read all of the row's texts


@dataclass(frozen=True)
class Header:
    """The columns of a file. All files of a job have the same."""

    columns: Sequence[str] | None = None  # None if each row has its own
    types: Sequence[str] | None = None  # None if the format has no types


@dataclass(frozen=True)
class Layout:
    """The columns of an output file: the kept ones, then the answer and the error."""

    kept: Sequence[str] | None  # None: all columns of each row
    answer: str
    error: str
    delimiter: str


def as_json(value: object) -> bytes:
    """Returns a value as JSON. Types that JSON lacks become texts, and numbers that it lacks null."""
    return json_text.write(value, str, bytes_mode="base64", inf_nan_mode="null")


def as_text(value: object) -> str | None:
    """Returns a value as text for a format without types: a text as it is, and anything else as JSON.

    Numbers that JSON lacks are NaN, inf and -inf. None is a missing value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    return value if value is None or isinstance(value, str) else as_json(value).decode()
