"""What a connection may bring, how long it may take, and how many there may be."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import Final

from swiftlet_serve.service.http.proxies import Network

MOST_CONNECTIONS: Final = 4096


def capacity() -> int:
    """Connections that one server holds: half of the files this process may open, the rest being for all else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MOST_CONNECTIONS, files // 2))


@dataclass(frozen=True)
class Limits:
    """What a connection may bring, and how long it may take. Every time is absolute: no byte extends it."""

    head_bytes: int = 16_384
    headers: int = 64
    target_bytes: int = 8_192
    head_s: float = 5.0  # from a request's first byte to the end of its head
    receipt_s: float = 10.0  # from its first byte to its last; and from a connection's begin to its first byte
    write_s: float = 10.0  # until a client reads what it asked for
    idle_s: float = 75.0  # between requests: longer than balancers keep theirs (60 s), or they would use a closed one
    linger_s: float = 1.0  # for a client to read an error while it still sends
    connections: int = field(default_factory=capacity)
    proxies: tuple[Network, ...] = ()  # addresses that bring the connections of many clients

    @property
    def near(self) -> int:
        """Connections from which on an address that has many gets no more."""
        return max(1, self.connections * 3 // 4)

    @property
    def many(self) -> int:
        """Of one address."""
        return max(1, self.connections // 2)

    @property
    def shortest_s(self) -> float:
        return min(self.head_s, self.receipt_s, self.write_s, self.idle_s)
