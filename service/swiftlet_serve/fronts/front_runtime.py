"""The runtime of a front: its pipelines encode and decode, and the coordinator admits and runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

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
from swiftlet_serve.inference.loading import OpenModel
from swiftlet_serve.inference.pipeline import Pipeline, Scheduler
from swiftlet_serve.inference.runtime import Place, Runtime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_stats import MAX_RECENT, RequestStats
from swiftlet_serve.telemetry.snapshot import Snapshot
from swiftlet_serve.types import Cost

REPORT_S: Final = 1.0  # between two reports of statistics: a front that is killed loses those since the last one


class Front(Protocol):
    """The server of a front."""

    @property
    def connections(self) -> int:
        """The number of open connections."""

    def run_command(self, kind: Kind, number: int) -> None:
        """Runs a command of the coordinator. Some kinds of command have a number.

        Raises:
            ValueError, IndexError: the command does not exist.
        """


class FrontRuntime(Runtime):
    """The pipelines of one front."""

    def __init__(
        self,
        settings: Settings,
        served: Sequence[OpenModel],
        costs: Mapping[str, Cost],
        load: LoadReader,
        heads: Mapping[str, int],
    ) -> None:
        """Creates a pipeline for each model. The coordinator serves the same models, for all of the front's life.

        Args:
            settings: the settings of the server.
            served: the models, in the order of the coordinator's numbers.
            costs: the costs of their engines by their names, in the same order.
            load: reads the coordinator's load.
            heads: those of the models, which may share a trunk.
        """
        stats = RequestStats()
        is_limited = any((settings.client_rate_limit, settings.client_token_rate_limit))
        limiter = (
            RemoteRateLimiter(lambda client, requests: self.requests.charge(client, requests)) if is_limited else None
        )
        self.requests = CoordinatorRequests(self._send, stats, limiter)
        self._admission = RemoteAdmission(
            costs, load.read, None if limiter is None else self.requests.charge, settings.max_queued_tokens
        )
        self._models, self._heads = list(costs), heads
        self._load = load
        self._recent = MAX_RECENT // settings.fronts  # answers in a report: all fronts share the limit
        self._titles: dict[str, str] = {}  # of the engines by model
        self._snapshots: dict[int, asyncio.Future[Snapshot]] = {}  # that were asked for
        self._numbers = itertools.count(1)
        self._channel: Channel | None = None
        self._front: Front | None = None
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(settings, served, stats, self._admission, limiter)

    def _place_of(self, name: str) -> Place:
        return Place(name, head=self._heads[name])

    def _make_scheduler(self, name: str, key: str) -> Scheduler:
        return RemoteScheduler(key, self._models.index(name), self.requests, self._admission, self.stats)

    async def connect(self, end: socket.socket, front: Front) -> None:
        """Connects a front to the coordinator. The process ends when the coordinator is gone."""
        self._front = front
        self._channel = await Channel.open(end, self._receive, lambda: os._exit(1))

    async def open(self) -> None:
        """Starts to report statistics, on the event loop that answers requests. Must be connected."""
        await super().open()
        self._report_regularly()

    def engine_title(self, pipeline: Pipeline) -> str:
        return self._titles.get(pipeline.key, pipeline.model.engine_name)

    @property
    def has_engine(self) -> bool:
        return self._load.read().ready

    async def snapshot(self) -> Snapshot:
        """Returns the state of the whole server, from the coordinator."""
        number = next(self._numbers)
        snapshot: asyncio.Future[Snapshot] = self.loop.create_future()
        self._snapshots[number] = snapshot
        self._send(messages.pack(Kind.SNAPSHOT, number))
        try:
            return await snapshot
        finally:
            del self._snapshots[number]

    async def close(self) -> None:
        """Admits no more requests, and reports a last time."""
        await super().close()
        if self._timer is not None:
            self._timer.cancel()
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
        elif kind is Kind.PART:
            self.requests.on_part(number, messages.unpack_rows(body))
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
        elif self._front is not None:
            self._front.run_command(kind, number)

    def _report_regularly(self) -> None:
        self._report(0)
        self._timer = self.loop.call_later(REPORT_S, self._report_regularly)

    def _report(self, number: int) -> None:
        connections = 0 if self._front is None else self._front.connections
        report = FrontReport(self.stats, connections, self._lag.largest_s)
        self._send(messages.pack_json(Kind.STATS, stats_messages.dump_report(report, self._recent), number))
