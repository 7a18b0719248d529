"""The address of a client, and the time that its bytes waited in the kernel."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Final

LAST_DATA_RECEIVED: Final = 52
"""The offset in Linux's `struct tcp_info` of the milliseconds since the last data arrived."""


def client_address(transport: asyncio.BaseTransport) -> str:
    """Returns the client's address; empty for a transport without an internet socket, or if the client has gone."""
    connected = transport.get_extra_info("socket")
    try:
        peer = None if connected is None else connected.getpeername()
    except OSError:
        return ""
    return str(peer[0]) if isinstance(peer, tuple) else ""


def kernel_wait_s(connected: socket.socket | None) -> float:
    """Returns how long the latest bytes waited in the kernel for the event loop, in seconds. Only Linux knows it."""
    if connected is None or sys.platform != "linux":
        return 0.0
    info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_DATA_RECEIVED + 4)
    return int.from_bytes(info[LAST_DATA_RECEIVED:], sys.byteorder) / 1000
