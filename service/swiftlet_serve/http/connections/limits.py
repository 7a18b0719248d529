"""The limits of a connection: sizes, timeouts and how many connections a server holds."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from swiftlet_serve.http.gate.proxies import Network

MAX_CONNECTIONS: Final = 4096


def default_max_connections() -> int:
    """Returns how many connections a server holds: half of the process's file descriptors, at most 4096."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits of one server's connections. Receiving more bytes never extends a timeout."""

    head_bytes: int = 16_384  # request line and headers
    headers: int = 64
    target_bytes: int = 8_192
    head_timeout_s: float = 5.0  # from the first byte of a request to the end of its headers
    request_timeout_s: float = 10.0  # from the first byte of a request, or from the connect, to the last byte
    write_timeout_s: float = 10.0  # until the client reads the response
    idle_timeout_s: float = 75.0  # keep-alive; longer than the usual 60 s of load balancers, which would hit a close
    linger_timeout_s: float = 1.0  # until the client closes after an error response
    connections: int = field(default_factory=default_max_connections)
    proxies: tuple[Network, ...] = ()  # addresses that may use all connections

    @cached_property
    def crowded_connections(self) -> int:
        """The number of open connections above which the limit per address applies."""
        return max(1, self.connections * 3 // 4)

    @cached_property
    def connections_per_address(self) -> int:
        """The number of connections that one address may hold on a crowded server."""
        return max(1, self.connections // 2)

    @cached_property
    def shortest_timeout_s(self) -> float:
        return min(self.head_timeout_s, self.request_timeout_s, self.write_timeout_s, self.idle_timeout_s)
