"""The cache of imported models: artifacts that were made of checkpoints, by the content of the checkpoint.

An entry is a directory with one artifact. It is written by a process of its own (`swiftlet import`), as a whole or not
at all, and by one process at a time. A process that serves an entry holds a shared lock on it until it ends, so that no
other process removes it. The file of the lock goes with the entry: a lock on a file that was removed does not count.

Users can share a cache. A user who may read its directory may read its locks, and serves the entries that their owners
let others read. A user who may write it decides what the others serve.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftlet_models import checkpoint_files
from swiftlet_models.artifact import MANIFEST
from swiftlet_models.sources import TRAINING_STATE
from swiftlet_serve import build_info
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.model_import import import_model
from swiftlet_serve.inference.model_source import ModelSource

log = logging.getLogger(__name__)

NONE: Final = "none"  # instead of a directory: a temporary one, which ends with the process
CONVERSION: Final = 3  # of checkpoints; a change that makes other artifacts of them gets the next number
LIMIT_BYTES: Final = 20 << 30  # of a cache; entries that were used least recently are removed first
LOCK: Final = ".lock"
STATE: Final = ".state"  # a note: a file with the hash of the content of files in this state
DIGEST: Final = re.compile("[0-9a-f]{24}")
NOTE: Final = re.compile(rf"{DIGEST.pattern}\.(state|\d+)")  # with a number: earlier versions left it
RETRIES: Final = 100
RETRY_S: Final = 0.05
MAX_FILE_DEPTH: Final = 2  # of a checkpoint: modules of sentence-transformers are directories
# Beginnings of names that no import reads.
SKIPPED: Final = (".git", ".cache", "openvino", "checkpoint-", *TRAINING_STATE)

Make = Callable[[ModelSource, str | None, Path, int], object]
"""Writes the entry of a source, in the revision that was fetched, while it holds the lock of this descriptor."""

_held: dict[Path, int] = {}  # the locks of the entries that this process uses


@dataclass(frozen=True)
class Entry:
    """An imported model in a cache."""

    path: Path  # of the artifact
    size: int  # bytes
    used: float  # the time of its last use, in seconds since the epoch


class ModelCache:
    """A directory of imported models."""

    def __init__(self, location: str = "", make: Make = import_model) -> None:
        """Opens a cache: a directory, `none`, or, if the location is empty, the user's cache. `make` fills it.

        Raises:
            SetupError: the directory cannot be written.
        """
        self._make = make
        try:
            if location == NONE:
                self._root = Path(tempfile.mkdtemp(prefix="swiftlet-models-"))
                atexit.register(shutil.rmtree, self._root, ignore_errors=True)
                return
            self._root = Path(location).expanduser() if location else default_directory()
            self._root.mkdir(0o777 if location else 0o700, parents=True, exist_ok=True)  # masked by the umask
        except RuntimeError:  # ~ or ~name stands for no directory
            raise SetupError("The user has no home directory. Set model_cache to a directory, or to none.") from None
        except OSError as error:
            raise self._unusable(error) from None

    def fetch(self, source: ModelSource) -> Path:
        """Returns the artifact of a checkpoint. Imports the checkpoint unless that was done before.

        Raises:
            ConversionError: the checkpoint cannot be reached.
            SetupError: the checkpoint cannot be served, or the cache cannot be written, or its entry not be read.
        """
        directory, origin = checkpoint_files.locate(source.source, source.revision)
        adapter = checkpoint_files.find_adapter(directory)
        parts = [directory, adapter.base] if adapter else [directory]
        key = f"{source.name}-{self._digest(parts, source)}"
        entry = self._root / key
        path = entry / source.name
        revision = origin.get("revision")
        self._use(key, path / MANIFEST, lambda lock: self._make(source, revision, entry, lock))
        with suppress(OSError):  # another user's
            os.utime(entry)
        return path

    def entries(self) -> list[Entry]:
        """Returns the imported models, the one that was used last first."""
        found = []
        for manifest in self._root.glob(f"*/*/{MANIFEST}"):
            path, entry = manifest.parent, manifest.parents[1]
            with suppress(OSError):  # another process removes it, or only its owner may read it
                found.append(Entry(path, sum(file.stat().st_size for file in path.iterdir()), entry.stat().st_mtime))
        return sorted(found, key=lambda entry: -entry.used)

    def remove(self, entry: Entry) -> bool:
        """Removes an entry, unless a process or another user has it. Returns whether it was removed."""
        return self._clear(entry.path.parent.name)

    def _clear(self, key: str) -> bool:
        """Removes what the cache has of a key, unless a process uses it. Returns whether it was removed."""
        file = self._root / f"{key}{LOCK}"
        try:
            with os.fdopen(_make_lock(file)) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_current(lock.fileno(), file):
                    return False
                shutil.rmtree(self._root / key, ignore_errors=True)
                if (self._root / key).exists():
                    return False
                file.unlink()
                self._drop_notes()
        except OSError:  # a process uses it, or it is another user's
            return False
        return True

    def _digest(self, directories: Sequence[Path], source: ModelSource) -> str:
        """Returns a hash of a checkpoint's content. It is kept by the state of the files, which takes less to read."""
        note = self._root / f"{_hash(directories, source, _state)}{STATE}"
        with suppress(OSError):
            if DIGEST.fullmatch(digest := note.read_text("ascii", "replace")):  # else its writer was killed
                return digest
        digest = _hash(directories, source, _content)
        with suppress(OSError):  # without a note, the next start reads the content again
            note.write_text(digest, "ascii")  # in place, since others write the same, and a part of it does not count
        return digest

    def _drop_notes(self) -> None:
        """Removes the notes of content that has no lock. If it gets one just now, the next start writes its note."""
        locked = {lock.stem.rpartition("-")[2] for lock in self._root.glob(f"*{LOCK}")}
        for note in filter(NOTE.fullmatch, os.listdir(self._root)):
            with suppress(OSError):
                if not note.endswith(STATE) or (self._root / note).read_text("ascii", "replace") not in locked:
                    (self._root / note).unlink()

    def _use(self, key: str, manifest: Path, make: Callable[[int], object]) -> None:
        """Makes an entry unless it has its manifest, and holds a shared lock on it until this process ends."""
        file = self._root / f"{key}{LOCK}"
        for _ in range(RETRIES):
            try:
                lock = _held[file] = _held.get(file) or _open_lock(file)
            except OSError as error:
                if not _can_be_read(manifest):
                    raise self._unusable(error) from None
                log.warning("%s is served without a lock, which cannot be read, so others may remove it", key)
                return
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for a process that makes the entry
            if not _is_current(lock, file):  # another process has removed the entry meanwhile
                os.close(_held.pop(file))
                continue
            if _can_be_read(manifest):
                return
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process has seen it incomplete as well, and one of them makes it
                time.sleep(RETRY_S)
                continue
            try:
                if _is_current(lock, file) and not _can_be_read(manifest):
                    make(lock)
                    self._trim()
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
        raise SetupError(f"{self._root / key} was damaged while another process uses it: end that first.")

    def _trim(self) -> None:
        for lock in self._root.glob(f"*{LOCK}"):
            if not lock.with_suffix("").exists():  # its import has failed
                self._clear(lock.stem)
        self._drop_notes()
        total = 0
        for entry in self.entries():
            total += entry.size
            if total > LIMIT_BYTES and self.remove(entry):
                log.info("removed %s from the cache, which has reached its limit", entry.path.name)

    def _unusable(self, error: OSError) -> SetupError:
        return SetupError(
            f"The cache of imported models cannot be written: {error.strerror}. Set model_cache to a directory that "
            "can, or to none for a temporary one."
        )


