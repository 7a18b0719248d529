"""Entry point of a front process: the HTTP server, over a runtime whose requests the coordinator admits and runs.

The coordinator starts the process, and tells it when to leave. The process ignores SIGINT, SIGTERM and SIGHUP, which
are for the coordinator, and dies with it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from swiftlet_models.artifact import ArtifactError
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import build_info
from swiftlet_serve.errors import SetupError
from swiftlet_serve.fronts.front_config import FrontConfig
from swiftlet_serve.fronts.front_runtime import FrontRuntime
from swiftlet_serve.fronts.load_page import LoadReader
from swiftlet_serve.fronts.messages import Kind
from swiftlet_serve.http.connections.listener import Listener
from swiftlet_serve.http.connections.port import Port
from swiftlet_serve.http.gate.credentials import Credentials
from swiftlet_serve.inference.loading import open_model
from swiftlet_serve.machine import child_process, memory
from swiftlet_serve.machine.watchdog import Watchdog
from swiftlet_serve.migration import live_share
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.logging_setup import QueuedLogHandler
from swiftlet_serve.telemetry.observers import Observers
from swiftlet_serve.types import Cost

log = logging.getLogger(__name__)

CLOSE_S: Final = 2.0


class Front:
    """The life of a front: open, serve, leave."""

    def __init__(self, config: FrontConfig, runtime: FrontRuntime, credentials: Credentials, observers: Observers):
        gate = live_share.create_public_gate(runtime, credentials.keys, observers.all)
        self._runtime = runtime
        self._credentials = credentials
        self._listeners = [
            Listener(socket.socket(fileno=descriptor), credentials.context) for descriptor in config.listening_fds
        ]
        self._port = Port(gate, self._listeners[config.index], runtime.settings)
        self._own = config.index
        self._closing = asyncio.Event()
        self._aborting = asyncio.Event()

    async def run(self, end: socket.socket, watchdog: Watchdog) -> None:
        """Serves until the coordinator says otherwise."""
        watchdog.start()
        await self._runtime.connect(end, self)
        await self._runtime.open()
        memory.tune_garbage_collector()
        self._runtime.tell(Kind.READY, self._port.url)
        await self._closing.wait()
        await self._finish_requests()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._runtime.close(), CLOSE_S)
        self._runtime.disconnect()
        watchdog.stop()

    async def _finish_requests(self) -> None:
        """Closes the port. Cancels the requests in progress if the coordinator will not wait for them any longer."""
        for listener in self._listeners:
            if not listener.is_open:
                listener.abandon()
        closing = asyncio.create_task(self._port.close())
        aborting = asyncio.create_task(self._aborting.wait())
        await asyncio.wait({closing, aborting}, return_when=asyncio.FIRST_COMPLETED)
        aborting.cancel()
        if not closing.done():
            closing.cancel()
            await asyncio.wait({closing})
            await self._port.abort()

    @property
    def connections(self) -> int:
        return self._port.connections

    def run_command(self, kind: Kind, number: int) -> None:
        if kind is Kind.OPEN:
            self._port.open()
        elif kind is Kind.ADOPT:
            self._port.adopt(self._listeners[number])
        elif kind is Kind.DISOWN:
            self._port.disown(self._listeners[number])
        elif kind is Kind.RELOAD:
            self._credentials.reload()
        elif kind is Kind.LEAVE:
            self._runtime.leave()
        elif kind in (Kind.CLOSE, Kind.ABORT):
            self._runtime.leave()
            self._closing.set()
            if kind is Kind.ABORT:
                self._aborting.set()
        else:
            raise ValueError("The coordinator does not send this kind of message.")


def main() -> None:
    """Opens the models, listens and serves until the coordinator is gone or says otherwise."""
    config = FrontConfig(**child_process.begin())
    settings = Settings(**config.settings)
    logs = QueuedLogHandler(settings.log_level.upper(), kind=settings.log_format)
    end = socket.socket(fileno=config.channel_fd)
    status = 0
    try:
        tokenizers: dict[str, Tokenizer] = {}
        paths = map(Path, config.models)
        served = [open_model(path, settings.engine, tokenizers, settings.signer_key) for path in paths]
        costs = {name: Cost(**cost) for name, cost in config.costs.items()}
        credentials = Credentials.read(settings)
        observers = Observers.create(settings.traces_endpoint, build_info.version(), logs=settings.access_log)
        runtime = FrontRuntime(settings, served, costs, LoadReader(config.load_fd), config.heads)

        async def run() -> None:
            await Front(config, runtime, credentials, observers).run(end, Watchdog(lambda: logs.exit(1)))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
        observers.close()
    except (ArtifactError, SetupError) as error:  # the coordinator has opened the same files without an error
        log.error("The front cannot start. %s", error)  # noqa: TRY400  # the message suffices
        status = 1
    logs.exit(status)  # a thread that still encodes a text has no reader


if __name__ == "__main__":
    main()
