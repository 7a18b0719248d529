"""Addresses of a connection, and the time that its bytes waited in the kernel."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final

LAST_DATA_RECEIVED: Final = 52
"""The offset in Linux's `struct tcp_info` of the milliseconds since the last data arrived."""

Address = tuple[str, int]


def server_address(transport: asyncio.BaseTransport) -> Address | None:
    """Returns the server's host and port; None for a transport without a socket."""
    connected = transport.get_extra_info("socket")
    return None if connected is None else _host_and_port(connected.getsockname())


def client_address(transport: asyncio.BaseTransport) -> Address | None:
    """Returns the client's host and port; None for a transport without a socket, or if the client has gone."""
    connected = transport.get_extra_info("socket")
    try:
        return None if connected is None else _host_and_port(connected.getpeername())
    except OSError:
        return None


def kernel_wait_s(connected: socket.socket | None) -> float:
    """Returns how long the latest bytes waited in the kernel for the event loop, in seconds. Only Linux knows it."""
    if connected is None or sys.platform != "linux":
        return 0.0
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED + 4)
    return int.from_bytes(info[LAST_DATA_RECEIVED:], sys.byteorder) / 1000


def _host_and_port(address: Any) -> Address | None:
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
