"""Takes connections from the kernel, and stops doing so without losing one.

uvicorn leaves this to uvloop, which falls short in two places. Where the process has no file descriptor left, libuv
takes what waits and hangs up on it; here it stays in the kernel's queue until there is one. And a listening socket
that is closed resets every connection that the kernel has accepted and nobody has taken yet; here those are taken
first, while new ones are not begun.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import Final

from swiftlet_serve.service.errors import SetupError

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
BURST: Final = 64  # connections that are taken before the event loop turns to others
BEHIND_S: Final = 0.005  # between two connections that are taken while the event loop is behind
RETRY_S: Final = 0.1  # until the next attempt where no file descriptor is left
HANDSHAKE_S: Final = 0.2  # for connections that have begun when the listener closes: a round trip
TLS_HANDSHAKE_S: Final = 5.0

SO_ATTACH_FILTER: Final = 26  # socket(7); the module socket has no name for it
NO_SYN: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of the TCP header that holds the flags
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # SYN alone, which begins a connection?
        (0x06, 0, 0, 0),  # then the packet is dropped
        (0x06, 0, 0, 0xFFFFFFFF),  # else it is let through
    )
)
"""Classic BPF for a listening socket: begins no connection, and finishes those begun."""


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """A socket that has its address, but does not listen yet: clients are refused until `Listener.listen`.

    `shared` lets other processes that say so too have the same address (SO_REUSEPORT).

    Raises:
        SetupError: the address cannot be had.
    """
    try:
        ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        raise _cannot(host, port, error) from None
    bound.setblocking(False)
    return bound


def _cannot(host: str, port: int, error: OSError) -> SetupError:
    return SetupError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.")


class Listener:
    """A bound socket whose connections are handed to protocols."""

    def __init__(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._socket = bound
        self._beginning: set[asyncio.Task[None]] = set()
        self._starved = False  # of file descriptors

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def listen(self) -> None:
        """Lets the kernel accept connections.

        Raises:
            SetupError: somebody else has begun to listen on this address since it was bound.
        """
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            raise _cannot(*self.address, error) from None

    def open(self, protocol: Callable[[], asyncio.Protocol], behind: Callable[[], bool] = lambda: False) -> None:
        """Takes connections on the running event loop, from which `close` has to be called too.

        While the loop is `behind` with those it has, the others wait in the kernel, which costs nothing: only one in a
        while is taken.
        """
        self._protocol = protocol
        self._behind = behind
        self._resume()

    async def close(self) -> None:
        """Begins no connection from now on, and returns once all that were begun are with their protocols.

        Clients who come later are refused by the kernel, which every client may take for an invitation to go elsewhere:
        they have sent nothing yet.
        """
        try:
            if _begin_no_more(self._socket):
                await asyncio.sleep(HANDSHAKE_S)
            self._pause()
            while not self._accept():
                await asyncio.sleep(RETRY_S if self._starved else 0)
        finally:
            self._pause()
            self._socket.close()
        await asyncio.gather(*self._beginning)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket, self._take)

    def _pause(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)

    def _take(self) -> None:
        """Called when connections wait."""
        behind = self._behind()
        self._accept(1 if behind else BURST)
        if self._starved or behind:  # they keep waiting, so the loop would call again at once
            self._pause()
            asyncio.get_running_loop().call_later(RETRY_S if self._starved else BEHIND_S, self._resume)

    def _accept(self, most: int = BURST) -> bool:
        """Takes some of what waits; says whether that was all."""
        for _ in range(most):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return True
            except ConnectionError:  # the client has gone already
                continue
            except OSError as error:
                if not self._starved:
                    log.warning("No connection can be taken: %s. What waits is kept.", error.strerror)
                self._starved = True
                return False
            self._starved = False
            beginning = asyncio.get_running_loop().create_task(self._begin(connection))
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)
        return False

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self.tls,
                ssl_handshake_timeout=None if self.tls is None else TLS_HANDSHAKE_S,
            )
        except OSError:  # it has gone, or it does not speak TLS
            connection.close()


def _begin_no_more(listening: socket.socket) -> bool:
    """Has the kernel drop what would begin a connection; says whether it does. Only Linux can."""
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(NO_SYN, len(NO_SYN))
    descriptor = struct.pack("HL", len(NO_SYN) // 8, ctypes.addressof(program))
    try:
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, descriptor)
    except OSError:  # a sandbox may forbid it
        return False
    return True
