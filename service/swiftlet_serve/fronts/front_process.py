"""The coordinator's side of one front process: starts it, receives its messages and knows its statistics."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from swiftlet_serve.errors import SetupError
from swiftlet_serve.fronts import messages, stats_messages
from swiftlet_serve.fronts.channel import Channel
from swiftlet_serve.fronts.front_config import FrontConfig
from swiftlet_serve.fronts.front_requests import FrontRequests
from swiftlet_serve.fronts.messages import Kind
from swiftlet_serve.fronts.stats_messages import FrontReport
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.machine.child_process import ChildProcess
from swiftlet_serve.telemetry.request_stats import RequestStats

MODULE: Final = "swiftlet_serve.fronts.front_main"
ENDED: Final = "A front process ended before it was ready. See its log messages."


class FrontProcess(ChildProcess):
    """A front process. Its life: spawned, connected, ready, and in the end lost or closed."""

    def __init__(self, config: FrontConfig, end: socket.socket) -> None:
        """Spawns the process. Only the descriptor of its channel is closed here.

        Args:
            config: the configuration.
            end: this side of its channel.

        Raises:
            SetupError: the system cannot start the process.
        """
        self.index = config.index
        self.report = FrontReport(RequestStats(), 0, 0.0)  # the latest
        self.reported_at = time.monotonic()
        self.silent_ticks = 0  # of the coordinator since the last message
        self.ready: asyncio.Future[str] | None = None  # the URL, once the front listens
        self._end = end
        self._channel: Channel | None = None
        self._asked: asyncio.Event | None = None  # set once a report that was asked for is there
        descriptors = [config.channel_fd, config.load_fd, *config.listening_fds]
        super().__init__("front", MODULE, asdict(config), descriptors, {})

    async def connect(
        self,
        runtime: LocalRuntime,
        models: list[str],
        on_lost: Callable[[FrontProcess], None],
        on_snapshot: Callable[[FrontProcess, int], None],
        on_sent: Callable[[], None],
    ) -> None:
        """Serves the requests of the front, on the running event loop.

        Args:
            runtime: the coordinator's runtime.
            models: the keys of the models in the dispatcher, in the front's order.
            on_lost: called once, when the front has closed the connection or has sent an invalid message.
            on_snapshot: called when the front asks for the state of the server, with the number of its request.
            on_sent: called after each message about a request.
        """
        self.ready = asyncio.get_running_loop().create_future()
        self._on_lost, self._on_snapshot = on_lost, on_snapshot

        def send(message: bytes) -> None:
            self.send(message)
            on_sent()

        self._requests = FrontRequests(runtime, models, send)
        self._channel = await Channel.open(self._end, self._receive, self._lose)

    def send(self, message: bytes) -> None:
        """Sends a message to the front."""
        if self._channel is not None:
            self._channel.send(message)

    def order(self, kind: Kind, number: int = 0) -> None:
        """Sends an order to the front."""
        self.send(messages.pack(kind, number))

    async def ask_report(self, timeout_s: float) -> None:
        """Asks for a new report and waits for it, for a limited time."""
        self._asked = asked = self._asked or asyncio.Event()
        self.order(Kind.STATS, 1)
        with suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), timeout_s)

    def kill(self) -> None:
        super().kill()
        self._close()

    def _receive(self, kind: Kind, number: int, body: memoryview) -> None:
        self.silent_ticks = 0
        if kind is Kind.SUBMIT:
            self._requests.submit(number, body)
        elif kind is Kind.PART:
            self._requests.add_part(number, body)
        elif kind is Kind.CANCEL:
            self._requests.cancel(number)
        elif kind is Kind.CHARGE:
            self._requests.charge(number, body)
        elif kind is Kind.STATS:
            self.report = stats_messages.load_report(messages.unpack_json(body))
            self.reported_at = time.monotonic()
            if number and self._asked is not None:
                self._asked.set()
                self._asked = None
        elif kind is Kind.SNAPSHOT:
            self._on_snapshot(self, number)
        elif kind is Kind.READY and self.ready is not None:
            if not self.ready.done():
                self.ready.set_result(str(messages.unpack_json(body)))
        else:
            raise ValueError("A front does not send this kind of message.")

    def _lose(self) -> None:
        self._close()
        self._on_lost(self)

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._requests.close()
        else:
            self._end.close()
        if self._asked is not None:
            self._asked.set()
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(SetupError(ENDED))
