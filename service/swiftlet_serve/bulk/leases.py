"""Leases: locks of the kernel, which end with the process that holds them.

A lease is a lock on one byte of a file ("open file description" lock of Linux, fcntl(2)). No process writes the file,
and no lease has a time. Network file systems that support byte-range locks, such as NFS 4, share leases between
machines.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from swiftlet_serve.errors import SetupError

PLAN, MANIFEST, TEST = 0, 1, 2  # bytes of the file; shards begin at FIRST_SHARD
FIRST_SHARD: Final = 16
HELD: Final = (errno.EACCES, errno.EAGAIN)
ATTEMPTS: Final = 100
FLOCK: Final = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, process


class Leases:
    """The leases of one worker on the shards of a directory."""

    def __init__(self, directory: Path) -> None:
        """Opens the file in the directory, which is made if need be, and checks that the file system keeps locks.

        Raises:
            SetupError: it does not, or the directory cannot be made, or the file cannot be opened.
        """
        self._path = directory / "leases"
        self._new: list[Path] = []
        self._file = _open(self._path, self._new)
        try:
            self._check()
        except BaseException:
            if self._path in self._new:
                self.discard()
            os.close(self._file)
            raise

    def take(self, shard: int) -> bool:
        """Takes the lease of a shard if no worker has it. Returns whether this worker now has it."""
        return _lock(self._file, FIRST_SHARD + shard, wait=False)

    def wait(self, shard: int) -> None:
        """Takes the lease of a shard, once no other worker has it."""
        _lock(self._file, FIRST_SHARD + shard, wait=True)

    def release(self, shard: int) -> None:
        _unlock(self._file, FIRST_SHARD + shard)

    @contextmanager
    def hold(self, byte: int) -> Iterator[None]:
        """Waits for the lease of the manifest, and holds it."""
        _lock(self._file, byte, wait=True)
        try:
            yield
        finally:
            _unlock(self._file, byte)

    @contextmanager
    def hold_plan(self) -> Iterator[None]:
        """Waits for the lease of the plan, and holds it."""
        _lock(self._file, PLAN, wait=True)
        while not self._is_current():  # a command that was refused has discarded the file
            os.close(self._file)
            self._file = _open(self._path, self._new)
            _lock(self._file, PLAN, wait=True)
        try:
            yield
        finally:
            _unlock(self._file, PLAN)

    def discard(self) -> None:
        """Removes the file and the directories that were made for it, if they are empty.

        The caller holds the lease of the plan, and there is no plan: no other worker has the lease of a shard.
        """
        with suppress(OSError):
            self._path.unlink()
            for directory in self._path.parents:
                if directory in self._new:
                    directory.rmdir()

    def _is_current(self) -> bool:
        try:
            return _is_same(self._file, self._path)
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Leases:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        """Takes a lock twice, over two descriptions of the file. The second attempt must fail."""
        second = _open(self._path, self._new)
        try:
            with self.hold(TEST):
                # Different files: a command that was refused has discarded the first. `hold_plan` opens the other.
                excluded = not _is_same(self._file, second) or not _lock(second, TEST, wait=False)
        except OSError as error:
            raise _no_locks(self._path) from error
        finally:
            os.close(second)
        if not excluded:
            raise _no_locks(self._path)


def _open(path: Path, made: list[Path]) -> int:
    """Opens the file, and adds what this process has made for it."""
    attempts = 0
    while True:
        failing = f"{path.parent} cannot be created"
        try:
            for part in [part for part in path.parents if not part.exists()][::-1]:
                with suppress(FileExistsError):
                    part.mkdir()
                    made.append(part)
            failing = f"{path} cannot be opened"
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                made.append(path)
            except FileExistsError:
                file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            attempts += 1
            # A command that is refused may have removed the directory meanwhile.
            if attempts == ATTEMPTS or not isinstance(error, FileNotFoundError):
                raise SetupError(f"{failing}: {error.strerror}.") from None
        else:
            return file


def _is_same(first: int, second: int | Path) -> bool:
    return os.path.samestat(os.stat(first), os.stat(second))


def _lock(file: int, byte: int, *, wait: bool) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, byte))
    except OSError as error:
        if not wait and error.errno in HELD:
            return False
        raise
    return True


def _unlock(file: int, byte: int) -> None:
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte))


def _flock(kind: int, byte: int) -> bytes:
    return struct.pack(FLOCK, kind, os.SEEK_SET, byte, 1, 0)


def _no_locks(path: Path) -> SetupError:
    return SetupError(f"The file system of {path.parent} has no locks, which workers need. Score into another one.")
