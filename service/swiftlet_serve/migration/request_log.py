"""The log of requests that is replayed, and that a server may write.

Its lines are JSON with `path` and `body`, and what was recorded.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import Base64Bytes, BaseModel, Field, ValidationError, model_validator
from pydantic_core import to_json

from swiftlet_serve.errors import SetupError

MAX_LINE_BYTES: Final = 1 << 24
MAX_LOG_BYTES: Final = 1 << 30
"""The size at which a server adds no more requests to a log."""
OWNER_ONLY: Final = 0o600
EXPECTED: Final = 'Expected JSON such as {"path": "/v1/decisions", "body": {...}}, where "answer" may follow.'


RequestPath = Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=2048)]
"""The path of a request: printable ASCII, which ends no header."""


class Entry(BaseModel):
    """A request. Other fields of its line, such as a time, are ignored."""

    path: RequestPath
    body: dict[str, Any]
    answer: Any = None
    line: int = 0  # of the log, from 1


class Answered(BaseModel):
    """A request with the receipt of its answer, over HTTP or gRPC."""

    path: RequestPath
    body: dict[str, Any] | None = None  # of a request over HTTP
    message: Base64Bytes | None = None  # of a call of gRPC
    receipt: str = ""
    line: int = 0

    @property
    def content(self) -> bytes:
        """What was sent: JSON, or the message."""
        return to_json(self.body) if self.message is None else self.message

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.body is None) == (self.message is None):
            raise ValueError("a request has a body, and a call has a message.")
        return self


Line = TypeVar("Line", Entry, Answered)


def entries(log: Path, kind: type[Line]) -> Iterator[Line]:
    """Yields the requests of a log, one at a time. Blank lines are skipped.

    Raises:
        SetupError: a line has another form, or is longer than `MAX_LINE_BYTES`.
    """
    with log.open("rb") as file:
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise SetupError(f"{log.name}, line {number}: it has more than {MAX_LINE_BYTES} bytes. Leave it out.")
            if line.isspace():
                continue
            try:
                entry = kind.model_validate_json(line)
            except ValidationError:  # whose text quotes the line
                raise SetupError(f"{log.name}, line {number}: it is not a request. {EXPECTED}") from None
            entry.line = number
            yield entry


class LogWriter:
    """Adds requests to a log. Several processes may add to one: each request is written at once."""

    def __init__(self, path: Path) -> None:
        """Opens a log, or creates it for its owner only.

        Raises:
            SetupError: it cannot be opened, is no plain file, or others may read it.
        """
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK  # never waits for a pipe
            self._file = os.open(path, flags, OWNER_ONLY)
        except OSError as error:
            raise SetupError(f"The log {path} cannot be opened: {error.strerror}.") from None
        about = os.fstat(self._file)
        if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077:
            os.close(self._file)
            raise SetupError(f"The log {path} must be a plain file that only its owner may read: chmod 600.")
        self._lock, self._is_open = Lock(), True  # no thread may write to a descriptor that is closed

    def add(self, entry: Entry) -> None:
        """Adds a request with its answer. Has no effect once the log has `MAX_LOG_BYTES`.

        Raises:
            OSError: it cannot be written.
        """
        line = to_json({"path": entry.path, "body": entry.body, "answer": entry.answer}) + b"\n"
        with self._lock:
            if not self._is_open or os.fstat(self._file).st_size >= MAX_LOG_BYTES:
                return
            if (written := os.write(self._file, line)) < len(line):  # the disk is full
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Closes the log."""
        with self._lock:
            if self._is_open:
                self._is_open = False
                os.close(self._file)
