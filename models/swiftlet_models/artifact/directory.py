"""The directory of an artifact: reading it, verifying every file, and writing its manifest."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import stat
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from swiftlet_models.artifact.manifest import (
    CARD,
    CERTIFICATE,
    FORMATS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    OF_LABELS,
    ONNX,
    UNLISTED,
    WEIGHTS,
    File,
    Manifest,
)
from swiftlet_models.artifact.parsing import parse
from swiftlet_models.artifact.strict_json import read_json
from swiftlet_models.errors import ModelError

AGAIN: Final = "Copy or import the artifact once more."
IMPORTED: Final = "Imported from "  # begins the summary of an imported model
FOLDERS: Final = re.compile(  # of a path that begins a word
    r"(?<![^\s'\"(=,])(?:~|\.{1,2}|[A-Za-z]:)?[\\/](?:[^\s\\/]+[\\/])*(?=[^\s\\/])"
)


class ArtifactError(ModelError):
    """Raised when a directory is not an artifact that can be served. The message names the fault."""


@dataclass(frozen=True)
class Artifact:
    """A directory whose files match its manifest exactly."""

    path: Path
    manifest: Manifest
    digest: str = ""  # SHA-256 of the manifest's file, which has those of all other files; empty before it is written
    prefix: str = ""  # of the names of its files

    def file(self, name: str) -> Path:
        """Returns the path of a listed file.

        Raises:
            ArtifactError: the artifact has no such file.
        """
        if name not in self.manifest.files:
            raise ArtifactError(f"{self.path.name}: this artifact has no {self.prefix}{name}.")
        return self.path / f"{self.prefix}{name}"

    @property
    def weights(self) -> Path:
        """The path of the file of the parameters."""
        return self.file(self._weights)

    @property
    def weights_sha256(self) -> str:
        """The SHA-256 of the file of the parameters, as the manifest lists it."""
        return self.manifest.files[self._weights].sha256

    @property
    def _weights(self) -> str:
        return next(name for name in FORMATS if name in self.manifest.files)

    @property
    def of_labels(self) -> Artifact | None:
        """The encoder of labels as an artifact of its own, in the same directory; None if the model has none."""
        manifest = self.manifest.of_labels
        return Artifact(self.path, manifest, self.digest, OF_LABELS) if manifest else None

    def card(self) -> dict[str, Any]:
        """Returns the card of the model, which an encoder of labels shares: its origin, accuracy and latency."""
        card = read_json(self.path / CARD)
        if not isinstance(card, dict):
            raise ValueError("the document is not an object")  # noqa: TRY004  # one class for all errors
        return card

    @property
    def files(self) -> list[str]:
        """The names of all files, the manifest last."""
        beside = [name for name in UNLISTED if (self.path / name).is_file()]
        return [*self.manifest.files, *beside, MANIFEST]

    def certificate(self) -> dict[str, Any] | None:
        """Returns the certificate, or None if there is none."""
        document = read_json(self.path / CERTIFICATE) if (self.path / CERTIFICATE).is_file() else None
        return document if isinstance(document, dict) else None

    def public_card(self) -> dict[str, Any]:
        """Returns the card for clients: of a path of the machine that made the artifact, only the last name is left."""
        card = self.card()
        if "directory" in self.manifest.source and str(card.get("summary", "")).startswith(IMPORTED):
            card["summary"] = f"{IMPORTED}{self.manifest.source['directory']}."
        public: dict[str, Any] = _without_paths(card)
        return public


def _without_paths(value: Any) -> Any:
    """Returns a JSON value whose texts have the last name of an absolute path in its place, recursively."""
    if isinstance(value, dict):
        return {_without_paths(key): _without_paths(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def open_artifact(path: Path) -> Artifact:
    """Verifies every file of a directory against its manifest.

    Raises:
        ArtifactError: a file is missing, altered, truncated, not listed, or no regular file, or the certificate is of
            another artifact.
    """
    manifest = read_manifest(path)
    present = {entry.name for entry in path.iterdir()} - {MANIFEST}
    _check_certificate(path, present.intersection(UNLISTED))
    present -= {*UNLISTED}
    for name in sorted(set(manifest.files) - present):
        raise ArtifactError(f"{path.name}: {name} is missing.")
    for name in sorted(present - set(manifest.files)):
        raise ArtifactError(f"{path.name}: {name} is not listed in {MANIFEST}.")
    for name, expected in manifest.files.items():
        _verify(path, name, expected)
    artifact = Artifact(path, manifest, _measure(path, MANIFEST).sha256)
    try:
        artifact.card()
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path.name}: {CARD} is not a valid JSON object.") from None
    return artifact


def _check_certificate(path: Path, present: Set[str]) -> None:
    """Checks that the certificate belongs to this manifest, which lists the hashes of all other files.

    The owner of a key checks the signature.

    Raises:
        ArtifactError: the certificate is invalid or of another artifact, or there is a signature alone.
    """
    for name in sorted(present):
        if not _is_plain(path / name) or (path / name).stat().st_size > MAX_MANIFEST_BYTES:
            raise ArtifactError(f"{path.name}: {name} is not a regular file of {MAX_MANIFEST_BYTES} bytes at most.")
    if not present:
        return
    try:
        document = read_json(path / CERTIFICATE)
        is_of_manifest = isinstance(document, dict) and document["manifest"] == _measure(path, MANIFEST).sha256
    except (KeyError, OSError, ValueError, RecursionError):
        is_of_manifest = False
    if not is_of_manifest:
        raise ArtifactError(
            f"{path.name}: {CERTIFICATE} is missing, damaged or of another artifact. Fetch the artifact again, or "
            f"remove {' and '.join(UNLISTED)} and run swiftlet certify."
        )


def check_self_contained(model: Path) -> None:
    """Checks that an ONNX file reads no tensors from other files.

    In the ONNX format, a reference to another file contains the key "location", so the check looks for that word.

    Raises:
        ArtifactError: the file refers to other files.
    """
    if not model.stat().st_size:  # an empty file cannot be mapped
        return
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"location") >= 0:
            raise ArtifactError(f"{model.parent.name}: {model.name} refers to data outside itself.")


def seal(path: Path, manifest: Manifest, card: Mapping[str, Any] | None = None) -> Artifact:
    """Writes `manifest.json` for the files in a directory, and verifies the result.

    Removes the certificate, which is of the artifact as it was.

    Args:
        path: the directory.
        manifest: the manifest. Its `files` are replaced.
        card: the content of `card.json`, which is written first. None: the card stays as it is.

    Raises:
        ArtifactError: a required file is missing, or there is an unknown file.
    """
    for name in (MANIFEST, *UNLISTED):
        (path / name).unlink(missing_ok=True)
    if card is not None:
        (path / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", "utf-8")
    files = {entry.name: _measure(path, entry.name) for entry in sorted(path.iterdir())}
    number = FORMATS[ONNX if ONNX in files else WEIGHTS]
    document = asdict(manifest) | {"files": {name: asdict(file) for name, file in files.items()}, "format": number}
    (path / MANIFEST).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return open_artifact(path)


def read_manifest(path: Path) -> Manifest:
    """Returns the manifest of a directory, whose other files are not verified.

    Raises:
        ArtifactError: there is no valid manifest.
    """
    if not path.is_dir():
        raise ArtifactError(f"{path.name}: there is no such directory.")
    file = path / MANIFEST
    if not _is_plain(file):
        raise ArtifactError(f"{path.name}: {MANIFEST} is missing.")
    if file.stat().st_size > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{path.name}: {MANIFEST} is larger than {MAX_MANIFEST_BYTES} bytes.")
    try:
        document = read_json(file)
    except (ValueError, RecursionError):
        raise ArtifactError(f"{path.name}: {MANIFEST} is not valid JSON.") from None
    try:
        return parse(document)
    except ValueError as error:
        raise ArtifactError(f"{path.name}: {MANIFEST}: {error}") from None


def _verify(path: Path, name: str, expected: File) -> None:
    actual = _measure(path, name)
    if actual.size != expected.size:
        raise ArtifactError(f"{path.name}: {name} has {actual.size} bytes, not {expected.size}. {AGAIN}")
    if actual.sha256 != expected.sha256:
        raise ArtifactError(f"{path.name}: {name} was altered: its SHA-256 is not the one listed. {AGAIN}")


def _measure(path: Path, name: str) -> File:
    file = path / name
    if not _is_plain(file):
        raise ArtifactError(f"{path.name}: {name} is not a regular file.")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return File(size=file.stat().st_size, sha256=digest)


def _is_plain(file: Path) -> bool:
    """Returns whether the path is a regular file. A symbolic link is not, because it may lead out of the directory."""
    try:
        status = file.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode)


def find_artifacts(directory: Path) -> Iterable[Path]:
    """Returns the subdirectories of `directory` that hold a manifest, sorted by name."""
    return sorted(file.parent for file in directory.glob(f"*/{MANIFEST}"))
