"""The manifest of a job: one line for each finished shard, in `manifest.jsonl`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from swiftlet_serve.bulk.durable import replace_file, sync_directory
from swiftlet_serve.bulk.leases import MANIFEST, Leases
from swiftlet_serve.bulk.plan import Plan
from swiftlet_serve.errors import SetupError

NAME: Final = "manifest.jsonl"


@dataclass(frozen=True)
class Entry:
    """A finished shard."""

    shard: int
    file: str
    rows: int
    bad_rows: int
    cut_rows: int  # rows whose texts have more tokens than the model reads
    size: int  # bytes
    sha256: str  # of the output file
    model: str  # SHA-256 of the artifact's manifest
    plan: str  # SHA-256 of the plan

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class Manifest:
    """The finished shards of a job. `refresh` adds the shards that other workers have finished since."""

    def __init__(self, directory: Path, plan: Plan, *, check_files: bool = True) -> None:
        """Reads the manifest.

        Raises:
            SetupError: a line is invalid, belongs to another plan, or its output file is missing.
        """
        self._path, self._plan = directory / NAME, plan
        self._read = 0  # bytes
        self._inode = 0
        self.entries: dict[int, Entry] = {}
        self.refresh()
        for entry in self.entries.values() if check_files else ():
            self._check_file(entry)

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.entries.values())

    @property
    def bad_rows(self) -> int:
        return sum(entry.bad_rows for entry in self.entries.values())

    @property
    def cut_rows(self) -> int:
        return sum(entry.cut_rows for entry in self.entries.values())

    @property
    def complete(self) -> bool:
        return len(self.entries) == len(self._plan.shards)

    def refresh(self) -> None:
        """Reads the lines since the last call. A line without its end is not finished, and ignored."""
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:
            return
        with stream:
            if os.fstat(stream.fileno()).st_ino != self._inode:
                self._inode, self._read = os.fstat(stream.fileno()).st_ino, 0
            stream.seek(self._read)
            for line in stream:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                entry = self._parse(line)
                if self.entries.setdefault(entry.shard, entry) != entry:
                    raise self._invalid(f"has two lines for the shard {entry.shard}")

    def add(self, entry: Entry, leases: Leases) -> None:
        """Appends the line of a shard, and the last line sorts them all.

        The order of the lines then does not depend on the workers. The line is on the disk when the call returns.
        """
        with leases.hold(MANIFEST):
            self.refresh()
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.ftruncate(file, self._read)  # the rest is half a line of a worker that was killed
                os.lseek(file, self._read, os.SEEK_SET)
                write_all(file, entry.line())
                os.fsync(file)
            finally:
                os.close(file)
            if not self.entries:
                sync_directory(self._path.parent)
            self.refresh()
            if self.complete:
                self._sort()

    def sort(self, leases: Leases) -> None:
        """Sorts the lines of a finished job, which its last worker may not have done before it was killed."""
        with leases.hold(MANIFEST):
            self.refresh()
            if self.complete and self.entries:
                self._sort()

    def _sort(self) -> None:
        ordered = b"".join(self.entries[shard].line() for shard in sorted(self.entries))
        if self._path.read_bytes() != ordered:
            replace_file(self._path, ordered)

    def _parse(self, line: bytes) -> Entry:
        try:
            entry = Entry(**json.loads(line))
            shard = self._plan.shards[entry.shard]
        except (ValueError, TypeError, IndexError):
            raise self._invalid("has an invalid line") from None
        if entry.plan != self._plan.sha256 or entry.model != self._plan.settings.model_sha256:
            raise self._invalid("has a line of another job")
        if entry.line() != line or entry.file != self._plan.output_name(shard) or entry.rows != shard.piece.rows:
            raise self._invalid(f"has a wrong line for the shard {entry.shard}")
        return entry

    def _check_file(self, entry: Entry) -> None:
        path = self._path.parent / entry.file
        if not path.is_file() or path.stat().st_size != entry.size:
            raise SetupError(
                f"{path} is missing or has another size than {NAME} says. Restore it, or remove the line of the shard "
                f"{entry.shard} to score it again."
            )

    def _invalid(self, problem: str) -> SetupError:
        return SetupError(f"{self._path} {problem}. Restore it, or score into a new directory.")


def write_all(file: int, data: bytes) -> None:
    """Writes all bytes to a descriptor: one call may write fewer."""
    while data:
        data = data[os.write(file, data) :]
