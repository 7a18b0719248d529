"""The runtime of a front: its pipelines encode and decode, and the coordinator admits and runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from swiftlet_serve.errors import draining, engine_unavailable
from swiftlet_serve.fronts import messages, stats_messages
from swiftlet_serve.fronts.channel import Channel
from swiftlet_serve.fronts.load_page import LoadReader
from swiftlet_serve.fronts.messages import Kind
from swiftlet_serve.fronts.remote_scheduling import (
    CoordinatorRequests,
    RemoteAdmission,
    RemoteRateLimiter,
    RemoteScheduler,
)
from swiftlet_serve.fronts.stats_messages import FrontReport
from swiftlet_serve.inference.catalog import DEFAULT, Catalog, ServedVersions
from swiftlet_serve.inference.loading import ServedModel
from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.inference.runtime import Runtime, raise_missing
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.event_loop_lag import EventLoopLag
from swiftlet_serve.telemetry.request_stats import MAX_RECENT, RequestStats
from swiftlet_serve.telemetry.snapshot import Snapshot
from swiftlet_serve.types import Cost

REPORT_S: Final = 1.0  # between two reports of statistics: a front that is killed loses those since the last one

Order = Callable[[Kind, int], None]
"""Carries out an order of the coordinator: its kind, and a number that it may have."""


class FrontRuntime(Runtime):
    """The pipelines of one front."""

    def __init__(
        self, settings: Settings, served: Sequence[ServedModel], costs: Mapping[str, Cost], load: LoadReader
    ) -> None:
        """Creates a pipeline for each model. The coordinator serves the same models, for all of the front's life.

        Args:
            settings: the settings of the server.
            served: the models, in the order of the coordinator's.
            costs: the costs of their engines by their names, in the same order.
            load: reads the coordinator's load.
        """
        self.settings = settings
        self.leaving = False
        self.stats = RequestStats({model.manifest.name: model.manifest.task for model in served})
        is_limited = any((settings.client_rate_limit, settings.client_token_rate_limit))
        self.rate_limiter = limiter = RemoteRateLimiter() if is_limited else None
        self.requests = CoordinatorRequests(self._send, self.stats, limiter)
        charge = None if limiter is None else self.requests.charge
        admission = RemoteAdmission(costs, load.read, charge, settings.max_queued_tokens)
        self.admission = admission
        self.catalog = Catalog()
        self.wait_for_model = raise_missing
        self.repository_state = lambda: None
        self.count_connections = lambda: 0
        self.on_order: Order = _ignore
        self._load = load
        self._recent = MAX_RECENT // settings.fronts  # answers in a report, so that those of all fronts are few
        self._titles: dict[str, str] = {}  # of the engines by model
        self._snapshots: dict[int, asyncio.Future[Snapshot]] = {}  # that were asked for
        self._numbers = itertools.count(1)
        self._channel: Channel | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._lag = EventLoopLag()
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        fixed: dict[str, ServedVersions] = {}
        for model in served:
            name = model.manifest.name
            scheduler = RemoteScheduler(name, list(costs).index(name), self.requests, admission, self.stats)
            pipeline = Pipeline(model, scheduler, self._threads, settings.max_queued_tokens)
            fixed[name] = ServedVersions(model.manifest.task, {1: pipeline}, {DEFAULT: 1})
        self.catalog.update(fixed)

    async def connect(self, end: socket.socket) -> None:
        """Connects to the coordinator. The process ends when the coordinator is gone."""
        self._channel = await Channel.open(end, self._receive, lambda: os._exit(1))

    async def open(self) -> None:
        """Starts to report statistics, on the event loop that answers requests. Must be connected."""
        self.loop = asyncio.get_running_loop()
        self._lag.start(self.loop)
        self._report_regularly()

    def engine_title(self, pipeline: Pipeline) -> str:
        return self._titles.get(pipeline.key, pipeline.model.engine_name)

    def check_ready(self) -> None:
        if self.leaving or self.draining:
            raise draining()
        if not self._load.read().ready:
            raise engine_unavailable()

    async def snapshot(self) -> Snapshot:
        """Returns the state of the whole server, from the coordinator."""
        number = next(self._numbers)
        found: asyncio.Future[Snapshot] = self.loop.create_future()
        self._snapshots[number] = found
        self._send(messages.pack(Kind.SNAPSHOT, number))
        try:
            return await found
        finally:
            del self._snapshots[number]

    async def close(self) -> None:
        """Admits no more requests, and reports a last time."""
        self._lag.stop()
        self.admission.close()
        if self._timer is not None:
            self._timer.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._report(0)

    def disconnect(self) -> None:
        """Sends what is still to be sent, and closes the connection."""
        if self._channel is not None:
            self._channel.close()

    def tell(self, kind: Kind, value: object = None) -> None:
        """Sends a message to the coordinator."""
        self._send(messages.pack_json(kind, value))

    def _send(self, message: bytes) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _receive(self, kind: Kind, number: int, body: memoryview) -> None:
        if kind is Kind.RESULT:
            self.requests.on_result(number, messages.unpack_result(body))
        elif kind is Kind.ADMITTED:
            self.requests.on_admitted(number)
        elif kind is Kind.REFUSED:
            self.requests.on_refused(number, messages.unpack_error(body))
        elif kind is Kind.STATS:
            self._report(number)
        elif kind is Kind.SNAPSHOT:
            asked = self._snapshots.get(number)
            if asked is not None and not asked.done():
                asked.set_result(stats_messages.load_snapshot(messages.unpack_json(body)))
        elif kind is Kind.TITLES:
            self._titles = messages.unpack_json(body)
        else:
            self.on_order(kind, number)

    def _report_regularly(self) -> None:
        self._report(0)
        self._timer = self.loop.call_later(REPORT_S, self._report_regularly)

    def _report(self, number: int) -> None:
        report = FrontReport(self.stats, self.count_connections(), self._lag.largest_s)
        self._send(messages.pack_json(Kind.STATS, stats_messages.dump_report(report, self._recent), number))


def _ignore(kind: Kind, number: int) -> None:
    """Carries out no order: the front is not complete yet."""
