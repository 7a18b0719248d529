"""The files of a model repository: a directory, or an object store through fsspec.

    repository/
      desired.json        optional: which versions to serve, see `desired`
      albert-sst2/
        1/                an artifact
        2/

A version of an object store is there once its manifest is: `push` writes the manifest last. In a directory, a version
appears complete, by a rename.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from swiftlet_models.artifact import MANIFEST, NAME, OPTIONAL, REQUIRED, UNLISTED, Artifact
from swiftlet_models.regular_file import check_regular
from swiftlet_serve import extras
from swiftlet_serve.errors import SetupError

log = logging.getLogger(__name__)

DESIRED: Final = "desired.json"
VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")
FILES: Final = sorted({*REQUIRED, *OPTIONAL, *UNLISTED})
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class RepositoryError(Exception):
    """Raised when the repository cannot be read or written. The message is one sentence."""


class VersionExists(RepositoryError):
    """Raised when a version that is to be added is there already."""

    def __init__(self) -> None:
        super().__init__("The repository has a folder of this version already. Push the next version.")


class Store(Protocol):
    """A model repository. All methods block, and raise RepositoryError if the repository cannot be reached."""

    def desired(self) -> bytes | None:
        """Returns the content of desired.json, or None if the file is missing."""
        ...

    def versions(self) -> Mapping[str, Sequence[int]]:
        """Returns the versions of each model, lowest first. Leaves out other names, and logs them once in a model."""
        ...

    def manifest(self, name: str, version: int) -> bytes:
        """Returns the manifest of a version."""
        ...

    def fetch(self, name: str, version: int, to: Path) -> None:
        """Copies the files of a version into an empty directory, without verifying them."""
        ...

    def push(self, artifact: Artifact, version: int) -> None:
        """Adds a version. Raises VersionExists if another one has its number, as far as the store can tell."""
        ...


def open_store(location: str) -> Store:
    """Returns the repository at a path or URL.

    Raises:
        SetupError: there is no such directory, or a package for the URL is not installed.
    """
    if "://" in location and not location.startswith("file://"):
        return RemoteStore(location)
    root = Path(location.removeprefix("file://"))
    if not root.is_dir():
        raise SetupError(f"There is no model repository {location!r}. Give a directory or a URL.")
    return DirectoryStore(root)


class DirectoryStore:
    """A model repository in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._versions = _Versions()

    def desired(self) -> bytes | None:
        try:
            check_regular(file := self._inside(self._root / DESIRED))
            return file.read_bytes()
        except FileNotFoundError:
            if not self._root.is_dir():
                raise RepositoryError("The model repository is not there.") from None
            return None
        except OSError as error:
            raise _unreadable(error) from error

    def versions(self) -> dict[str, list[int]]:
        try:
            models = [path for path in self._root.iterdir() if NAME.fullmatch(path.name) and path.is_dir()]
            names = {
                model.name: [version.name for version in model.iterdir() if (version / MANIFEST).is_file()]
                for model in sorted(models)
            }
        except OSError as error:
            raise _unreadable(error) from error
        return self._versions.of(names)

    def manifest(self, name: str, version: int) -> bytes:
        try:
            return self._inside(self._root / name / str(version) / MANIFEST).read_bytes()
        except OSError as error:
            raise _unreadable(error) from error

    def fetch(self, name: str, version: int, to: Path) -> None:
        source = self._root / name / str(version)
        try:
            for file in source.iterdir():
                shutil.copyfile(self._inside(file), to / file.name)
        except OSError as error:
            raise _unreadable(error) from error

    def push(self, artifact: Artifact, version: int) -> None:
        model = self._root / artifact.manifest.name
        try:
            model.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".push-", dir=model) as temporary:
                new = Path(temporary) / "new"
                new.mkdir()
                for name in artifact.files:
                    shutil.copyfile(artifact.path / name, new / name)
                    _sync(new / name)
                _sync(new)
                new.rename(model / str(version))  # fails if the version exists: a directory that is not empty
            _sync(model)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise VersionExists from error
            raise RepositoryError(f"The version cannot be written: {error.strerror}.") from error

    def _inside(self, file: Path) -> Path:
        """Returns a file. Raises RepositoryError if a link leads out of the repository."""
        if not file.resolve().is_relative_to(self._root):
            raise RepositoryError("A link in the model repository leads out of it.")
        return file


