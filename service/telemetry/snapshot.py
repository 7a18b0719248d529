"""The state of a server at one moment, as /metrics and /status report it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from swiftlet_serve.service.telemetry.request_stats import RequestStats


class ModelInfo(NamedTuple):
    """The labels of one served model."""

    name: str
    task: str
    architecture: str
    precision: str
    engine: str
    version: str


class QueueState(NamedTuple):
    """The sequences that wait for a core, and the calls that run."""

    rows: int
    tokens: int
    age_s: float  # how long the oldest sequence has waited
    wait_s: float  # the least time that a new interactive request would wait
    running: int  # calls
    busy_s: float  # time that all cores together have spent in calls so far


@dataclass(frozen=True)
class Snapshot:
    """The state of a server at one moment."""

    models: Sequence[ModelInfo]
    stats: RequestStats
    queue: QueueState
    cores: int
    ready: bool  # whether an engine works
    restarts: int  # of engines


class SnapshotSource(Protocol):
    """A server that can be asked for a snapshot on its own event loop."""

    loop: asyncio.AbstractEventLoop

    async def snapshot(self) -> Snapshot: ...
