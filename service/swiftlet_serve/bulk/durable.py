"""Files that appear whole or not at all, also after a crash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

TEMPORARY: Final = ".tmp"


class HashedStream:
    """A stream to write to, which hashes and counts the bytes."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        written = self._stream.write(data)
        self._hash.update(data)
        self.size += written
        return written

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._stream.flush()

    def sha256(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def new_file(path: Path) -> Iterator[HashedStream]:
    """Writes a file under a temporary name, and renames it at the end of the block if that raises nothing.

    Only one process may write a path at a time. A temporary file of one that was killed is removed.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    with suppress(FileNotFoundError):
        temporary.unlink()
    try:
        # Exclusive: should a file system break its locks, another writer keeps a file of its own.
        with temporary.open("xb") as stream:
            yield HashedStream(cast(BinaryIO, stream))
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces the content of a file."""
    with new_file(path) as stream:
        stream.write(data)


def sync_directory(path: Path) -> None:
    """Writes the names of a directory to the disk."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