class RemoteStore:
    """A model repository in an object store."""

    def __init__(self, url: str) -> None:
        """Opens the repository.

        Raises:
            SetupError: a package for this kind of URL is not installed, or there is no such kind.
        """
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            message = f"This model repository needs the package 'fsspec'. Run: {extras.installation('repository')}"
            raise SetupError(message) from None
        try:
            self._fs, self._root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SetupError(f"The model repository cannot be opened: {error}") from error
        self._versions = _Versions()

    def desired(self) -> bytes | None:
        try:
            self._fs.invalidate_cache()
            return bytes(self._fs.cat_file(f"{self._root}/{DESIRED}"))
        except FileNotFoundError:
            return None
        except Exception as error:  # each kind of store has errors of its own
            raise _unreachable(error) from error

    def versions(self) -> dict[str, list[int]]:
        try:
            self._fs.invalidate_cache()
            names_of = {model: self._names(f"{self._root}/{model}") for model in self._names(self._root)}
            complete = {
                model: [name for name in names if self._fs.exists(f"{self._root}/{model}/{name}/{MANIFEST}")]
                for model, names in sorted(names_of.items())
                if NAME.fullmatch(model)
            }
        except Exception as error:  # as above
            raise _unreachable(error) from error
        return self._versions.of(complete)

    def manifest(self, name: str, version: int) -> bytes:
        try:
            return bytes(self._fs.cat_file(f"{self._root}/{name}/{version}/{MANIFEST}"))
        except Exception as error:  # as above
            raise _unreachable(error) from error

    def fetch(self, name: str, version: int, to: Path) -> None:
        folder = f"{self._root}/{name}/{version}"
        try:
            for file in [MANIFEST, *FILES]:
                if file == MANIFEST or file in REQUIRED or self._fs.exists(f"{folder}/{file}"):
                    self._fs.get_file(f"{folder}/{file}", str(to / file))
        except Exception as error:  # as above
            raise _unreachable(error) from error

    def push(self, artifact: Artifact, version: int) -> None:
        folder = f"{self._root}/{artifact.manifest.name}/{version}"
        try:
            self._fs.makedirs(folder, exist_ok=True)
            for name in artifact.files:
                self._fs.put_file(str(artifact.path / name), f"{folder}/{name}")
        except Exception as error:  # as above
            raise _unreachable(error) from error

    def _names(self, folder: str) -> list[str]:
        entries: list[dict[str, Any]] = self._fs.ls(folder, detail=True)
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == "directory"]


def push(store: Store, artifact: Artifact, version: int | None = None) -> tuple[int, bool]:
    """Adds an artifact to a repository.

    Args:
        store: the repository.
        artifact: the verified artifact.
        version: its version. None: the next one, unless the latest version is the same artifact.

    Returns:
        The version, and whether it is new.

    Raises:
        RepositoryError: the version exists with another content, or the repository cannot be written.
    """
    name, content = artifact.manifest.name, (artifact.path / MANIFEST).read_bytes()
    present = store.versions().get(name, [])
    same = present[-1:] if version is None else [number for number in present if number == version]
    if same and store.manifest(name, same[0]) == content:  # it has the hashes of all other files
        return same[0], False
    if version is not None and version in present:
        message = f"{name} {version} is in the repository with another content. A version never changes: push the next."
        raise RepositoryError(message)
    number = version or (present[-1] + 1 if present else 1)
    while True:
        try:
            store.push(artifact, number)
        except VersionExists:
            if version is not None:
                raise
            number += 1  # another push has just added this one, or an incomplete folder has the number
        else:
            return number, True


class _Versions:
    """Reads names as versions."""

    def __init__(self) -> None:
        self._ignored: set[str] = set()  # that were logged

    def of(self, directories: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
        """Returns the versions of each model, given the names of its complete folders."""
        for model, names in directories.items():
            for path in (f"{model}/{name}" for name in names if not VERSION.fullmatch(name) and name[0] != "."):
                if path not in self._ignored:
                    self._ignored.add(path)
                    log.warning("%a in the model repository is no version. Versions are whole numbers from 1.", path)
        return {
            model: sorted(int(name) for name in names if VERSION.fullmatch(name))
            for model, names in directories.items()
            if names
        }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unreadable(error: OSError) -> RepositoryError:
    if error.errno in FULL:
        return RepositoryError(f"There is no room for a copy: {error.strerror}.")
    return RepositoryError(f"The model repository cannot be read: {error.strerror}.")


def _unreachable(error: Exception) -> RepositoryError:
    if isinstance(error, OSError) and error.errno in FULL:
        return _unreadable(error)
    return RepositoryError(f"The model repository cannot be reached: {type(error).__name__}.")
