"""Local copies of the versions that a server uses.

The engines read a copy, and read it again when a worker process is replaced. The repository may change or vanish
meanwhile.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Final

from swiftlet_models.artifact import Artifact, ArtifactError, open_artifact
from swiftlet_serve.repository.store import RepositoryError, Store
from swiftlet_serve.workers.signature import check_signature, public_key

COPY: Final = re.compile(r"(?P<name>.+)-(?P<version>[1-9][0-9]{0,8})-[0-9a-f]{16}")
TEMPORARY: Final = ".fetch-"


class Cache:
    """Verified copies of versions, in a directory."""

    def __init__(self, store: Store, directory: Path | None, signer_key: Path | None = None) -> None:
        """Opens the cache. Without a directory, it is a temporary one. With a key, its owner must sign each version.

        Raises:
            OSError: the directory cannot be created.
            SetupError: the key cannot be read.
        """
        if signer_key:
            public_key(signer_key)
        self._store, self._signer_key = store, signer_key
        # A fetch that stalled may still write to a temporary directory while it is removed.
        temporary = (
            None if directory else tempfile.TemporaryDirectory("", "swiftlet-models-", ignore_cleanup_errors=True)
        )
        self._temporary = temporary
        self._root = Path(self._temporary.name) if self._temporary else Path(directory or "").resolve()
        self._root.mkdir(parents=True, exist_ok=True)
        for unfinished in self._root.glob(f"{TEMPORARY}*"):  # of a server that was killed
            shutil.rmtree(unfinished, ignore_errors=True)

    def fetch(self, name: str, version: int) -> Artifact:
        """Returns the verified copy of a version.

        Raises:
            ArtifactError: the version is no valid artifact, one of another model, or not signed with the key.
            RepositoryError: the repository cannot be read, or the copy cannot be written.
        """
        digest = hashlib.sha256(self._store.manifest(name, version)).hexdigest()
        path = self._root / f"{name}-{version}-{digest[:16]}"
        try:
            artifact = open_artifact(path)
        except ArtifactError:  # there is no copy yet, or it was damaged
            shutil.rmtree(path, ignore_errors=True)
            self._copy(name, version, path)
            artifact = open_artifact(path)
        try:
            self._check(artifact, name, version)
        except ArtifactError:
            shutil.rmtree(path, ignore_errors=True)  # the next fetch may find another one
            raise
        return artifact

    def release(self, path: Path) -> None:
        """Removes a copy that is no longer used."""
        shutil.rmtree(path, ignore_errors=True)

    def keep_only(self, versions: Collection[tuple[str, int]]) -> None:
        """Removes the copies of all other versions, which an earlier start has left. Other files stay."""
        for path in self._root.iterdir():
            match = COPY.fullmatch(path.name)
            if match and (match["name"], int(match["version"])) not in versions:
                self.release(path)

    def close(self) -> None:
        """Removes a temporary cache."""
        if self._temporary is not None:
            self._temporary.cleanup()

    def _check(self, artifact: Artifact, name: str, version: int) -> None:
        if artifact.manifest.name != name:
            raise ArtifactError(f"The artifact of {name} {version} says that it is {artifact.manifest.name}.")
        if self._signer_key:
            check_signature(artifact.path, self._signer_key)

    def _copy(self, name: str, version: int, path: Path) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=self._root) as temporary:
                new = Path(temporary, f"{name}-{version}")  # errors name it
                new.mkdir()
                self._store.fetch(name, version, new)
                open_artifact(new)
                new.rename(path)
        except OSError as error:
            raise RepositoryError(f"{name} {version} cannot be copied: {error.strerror}.") from error