def default_directory() -> Path:
    """Returns the directory of the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "swiftlet" / "models"


def _make_lock(file: Path) -> int:
    """Opens the file of a lock to write, and makes one that has the permissions of its directory."""
    return os.open(file, os.O_RDWR | os.O_CREAT, file.parent.stat().st_mode & 0o666)


def _open_lock(file: Path) -> int:
    """Opens the file of a lock, only to read if this user may not write it, which suffices for a shared lock."""
    try:
        return _make_lock(file)
    except OSError:
        with suppress(OSError):
            return os.open(file, os.O_RDONLY)
        raise


def _can_be_read(manifest: Path) -> bool:
    """Returns whether an entry has its manifest. Raises SetupError if only its owner may read it."""
    entry = manifest.parents[1]
    try:
        manifest.open("rb").close()
    except PermissionError:
        if not os.access(entry.parent, os.X_OK, effective_ids=True):  # then the cache itself is another user's
            return False
        raise SetupError(
            f"The imported model {entry} is another user's, and only that user may read it. Have its owner run "
            f"chmod -R a+rX {entry}, or set model_cache to a directory of your own."
        ) from None
    except OSError:
        return False
    return True


def _is_current(descriptor: int, file: Path) -> bool:
    """Returns whether a descriptor is of the file that has this path now."""
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def _hash(directories: Sequence[Path], source: ModelSource, read: Callable[[Path], object]) -> str:
    """Returns a hash of what is read of each file of a checkpoint and of its base, the options, and the code."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(repr((CONVERSION, build_info.version(), sorted(source.options.items()))).encode())
    for directory in directories:
        for file in sorted(_files(directory, MAX_FILE_DEPTH)):
            digest.update(repr((str(file.relative_to(directory)), read(file))).encode())
    return digest.hexdigest()


def _content(file: Path) -> str:
    with file.open("rb") as stream:  # SHA-256 has instructions of its own: a gigabyte takes a second
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _state(file: Path) -> tuple[int, ...]:
    """Returns what changes whenever the content of a file does. No program can set the time of the last change."""
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _files(directory: Path, depth: int) -> Iterator[Path]:
    for entry in directory.iterdir():
        if entry.name.startswith(SKIPPED):
            continue
        if entry.is_dir() and depth > 1:
            yield from _files(entry, depth - 1)
        elif entry.is_file():
            yield entry
