"""The plan of a job: its settings, its input files, and the shards that they are divided into."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Final

from swiftlet_serve.bulk import formats
from swiftlet_serve.bulk.lines import Piece
from swiftlet_serve.bulk.records import Header, Layout
from swiftlet_serve.bulk.sources import Source, reading
from swiftlet_serve.errors import SetupError

VERSION: Final = 2  # of the plan and the manifest
SHARD_ROWS: Final = 10_000


@dataclass(frozen=True)
class JobSettings:
    """Everything that decides the output of a job besides its input."""

    task: str
    model: str
    model_sha256: str  # of the artifact's manifest, which has the checksums of its files
    engine: str
    parameters: Mapping[str, Any]
    columns: Mapping[str, str]  # columns of the input by the fields of the task's inputs
    key: str | None
    keep: Sequence[str] | None  # columns to keep; None: all
    answer_column: str
    error_column: str
    input_format: str
    output_format: str
    delimiter: str
    shard_rows: int


@dataclass(frozen=True)
class Shard:
    """A part of an input file, which becomes one output file."""

    index: int
    source: int  # index of the input file
    piece: Piece


@dataclass(frozen=True)
class Plan:
    """A job. It never changes once its first worker has written it."""

    settings: JobSettings
    sources: Sequence[Source]
    header: Header  # the columns that all files have
    shards: Sequence[Shard] = field(repr=False)

    @cached_property
    def rows(self) -> int:
        return sum(shard.piece.rows for shard in self.shards)

    @cached_property
    def sha256(self) -> str:
        """Identifies the settings and the input. Each line of the manifest has it."""
        return hashlib.sha256(self.as_json()).hexdigest()

    @cached_property
    def layout(self) -> Layout:
        return layout(self.settings, self.header.columns)

    def as_json(self) -> bytes:
        shards = [[shard.source, *shard.piece] for shard in self.shards]
        document = {
            "version": VERSION,
            "settings": asdict(self.settings),
            "files": [asdict(source) for source in self.sources],
            "header": asdict(self.header),
        }
        lines = ",\n".join(json.dumps(shard) for shard in shards)
        head = json.dumps(document, ensure_ascii=False, indent=1)[:-2]
        return f'{head},\n "shards": [\n{lines}\n ]\n}}\n'.encode()

    def output_name(self, shard: Shard) -> str:
        return f"part-{shard.index:05}.{self.settings.output_format}"


def parse(data: bytes) -> Plan:
    """Reads a plan.

    Raises:
        SetupError: it is not a plan of this version.
    """
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise SetupError("The plan was written by another version of Swiftlet. Score into a new directory.")
        return Plan(
            JobSettings(**document["settings"]),
            [Source(**source) for source in document["files"]],
            Header(**document["header"]),
            [Shard(index, source, Piece(*piece)) for index, (source, *piece) in enumerate(document["shards"])],
        )
    except (ValueError, KeyError, TypeError):
        raise SetupError("plan.json is not a valid plan. Score into a new directory.") from None


def check_same(plan: Plan, settings: JobSettings, sources: Sequence[Source]) -> None:
    """Checks that a job goes on with the settings and the input that it began with.

    Raises:
        SetupError: a setting, the model or an input file differs.
    """
    before, now = (json.loads(json.dumps(asdict(values))) for values in (plan.settings, settings))
    differing = next((name for name in before if before[name] != now[name]), None)
    if differing == "model_sha256":
        raise SetupError("The model has changed since the job began. Score into a new directory.")
    if differing is not None:
        raise SetupError(
            f"The job began with another {differing.replace('_', ' ')}: {before[differing]!r}. Repeat the command "
            "that began it, or score into a new directory."
        )
    if [source.path for source in plan.sources] != [source.path for source in sources]:
        raise SetupError("The input has other files than when the job began. Score into a new directory.")
    for old, new in zip(plan.sources, sources, strict=True):
        if old != new:
            raise formats.changed(new.path)


def make(settings: JobSettings, sources: Sequence[Source]) -> Plan:
    """Divides the input into shards, in one pass over it.

    Args:
        settings: the settings of the job.
        sources: the input files.

    Raises:
        SetupError: a file cannot be read or lacks a column, or its columns differ from the first file's.
    """
    format_ = formats.load(settings.input_format)
    pieces: list[Shard] = []
    header = Header()
    for number, source in enumerate(sources):
        with reading(source.path), source.open() as stream:
            source_header = format_.header(stream, source.path, settings.delimiter)
            if number == 0:
                header = source_header
                _check_columns(settings, source_header.columns, source.path)
            elif source_header != header:
                raise SetupError(f"{source.path} has other columns than {sources[0].path}. Score them separately.")
            stream.seek(0)
            for piece in format_.split(stream, source.path, settings.delimiter, settings.shard_rows):
                pieces.append(Shard(len(pieces), number, piece))
    return Plan(settings, sources, header, pieces)


def layout(settings: JobSettings, columns: Sequence[str] | None) -> Layout:
    """Returns the columns of the output: the key first, then the kept ones in their order, the answer and the error.

    Args:
        settings: the settings of the job.
        columns: the columns of the input; None if each row has its own.
    """
    kept: Sequence[str] | None
    if settings.keep is None and settings.key is None:
        kept = columns
    else:
        wanted = [*([settings.key] if settings.key is not None else []), *(settings.keep or ())]
        kept = list(dict.fromkeys(wanted))
    return Layout(kept, settings.answer_column, settings.error_column, settings.delimiter)


def _check_columns(settings: JobSettings, columns: Sequence[str] | None, name: str) -> None:
    kept = layout(settings, columns).kept
    if kept is None and settings.output_format != settings.input_format:
        raise SetupError("JSON Lines have no fixed columns. Name the output's columns with --key and --keep.")
    added = (settings.answer_column, settings.error_column)
    if set(added) & set(kept or ()) or added[0] == added[1]:
        raise SetupError(
            "A column that is kept has the name of the answer or the error. Rename those with --answer-column and "
            "--error-column."
        )
    for column in [*settings.columns.values(), *(kept or ())]:
        if columns is not None and column not in columns:
            raise SetupError(f"{name} has no column {column!r}. Its columns are {', '.join(columns)}.")
