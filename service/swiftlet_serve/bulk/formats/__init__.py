"""The file formats, one module each. A file `parquet.py` is the format `parquet`, of files with the suffix `.parquet`.

A format module defines the members of `Format`. No other file lists the formats.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from swiftlet_serve import extras, plugins
from swiftlet_serve.bulk.durable import HashedStream
from swiftlet_serve.bulk.lines import Piece
from swiftlet_serve.bulk.records import Chunk, Header, Layout, RowAnswer
from swiftlet_serve.errors import SetupError


class Writer(Protocol):
    """Writes the rows of one output file."""

    def write(self, chunk: Chunk, answers: Sequence[RowAnswer]) -> None: ...

    def close(self) -> None:
        """Writes the rest. The stream stays open."""
        ...


class Format(Protocol):
    """The members of a format module. Streams are at their start and can seek."""

    def header(self, stream: BinaryIO, name: str, delimiter: str) -> Header:
        """Reads the columns of a file. Raises SetupError if it is not of this format."""
        ...

    def split(self, stream: BinaryIO, name: str, delimiter: str, shard_rows: int) -> Iterator[Piece]:
        """Divides a file into pieces of about `shard_rows` rows, in one pass. Raises SetupError as `header`."""
        ...

    def read(
        self, stream: BinaryIO, name: str, layout: Layout, piece: Piece, header: Header, inputs: Sequence[str]
    ) -> Iterator[Chunk]:
        """Reads a piece. `inputs` names the columns that requests are made of.

        Raises:
            SetupError: the file has changed since it was divided.
        """
        ...

    def writer(self, stream: HashedStream, layout: Layout) -> Writer: ...

    def count(self, path: Path, layout: Layout) -> int:
        """Returns the number of rows of an output file. Raises ValueError if it cannot be read."""
        ...


def names() -> list[str]:
    """Returns the names of all formats, sorted. Imports none of them."""
    return plugins.names(sys.modules[__name__])


def load(name: str) -> Format:
    """Imports the format of this name.

    Raises:
        SetupError: there is no such format, or a package that it needs is not installed.
    """
    try:
        return cast(Format, plugins.load(sys.modules[__name__], name))
    except SetupError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise missing_package(f"The format {name}", str(error.__cause__.name)) from error
        raise


def missing_package(purpose: str, package: str) -> SetupError:
    """Returns the error for a package of the extra `bulk` that is not installed."""
    return SetupError(f"{purpose} needs the package {package!r}. Run: {extras.installation('bulk')}")


def changed(name: str) -> SetupError:
    """Returns the error for an input file that differs from the plan."""
    return SetupError(f"{name} has changed since the job began. Score it into a new directory.")
