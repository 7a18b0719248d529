"""API keys: who may ask, known by the SHA-256 of their keys only.

A file holds a line for each key, its owner's name and the hash: `swiftlet key NAME` makes one. A hash without salt is
enough, because a key is 256 random bits and nobody can try them.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from swiftlet_serve.service.errors import SetupError

log = logging.getLogger(__name__)

LINE: Final = re.compile(r"([A-Za-z0-9._-]{1,64})\s+([0-9a-f]{64})")


def make_key(name: str) -> tuple[str, str]:
    """A new key, and the line that lets its owner in.

    Raises:
        SetupError: the name is not one that a file of keys and a log can hold.
    """
    key = secrets.token_urlsafe(32)
    line = f"{name} {_digest(key).hex()}"
    if not LINE.fullmatch(line):
        raise SetupError("The name of a key has 1 to 64 letters, digits and ._- only.")
    return key, line


class Keys:
    """The keys that are let in."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Raises SetupError, with the number of the line, where one is not a name and a hash."""
        self._owners: list[tuple[str, bytes]] = []
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            if not (found := LINE.fullmatch(text)):
                raise SetupError(f"Line {number} of the file of API keys is not a name and a SHA-256.")
            self._owners.append((found[1], bytes.fromhex(found[2])))
        if not self._owners:
            raise SetupError(
                "The file of API keys holds none, so nobody could ask anything: swiftlet key NAME makes one."
            )

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Raises SetupError where the file cannot be read, or is not one of keys."""
        try:
            lines = path.read_text("ascii").splitlines()
            readable = path.stat().st_mode & stat.S_IROTH
        except OSError as error:
            raise SetupError(f"The file of API keys {path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise SetupError(f"The file of API keys {path} is not plain text.") from None
        if readable:
            log.warning("Every user of this machine may read %s, the file of API keys.", path)
        return cls(lines)

    def owner(self, key: str) -> str | None:
        """Whose key it is. Takes the same time for every key of one length, known or not."""
        digest, owner = _digest(key), None
        for name, known in self._owners:
            if hmac.compare_digest(known, digest):
                owner = name
        return owner


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
