"""The coordinator, with fronts that are no processes."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from swiftlet_serve.errors import SetupError
from swiftlet_serve.fronts.coordinator import Coordinator
from swiftlet_serve.fronts.stats_messages import FrontReport
from swiftlet_serve.telemetry.request_stats import RequestStats
from tests.support.apps import make_runtime


class LostFront:
    """A front that is lost in the iteration of the event loop in which it becomes ready."""

    pid, exit_status = 0, 1

    def __init__(self, index: int) -> None:
        self.index, self.reported_at = index, time.monotonic()
        self.report = FrontReport(RequestStats(), 0, 0.0)
        self.report.stats.refused["overloaded"] += 3
        self.ready: asyncio.Future[str] | None = None

    async def connect(self, runtime, models, on_lost, on_snapshot, on_sent) -> None:
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        loop.call_soon(self.ready.set_result, "http://127.0.0.1:1")
        loop.call_soon(on_lost, self)

    def send(self, message: bytes) -> None: ...
    def kill(self) -> None: ...
    def reap(self) -> None: ...
    async def ask_report(self, timeout_s: float) -> None: ...


async def test_front_that_is_lost_as_it_becomes_ready_counts_once(artifact_dir, monkeypatch):
    runtime = make_runtime(artifact_dir)
    with socket.socket() as listening:
        coordinator = Coordinator(runtime, [listening])
        monkeypatch.setattr(coordinator, "_spawn", LostFront)
        with pytest.raises(SetupError, match="A front process ended before it was ready"):
            await coordinator._start(0)
    snapshot = await runtime.snapshot()
    assert (snapshot.stats.refused.total(), snapshot.fronts) == (3, 0)
