"""The input files of a job, on this machine or behind an fsspec URL."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, cast

from swiftlet_serve.bulk import formats
from swiftlet_serve.errors import SetupError

# The keys of fsspec's file descriptions that change when a file does, the best first.
VERSIONS: Final = ("ETag", "etag", "md5Hash", "content_md5", "generation", "LastModified", "last_modified", "mtime")


@dataclass(frozen=True)
class Source:
    """An input file."""

    path: str  # absolute, or a URL
    size: int  # in bytes
    version: str  # differs when the content does: the time of the last change, or a store's ETag

    def open(self) -> AbstractContextManager[BinaryIO]:
        """Opens the file. The stream can seek. Raises OSError, as reading does."""
        if _is_url(self.path):
            return cast(AbstractContextManager[BinaryIO], _fsspec().open(self.path, "rb").open())
        return Path(self.path).open("rb")


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turns an OSError in the block into a SetupError that names the file."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror or type(error).__name__}.") from None


def find(location: str) -> list[Source]:
    """Returns the files that a file, a folder or a glob pattern names, sorted by path.

    A folder stands for all files in it and below that have the suffix of a format. Folders and patterns leave out names
    that begin with a dot or an underscore, such as markers and unfinished files.

    Raises:
        SetupError: there is no such file, or the package fsspec is needed and not installed.
    """
    sources = _find_remote(location) if _is_url(location) else _find_local(location)
    if not sources:
        known = ", ".join(f".{name}" for name in formats.names())
        raise SetupError(f"There is no input at {location}. Name a file, a folder or a pattern of files ({known}).")
    for source in sources:
        if not _is_utf8(source.path):  # the plan, which names the files, is UTF-8
            raise SetupError(f"{os.fsencode(source.path)!r} has a name that is not UTF-8. Rename it.")
    return sorted(sources, key=lambda source: source.path)


def format_of(sources: Sequence[Source]) -> str:
    """Returns the format that the suffixes of the files name.

    Raises:
        SetupError: a suffix belongs to no format, or the files have different formats.
    """
    suffixes = {source.path: PurePosixPath(source.path).suffix.lower().removeprefix(".") for source in sources}
    first = next(iter(suffixes.values()))
    for path, suffix in suffixes.items():
        if suffix not in formats.names():
            known = ", ".join(formats.names())
            raise SetupError(f"The suffix of {path} names no format. Choose one of {known} with --input-format.")
        if suffix != first:
            raise SetupError(f"{path} has another format than the files before it. Score each format on its own.")
    return first


def _find_local(pattern: str) -> list[Source]:
    path = Path(pattern)
    if path.is_dir():
        paths = [file for file in path.rglob("*") if _is_data(file.relative_to(path).parts)]
    else:
        matches = (Path(name) for name in glob.glob(pattern, recursive=True))
        paths = [path] if path.exists() else [file for file in matches if not _is_hidden(file.name)]
    return [_local(file) for file in paths if file.is_file()]


def _local(path: Path) -> Source:
    status = path.stat()
    return Source(os.path.abspath(path), status.st_size, str(status.st_mtime_ns))


def _find_remote(url: str) -> list[Source]:
    try:
        system, path = _fsspec().core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # a package of the protocol, or an unknown protocol
        raise SetupError(f"{url} cannot be read: {error}.") from None
    with reading(url):
        if glob.has_magic(path):
            paths = [file for file in system.glob(path) if not _is_hidden(PurePosixPath(file).name)]
        elif system.isdir(path):
            paths = [file for file in system.find(path) if _is_data(PurePosixPath(file).relative_to(path).parts)]
        else:
            paths = [path] if system.exists(path) else []
        return [_remote(system.unstrip_protocol(file), system.info(file)) for file in paths]


def _remote(url: str, about: Mapping[str, Any]) -> Source:
    version = next((str(about[key]) for key in VERSIONS if about.get(key)), "")
    return Source(url, int(about["size"]), version)


def _is_data(parts: Sequence[str]) -> bool:
    return (
        not any(map(_is_hidden, parts)) and PurePosixPath(parts[-1]).suffix.lower().removeprefix(".") in formats.names()
    )


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_url(path: str) -> bool:
    return "://" in path


def _fsspec() -> Any:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise formats.missing_package("A URL as input", str(error.name)) from None
    return fsspec
