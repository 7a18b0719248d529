"""Reads data files: tables and lines of JSON, as records with the fields that a reader asks for."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftlet_models.errors import ModelError
from swiftlet_models.regular_file import check_regular


class DatasetError(ModelError):
    """Raised when a data file is not in the expected format. The message is one sentence."""


@dataclass(frozen=True)
class Record:
    """A line of a table or of JSON: its number in the file, and its values by the names that a reader uses."""

    file: str
    number: int
    values: Mapping[str, Any]
    expected: str  # what a line should have

    def value(self, name: str) -> Any:
        """Returns the value of a field. Raises DatasetError if the line has none."""
        if self.values[name] is None:
            raise self.error(f"it has no {name}")
        return self.values[name]

    def text(self, name: str) -> str:
        """Returns the text of a field. Raises DatasetError if the line has none."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.error(f"its {name} is not a text")
        return value

    def numeral(self, name: str) -> float:
        """Returns a number, also if it is written as a text. Raises DatasetError if the line has none."""
        value = self.value(name)
        if not is_number(value):
            raise self.error(f"its {name} is not a number")
        return float(value)

    def error(self, fault: str) -> DatasetError:
        """Returns an error that names the line, and quotes none of its content."""
        return DatasetError(f"{self.file}: line {self.number}: {fault}. {self.expected}")


def read_records(
    path: Path,
    required: Mapping[str, Sequence[str]],
    columns: Sequence[str] = (),
    optional: Mapping[str, Sequence[str]] = {},
) -> list[Record]:
    """Reads a file of JSON lines or a table: UTF-8, or UTF-16 with a byte order mark. It may be compressed (`.gz`).

    Lines of JSON begin with a brace. In a table, a header names the fields, in any order and with any capitals; other
    columns are left out. Columns are separated by tabs without quotes, or by commas or semicolons with quotes; `.csv`
    has quotes in any case.

    Args:
        path: the file.
        required: by the name that a reader uses, the names that a value may have in the file. The first one counts.
        columns: the columns of a table whose first line does not name the first field. Empty: it must name all.
        optional: the same as `required` for fields that a file may lack.

    Raises:
        DatasetError: the file is damaged or no text, or does not have this form.
    """
    content, fields = read_text(path), {**required, **optional}
    names = ", ".join(" or ".join(known) for known in required.values())
    expected = f"Expected lines of JSON, or a table with a header, with the fields {names}."
    if content.lstrip().startswith("{") or ".jsonl" in path.suffixes:
        return [
            Record(path.name, number, {name: _first(line, known) for name, known in fields.items()}, expected)
            for number, line in json_lines(path.name, content)
        ]
    rows = _table(path, content, {column for known in fields.values() for column in known})
    if not rows:
        return []
    header = [name.strip().casefold() for name in rows[0][1]]
    places = {name: next((header.index(key) for key in known if key in header), -1) for name, known in fields.items()}
    if columns and next(iter(places.values())) < 0:
        places, width = {name: columns.index(name) if name in columns else -1 for name in fields}, None
    else:
        for name, place in places.items():
            if place < 0 and name in required:
                fault = f"{path.name}: none of the {len(header)} columns of the first line is named {name}."
                raise DatasetError(f"{fault} {expected}")
        rows, width = rows[1:], len(header)
    records = []
    for number, row in rows:
        values = {name: row[place] if 0 <= place < len(row) else None for name, place in places.items()}
        records.append(Record(path.name, number, values, expected))
        if len(row) != (width or len(row)):
            raise records[-1].error(f"it does not have {width} columns like the header, but {len(row)}")
    return records


def _first(line: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((line[name] for name in names if line.get(name) is not None), None)


def _table(path: Path, content: str, names: Set[str]) -> list[tuple[int, list[str]]]:
    """Returns the lines of a table that are not blank, with their numbers. Raises DatasetError."""
    first = content.lstrip().partition("\n")[0]
    separators = (",", ";", "\t") if ".csv" in path.suffixes else ("\t", ",", ";")
    named = (mark for mark in separators if names & {name.strip(' "\r').casefold() for name in first.split(mark)})
    is_tabular = separators[0] == "\t" and ("\t" in first or ".tsv" in path.suffixes)
    separator = next(named, "\t" if is_tabular else ",")
    if separator == "\t" and ".csv" not in path.suffixes:
        lines = [line.removesuffix("\r") for line in content.split("\n")]
        return [(number, line.split("\t")) for number, line in enumerate(lines, start=1) if line]
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
    rows, number = [], 1
    try:
        for row in reader:
            if row:
                rows.append((number, row))
            number = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(f"{path.name}: line {number} cannot be read as comma-separated text: {error}.") from None
    return rows


def json_lines(file: str, content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects in lines of JSON that are not blank, with their numbers. Raises DatasetError."""
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise DatasetError(f"{file}: line {number} is not an object of JSON.")
            yield number, row


def read_text(path: Path) -> str:
    """Returns the content of a text file, plain or `.gz`, without a byte order mark. Raises DatasetError."""
    try:
        check_regular(path)
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise DatasetError(f"{path.name} cannot be read: {reason}.") from None
    try:
        return content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError:
        raise DatasetError(f"{path.name} is not UTF-8 text. Save it as text in UTF-8.") from None


def is_number(value: object) -> bool:
    """Returns whether a value is a finite number, or a text that is one."""
    try:
        return isinstance(value, str | int | float) and math.isfinite(float(value))
    except (ValueError, OverflowError):
        return False
