"""API keys, stored as SHA-256 hashes.

Each line of a key file holds an owner's name and a hash; `swiftlet key NAME` creates one. The hashes need no salt: a
key has 256 random bits, which are too many to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from swiftlet_models.regular_file import check_regular
from swiftlet_serve.errors import SetupError

log = logging.getLogger(__name__)

LINE: Final = re.compile(r"([A-Za-z0-9._-]{1,64})\s+([0-9a-f]{64})")


def make_key(name: str) -> tuple[str, str]:
    """Creates a key. Returns it, and the line of the key file that grants it access.

    Raises:
        SetupError: the name is invalid.
    """
    key = secrets.token_urlsafe(32)
    line = f"{name} {_digest(key).hex()}"
    if not LINE.fullmatch(line):
        raise SetupError("The name of a key must have 1 to 64 letters, digits or the characters . _ -.")
    return key, line


def add_line(file: Path, line: str) -> None:
    """Adds a line to a key file. A new file is readable and writable by its owner only.

    Raises:
        SetupError: the file cannot be written.
    """
    try:
        with open(os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+", encoding="ascii") as keys:
            text = keys.read()
            keys.write(f"{line}\n" if text.endswith("\n") or not text else f"\n{line}\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "not ASCII") or "it is not a regular file"
        raise SetupError(f"Cannot write the API key file {file}: {reason}.") from None


class ApiKeys:
    """The keys that grant access."""

    def __init__(self, lines: Iterable[str]) -> None:
        """Parses the lines of a key file.

        Raises:
            SetupError: a line is invalid, or there is no key.
        """
        self.entries: list[tuple[str, bytes]] = []
        """Owners and hashes of the keys."""
        for number, line in enumerate(lines, 1):
            text = line.partition("#")[0].strip()
            if not text:
                continue
            if not (match := LINE.fullmatch(text)):
                raise SetupError(f"Line {number} of the API key file is invalid. Expected a name and a SHA-256 hash.")
            self.entries.append((match[1], bytes.fromhex(match[2])))
        if not self.entries:
            raise SetupError("The API key file has no keys. Create one with: swiftlet key NAME.")

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Reads a key file.

        Raises:
            SetupError: the file cannot be read or is invalid.
        """
        try:
            check_regular(path)
            lines = path.read_text("ascii").splitlines()
            is_world_readable = path.stat().st_mode & stat.S_IROTH
        except OSError as error:
            raise SetupError(f"Cannot read the API key file {path}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise SetupError(f"The API key file {path} is not plain ASCII text.") from None
        if is_world_readable:
            log.warning("Every user of this machine can read the API key file %s.", path)
        return cls(lines)

    def replace(self, keys: ApiKeys) -> None:
        """Replaces the keys by the keys of another file."""
        self.entries = keys.entries

    def owner(self, key: str) -> str | None:
        """Returns the owner of a key; None for an unknown key. Takes the same time for all keys of one length."""
        digest, owner = _digest(key), None
        for name, known in self.entries:
            if hmac.compare_digest(known, digest):
                owner = name
        return owner


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
