"""A port of the server: a listener, a gate and the connections between them."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from typing import Final

from swiftlet_serve.http.connections.connection import Connection
from swiftlet_serve.http.connections.connection_table import ConnectionTable
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.connections.listener import Listener
from swiftlet_serve.http.gate.gate import Gate
from swiftlet_serve.machine import memory
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.snapshot import Snapshot

UNUSED_S: Final = 1.0  # for a new connection to send its request while the port closes
CANCEL_S: Final = 0.3  # for cancelled requests to respond
RELEASE_EVERY_S: Final = 10.0  # at most: it takes up to a tenth of a second for thousands of connections
POLL_S: Final = 0.02  # between two looks at the open connections


class Port:
    """Serves the routes of a gate on one address."""

    def __init__(self, gate: Gate, listener: Listener, settings: Settings) -> None:
        self._listener = listener
        self._adopted: list[Listener] = []  # of other processes
        self._next_release = 0.0  # of memory
        self._table = ConnectionTable(gate, ConnectionLimits(proxies=settings.trusted_proxies))

    @property
    def url(self) -> str:
        host, port = self._listener.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared with, not bound to
        scheme = "https" if self._listener.tls else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._table.connections)

    async def extend(self, snapshot: Snapshot) -> Snapshot:
        """Adds the open connections to a snapshot of this process."""
        return replace(snapshot, connections=self.connections)

    def listen(self) -> None:
        """Lets clients connect. The connections wait in the kernel until `open`.

        Raises:
            SetupError: another process listens on the address.
        """
        self._listener.listen()

    def open(self) -> None:
        """Serves connections on the running event loop."""
        self._tick()
        self._accept(self._listener)

    async def serve(self) -> None:
        """Lets clients connect, and serves them.

        Raises:
            SetupError: as `listen`.
        """
        self.listen()
        self.open()

    def leave(self) -> None:
        """Has no effect: the responses tell the clients that the server leaves."""

    def reload(self) -> None:
        """Has no effect: connections use the keys and the certificate of this process."""

    def adopt(self, listener: Listener) -> None:
        """Serves the connections of a listener whose own process is lost, too."""
        if listener not in self._adopted:
            self._adopted.append(listener)
            self._accept(listener)

    def disown(self, listener: Listener) -> None:
        """Leaves a listener to its own process again. The connections that it has accepted stay."""
        if listener in self._adopted:
            self._adopted.remove(listener)
            listener.pause()

    async def close(self) -> None:
        """Stops accepting connections. Returns when every request on an open connection is answered."""
        await asyncio.gather(*(listener.close() for listener in (self._listener, *self._adopted)))
        closed = time.monotonic()
        while self._table.connections:
            unused_too = time.monotonic() - closed > UNUSED_S
            for connection in list(self._table.connections):
                if connection.is_idle(unused_too=unused_too):
                    connection.shutdown()
            await asyncio.sleep(POLL_S)

    async def abort(self) -> None:
        """Cancels the requests in progress, which respond with 503, and closes all connections."""
        tasks = self._table.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_S)
        for connection in list(self._table.connections):
            connection.end(at_once=False)
        await asyncio.sleep(POLL_S)
        for connection in list(self._table.connections):
            connection.end(at_once=True)

    def _accept(self, listener: Listener) -> None:
        listener.open(partial(Connection, self._table), self._table.read_scheduler.has_backlog)

    def _tick(self) -> None:
        """Updates the date and, after many connections, returns memory to the system. The allocator would keep it."""
        self._table.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        loop = asyncio.get_running_loop()
        if loop.time() >= self._next_release and self._table.has_fallen():
            memory.release_free_memory()
            self._next_release = loop.time() + RELEASE_EVERY_S
        loop.call_later(1, self._tick)


class AdminThread(threading.Thread):
    """Serves the admin port on a separate thread and event loop. It responds under any load."""

    def __init__(self, port: Port) -> None:
        super().__init__(name="admin", daemon=True)
        self.port = port
        self._opened = threading.Event()

    def start(self) -> None:
        """Returns once the port is open.

        Raises:
            SetupError: another process listens on the address.
        """
        self.port.listen()
        super().start()
        self._opened.wait()

    def run(self) -> None:
        asyncio.run(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.join(CANCEL_S)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self.port.open()
        self._opened.set()
        await self._stopped.wait()
