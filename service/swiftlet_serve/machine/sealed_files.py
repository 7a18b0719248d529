"""Sealed files in memory: one process writes such a file and seals it, and other processes map it.

Nobody can change or truncate a sealed file (`memfd_create` of Linux). A file begins with a key, which says what it
holds. Another process opens it by its path in /proc, as long as one process has it open. Its memory is free again when
no process has it open or mapped. A process that dies while it writes a file leaves nothing.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

SEALS: Final = 0b1111  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE, which other systems lack
F_ADD_SEALS: Final = 1033
F_GET_SEALS: Final = 1034


def path_of(pid: int, descriptor: int) -> str:
    """Returns the path by which other processes of this user open a file that a process has open."""
    return f"/proc/{pid}/fd/{descriptor}"


def open_sealed(path: str) -> int | None:
    """Opens a sealed file for reading, and returns its descriptor. Returns None if that fails or it is not sealed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait, whatever it is
    except OSError:
        return None
    with suppress(OSError):
        if fcntl.fcntl(descriptor, F_GET_SEALS) & SEALS == SEALS:
            return descriptor
    os.close(descriptor)
    return None


class SealedFiles:
    """The files that a process uses: those that it found among the files of others, and those that it made."""

    def __init__(self, offered: Sequence[str] = ()) -> None:
        """`offered` has the paths of other processes' files."""
        self._offered = offered
        self._held: dict[bytes, int] = {}  # descriptors by key
        self._made = False

    @property
    def new(self) -> Sequence[int]:
        """The descriptors of all files in use if the process made one of them; otherwise none."""
        return [*self._held.values()] if self._made else []

    def find(self, key: bytes, size: int) -> int | None:
        """Returns the descriptor of the file with a key and a size, or None if there is none."""
        for path in self._offered:
            if key not in self._held and (descriptor := open_sealed(path)) is not None:
                if os.fstat(descriptor).st_size == size and os.pread(descriptor, len(key), 0) == key:
                    self._held[key] = descriptor
                else:
                    os.close(descriptor)
        return self._held.get(key)

    @contextmanager
    def make(self, key: bytes, size: int) -> Iterator[int]:
        """Makes a file, whose descriptor the block writes to. It is sealed after the block.

        Raises:
            OSError: the system has no such files, or not enough memory.
        """
        if sys.platform != "linux":
            raise OSError("this system has no sealed files")
        descriptor = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, size)  # a write to memory that is missing later would end the process
            yield descriptor
            os.pwrite(descriptor, key, 0)
            fcntl.fcntl(descriptor, F_ADD_SEALS, SEALS)
            if (sealed := open_sealed(path_of(os.getpid(), descriptor))) is not None:
                self._held[key], self._made = sealed, True
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Closes the files. What is mapped of them stays mapped."""
        while self._held:
            os.close(self._held.popitem()[1])
