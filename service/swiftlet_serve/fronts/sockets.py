"""The listening sockets of the public port."""

from __future__ import annotations

import socket

from swiftlet_serve.http.connections.listener import bind
from swiftlet_serve.settings import Settings


def bind_public(settings: Settings) -> list[socket.socket]:
    """Binds one socket for each front to the same address. They do not listen yet.

    Raises:
        SetupError: the address is in use or not available.
    """
    if settings.fronts == 1:
        return [bind(settings.host, settings.port, settings.reuse_port)]
    if settings.port and not settings.reuse_port:
        bind(settings.host, settings.port).close()  # fails if another server has the port, which sharing would hide
    first = bind(settings.host, settings.port, shared=True)
    port = first.getsockname()[1]
    return [first, *(bind(settings.host, port, shared=True) for _ in range(settings.fronts - 1))]
