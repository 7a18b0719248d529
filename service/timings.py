"""How long each stage of a request took, collected where the work is done and read where the answer leaves.

The stages: `encode`, text to encodings; `queue`, from the submission of an encoding to the start of its batch;
`infer`, the engine's call; `decode`, rows to an answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Stage = Literal["encode", "queue", "infer", "decode"]
Timings = dict[Stage, float]
"""Seconds by stage; where a request has several encodings, of the slowest."""

_current: ContextVar[Timings | None] = ContextVar("timings", default=None)


@contextmanager
def collect() -> Iterator[Timings]:
    """Collects what is recorded inside the block, tasks started from there included."""
    timings: Timings = {}
    token = _current.set(timings)
    try:
        yield timings
    finally:
        _current.reset(token)


@contextmanager
def measure(stage: Stage) -> Iterator[None]:
    """Records how long the block takes."""
    started = time.monotonic()
    try:
        yield
    finally:
        record(stage, time.monotonic() - started)


def record(stage: Stage, seconds: float) -> None:
    """Notes a stage of the request at hand; without one, does nothing."""
    timings = _current.get()
    if timings is not None:
        timings[stage] = max(seconds, timings.get(stage, 0.0))
