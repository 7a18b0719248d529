"""The log of requests that is replayed: lines of JSON with `path` and `body`, and what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, ValidationError

from swiftlet_serve.errors import SetupError

MAX_LINE_BYTES: Final = 1 << 24
EXPECTED: Final = 'Expected JSON such as {"path": "/v1/decisions", "body": {...}}, where "answer" may follow.'


class Entry(BaseModel):
    """A request. Other fields of its line, such as a time, are ignored."""

    path: Annotated[str, Field(pattern=r"^/[!-~]*$", max_length=2048)]  # printable ASCII, which ends no header
    body: dict[str, Any]
    answer: Any = None
    receipt: str = ""  # of the answer, if it has one
    line: int = 0  # of the log, from 1


def entries(log: Path) -> Iterator[Entry]:
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
                entry = Entry.model_validate_json(line)
            except ValidationError:  # whose text quotes the line
                raise SetupError(f"{log.name}, line {number}: it is not a request. {EXPECTED}") from None
            entry.line = number
            yield entry
