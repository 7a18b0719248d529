"""Accepts connections, and stops accepting them without losing one.

uvicorn leaves this to uvloop, which loses connections in two cases. If the process has no file descriptor left, libuv
accepts waiting connections and closes them; this listener leaves them in the kernel's queue. Closing a listening socket
resets the connections in that queue; this listener first stops new ones, then accepts those in the queue.
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
from errno import EADDRINUSE
from typing import Final, Protocol, runtime_checkable

from swiftlet_serve.errors import SetupError

log = logging.getLogger(__name__)

BACKLOG: Final = 2048
MAX_ACCEPTS: Final = 64  # per iteration of the event loop
BUSY_INTERVAL_S: Final = 0.005  # between two connections while the event loop is busy
RETRY_S: Final = 0.1  # until the next attempt when no file descriptor is left
HANDSHAKE_S: Final = 0.2  # a round trip, for TCP handshakes in progress when the listener closes
TLS_HANDSHAKE_S: Final = 5.0

SO_ATTACH_FILTER: Final = 26  # socket(7); Python's socket module has no name for it
DROP_SYN: Final = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of the TCP header that holds the flags
        (0x54, 0, 0, 0x12),  # keep SYN and ACK
        (0x15, 0, 1, 0x02),  # if SYN alone is set, a client opens a connection:
        (0x06, 0, 0, 0),  # drop the packet
        (0x06, 0, 0, 0xFFFFFFFF),  # accept all others
    )
)
"""A classic BPF program for a listening socket: drops new TCP handshakes and lets those in progress finish."""


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Returns a bound socket that does not listen yet: the kernel refuses clients until `Listener.listen`.

    Args:
        host: a name or an address of this machine.
        port: 0 lets the system choose.
        shared: lets other processes bind the same address (SO_REUSEPORT).

    Raises:
        SetupError: the address is in use or not available.
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
        raise _listen_error(host, port, error) from None
    bound.setblocking(False)
    return bound


def _listen_error(host: str, port: int, error: OSError) -> SetupError:
    step = " Stop what listens there, or choose another port; 0 is a free one." * (error.errno == EADDRINUSE)
    return SetupError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.{step}")


@runtime_checkable
class Handshaking(Protocol):
    """A protocol that counts its connection from the accept on, and not only once the TLS handshake is complete."""

    def begin_handshake(self, accepted: socket.socket, abort: Callable[[], object]) -> bool:
        """Notes that a handshake begins, which `abort` ends. Returns whether the connection is accepted."""
        ...

    def end_handshake(self) -> None:
        """Notes that the handshake has ended, with or without success."""


class Listener:
    """Accepts the connections of a bound socket and creates a protocol for each."""

    def __init__(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._socket = bound
        self._starting: set[asyncio.Task[None]] = set()
        self._is_out_of_files = False
        self._is_open = False

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def listen(self) -> None:
        """Lets the kernel accept connections.

        Raises:
            SetupError: another process has listened on this address since it was bound.
        """
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            raise _listen_error(*self.address, error) from None

    def open(self, protocol: Callable[[], asyncio.Protocol], is_busy: Callable[[], bool] = lambda: False) -> None:
        """Accepts connections on the running event loop, which `close` must be called on too.

        While `is_busy` returns true, the listener accepts one connection per `BUSY_INTERVAL_S`. The others wait in the
        kernel at no cost.
        """
        self._protocol = protocol
        self._is_busy = is_busy
        self._is_open = True
        self._resume()

    @property
    def is_open(self) -> bool:
        """Whether the listener accepts connections."""
        return self._is_open

    def pause(self) -> None:
        """Leaves the connections to other processes that accept from the same socket."""
        self._is_open = False
        self._pause()

    def abandon(self) -> None:
        """Closes a listener that accepts no connections. Those that wait stay for other processes."""
        self._socket.close()

    async def close(self) -> None:
        """Stops new connections. Returns once every accepted connection has its protocol.

        The kernel refuses later clients. They have sent nothing yet, so they can safely connect elsewhere.
        """
        try:
            if _drop_new_handshakes(self._socket):
                await asyncio.sleep(HANDSHAKE_S)
            self._pause()
            while not self._accept():
                await asyncio.sleep(RETRY_S if self._is_out_of_files else 0)
        finally:
            self._pause()
            self._socket.close()
        await asyncio.gather(*self._starting)

    def _resume(self) -> None:
        if self._is_open and self._socket.fileno() >= 0:
            asyncio.get_running_loop().add_reader(self._socket, self._on_readable)

    def _pause(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)

    def _on_readable(self) -> None:
        is_busy = self._is_busy()
        self._accept(1 if is_busy else MAX_ACCEPTS)
        if self._is_out_of_files or is_busy:  # the socket stays readable, and the loop would call again at once
            self._pause()
            delay_s = RETRY_S if self._is_out_of_files else BUSY_INTERVAL_S
            asyncio.get_running_loop().call_later(delay_s, self._resume)

    def _accept(self, limit: int = MAX_ACCEPTS) -> bool:
        """Accepts at most `limit` waiting connections. Returns whether all are accepted."""
        for _ in range(limit):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return True
            except ConnectionError:  # the client has gone
                continue
            except OSError as error:
                if not self._is_out_of_files:
                    log.warning("Cannot accept connections: %s. They wait in the kernel.", error.strerror)
                self._is_out_of_files = True
                return False
            self._is_out_of_files = False
            starting = asyncio.get_running_loop().create_task(self._start(connection))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)
        return False

    async def _start(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        protocol = self._protocol()
        handshaking = protocol if self.tls is not None and isinstance(protocol, Handshaking) else None
        if handshaking is not None and not handshaking.begin_handshake(connection, lambda: task and task.cancel()):
            connection.close()
            return
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self.tls,
                ssl_handshake_timeout=None if self.tls is None else TLS_HANDSHAKE_S,
            )
        except (OSError, asyncio.CancelledError):  # the client has gone, does not speak TLS, or made place for another
            connection.close()
        finally:
            if handshaking is not None:
                handshaking.end_handshake()


def _drop_new_handshakes(listening: socket.socket) -> bool:
    """Makes the kernel drop new TCP handshakes. Returns whether it does; only Linux can."""
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(DROP_SYN, len(DROP_SYN))
    descriptor = struct.pack("HL", len(DROP_SYN) // 8, ctypes.addressof(program))
    try:
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, descriptor)
    except OSError:  # a sandbox may forbid it
        return False
    return True
