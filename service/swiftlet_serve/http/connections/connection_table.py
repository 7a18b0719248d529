"""The state that all connections of one port share."""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Final, Protocol

from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http.connections.limits import ConnectionLimits
from swiftlet_serve.http.connections.read_scheduler import Reader, ReadScheduler
from swiftlet_serve.http.gate.gate import Gate

log = logging.getLogger(__name__)

LOG_INTERVAL_S: Final = 10.0
CROWDED_LOG_INTERVAL_S: Final = 60.0
MANY: Final = 256  # connections whose memory is worth a search for free pages


class ManagedConnection(Reader, Protocol):
    """A connection that the table holds."""

    address: str  # as limits count it
    is_proxy: bool  # whether many clients share it

    def is_idle(self, *, unused_too: bool) -> bool: ...

    def shutdown(self) -> None: ...

    def evict(self) -> None: ...

    def end(self, *, at_once: bool) -> None: ...


class Verdict(enum.Enum):
    """The decision about a new connection."""

    ACCEPT = enum.auto()
    REFUSE = enum.auto()  # with an error response
    ABORT = enum.auto()  # without one: so many connections are being refused that responses would exhaust the files


class ConnectionTable:
    """The open connections of one port, their order of eviction, and the objects that they share.

    A full table evicts the connection that has waited longest for its client. A request in progress is never evicted.
    If the table is crowded and one address holds half of it, that address only evicts its own connections.
    """

    def __init__(self, gate: Gate, limits: ConnectionLimits) -> None:
        """Creates the table of a port.

        Args:
            gate: runs the requests.
            limits: the limits of each connection.
        """
        self.gate = gate
        self.limits = limits
        self.read_scheduler = ReadScheduler(on_crowded=self._count_crowded)
        self.default_headers: list[tuple[bytes, bytes]] = []  # of every response
        self.connections: set[ManagedConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # one per request in progress
        self.waiting: OrderedDict[ManagedConnection, None] = OrderedDict()  # for their clients; the longest wait first
        self.per_address: Counter[str] = Counter()
        self._peak = 0  # of the number of connections, since they last fell far
        self._refusals: Counter[str] = Counter()  # by error code, since the last line of log
        self._next_log = -math.inf
        self._crowded = 0  # pages and pipelined requests that waited in a crowd, since the last line of log
        self._next_crowded_log = -math.inf

    def add(self, connection: ManagedConnection) -> Verdict:
        """Adds a new connection and decides whether it is served. May evict another one."""
        self.connections.add(connection)
        self.per_address[connection.address] += 1
        count, limit = len(self.connections), self.limits.connections
        self._peak = max(self._peak, count)
        if self._exceeds_share(connection):
            has_place, max_refused = self._evict(connection.address), limit * 7 // 8
        else:
            has_place, max_refused = count <= limit or self._evict(), limit * 5 // 4
        if has_place:
            return Verdict.ACCEPT
        return Verdict.REFUSE if count <= max_refused else Verdict.ABORT

    def remove(self, connection: ManagedConnection) -> None:
        """Removes a closed connection."""
        self.connections.discard(connection)
        self.waiting.pop(connection, None)
        self.read_scheduler.cancel(connection)
        self.per_address[connection.address] -= 1
        if not self.per_address[connection.address]:
            del self.per_address[connection.address]

    def has_fallen(self) -> bool:
        """Returns whether the number of connections has fallen by `MANY` since its peak. If so, a new peak begins."""
        fallen = self._peak - len(self.connections) >= MANY
        if fallen:
            self._peak = len(self.connections)
        return fallen

    def log_refusal(self, error: SwiftletError, now: float) -> None:
        """Logs how many requests the connections refused, at most every `LOG_INTERVAL_S`."""
        self._refusals[error.code] += 1
        if now >= self._next_log:
            level = logging.INFO if error.status < 500 else logging.WARNING
            counts = ", ".join(f"{code} ({count})" for code, count in sorted(self._refusals.items()))
            log.log(level, "Requests refused before they reached the application: %s", counts)
            self._refusals.clear()
            self._next_log = now + LOG_INTERVAL_S

    def _count_crowded(self, client: Hashable) -> None:
        """Counts a page or pipelined request that waits in a crowd. Logs at most every `CROWDED_LOG_INTERVAL_S`."""
        self.gate.count_crowded()
        self._crowded += 1
        now = time.monotonic()
        if now >= self._next_crowded_log:
            log.warning(
                "Pages and pipelined requests fill their fifth of the event loop, and wait: %d since the last such "
                "line, now one of %s. Requests that run a model go first.",
                self._crowded,
                client if isinstance(client, str) else "a trusted proxy",
            )
            self._crowded = 0
            self._next_crowded_log = now + CROWDED_LOG_INTERVAL_S

    def _exceeds_share(self, connection: ManagedConnection) -> bool:
        is_crowded = len(self.connections) > self.limits.crowded_connections
        exceeds = is_crowded and self.per_address[connection.address] > self.limits.connections_per_address
        return exceeds and not connection.is_proxy

    def _evict(self, address: str | None = None) -> bool:
        """Evicts the connection that has waited longest, of `address` if given. Returns whether there was one."""
        candidates = (connection for connection in self.waiting if address is None or connection.address == address)
        longest = next(candidates, None)
        if longest is None:
            return False
        longest.evict()
        return True
