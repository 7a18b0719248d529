"""The state of a model's version in one server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swiftlet_serve.inference.pipeline import Pipeline

State = Literal["unloaded", "loading", "ready", "failed"]


@dataclass(eq=False)
class Version:
    """A version of a model that this server serves, or has tried to."""

    name: str
    number: int
    task: str = ""  # empty until the manifest is read
    size: int = 0  # bytes of its files
    state: State = "unloaded"
    reason: str = ""  # why it failed
    pipeline: Pipeline | None = None
    path: Path | None = None  # of the local copy
    failures: int = 0  # in a row
    retry_at: float = 0.0  # no request loads it again before this time

    def __str__(self) -> str:
        return f"{self.name} {self.number}"
