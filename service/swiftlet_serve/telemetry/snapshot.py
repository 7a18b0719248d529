"""The state of a server at one moment, for /metrics and /status."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.shadow_stats import ShadowStats


class ModelInfo(NamedTuple):
    """Labels of one served model."""

    name: str
    task: str
    architecture: str
    precision: str
    engine: str
    version: str


class QueueState(NamedTuple):
    """Queued sequences and running batches."""

    sequences: int
    tokens: int
    oldest_age_s: float  # time since the oldest queued sequence was submitted
    wait_s: float  # queueing time of an interactive request that arrives now, behind all that is queued
    running_batches: int
    busy_s: float  # time that batches have run so far, summed over all cores


class VersionState(NamedTuple):
    """A version of a model in the model repository."""

    model: str
    version: int
    state: Literal["unloaded", "loading", "ready", "failed"]
    reason: str  # why it failed
    aliases: Sequence[str]
    share: float  # of the requests that name no version, if they are split


class RepositoryState(NamedTuple):
    """The model repository, and the versions that this server serves or has tried to."""

    reachable: bool  # whether the last look at it succeeded
    loads: Mapping[tuple[str, str], int]  # by model and result: loaded or failed
    bytes: int  # of the models in memory, by the size of their files
    versions: Sequence[VersionState]
    shadows: Mapping[tuple[str, int], ShadowStats]  # by model and version of the candidate


@dataclass(frozen=True)
class Snapshot:
    """State of a server at one moment."""

    models: Sequence[ModelInfo]
    stats: RequestStats
    queue: QueueState
    cores: int
    ready: bool  # whether an engine is available
    restarts: int  # worker processes that were lost and replaced
    kernel_faults: int  # wrong sums that engines found in their own work
    workers: Mapping[str, int]  # the worker processes' ids by their roles
    connections: int  # open connections of clients
    loop_lag_s: float  # the largest delay of the event loop in the last minute
    fronts: int = 0  # front processes that answer requests; 0 if the server has none
    front_restarts: int = 0  # front processes that were lost and replaced
    pid: int | None = None  # the process of the process metrics; None for this process
    repository: RepositoryState | None = None  # None without a model repository


class SnapshotSource(Protocol):
    """A server whose state can be read on its own event loop."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    async def snapshot(self) -> Snapshot: ...
