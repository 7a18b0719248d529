"""Half-open TLS handshakes beside a client that makes a handshake for each request."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import uvloop

from loadtest.http_client import request_bytes
from loadtest.server_process import ServerProcess, resident_kib, serving
from swiftlet_serve.service.loading import locate
from swiftlet_serve.service.percentile import percentile
from tests.support.certificates import make_certificate
from tests.torture.outcome import Outcome, scaled

MODEL: Final = "albert-sst2"
REQUEST: Final = request_bytes("/classify", b'{"inputs": "A warm, funny and clever film."}')
PAUSE_S: Final = 0.02  # between two requests
WAVES: Final = 3
MOST_MIB: Final = 32  # that the server may have kept after the waves


def handshakes(_: Path, scale: float) -> list[Outcome]:
    """Opens connections that never begin their handshakes, and closes them, in waves."""
    count, seconds = scaled(5000, scale, 200), max(2.0, 10 * scale)
    with tempfile.TemporaryDirectory() as directory:
        files = make_certificate(Path(directory))
        options = ["--tls-cert", str(files / "cert.pem"), "--tls-key", str(files / "key.pem"), "--log-level", "error"]
        with serving(locate([MODEL]), "native", *options) as server:
            alone_s, beside_s, failed, grown_kib = uvloop.run(_waves(server, count, seconds))
    shown, kept = f"{1000 * alone_s:.1f} -> {1000 * beside_s:.1f} ms", grown_kib / 1024
    return [
        Outcome("p99 beside half-open handshakes", count, shown, "<= 3 x", beside_s <= max(3 * alone_s, 0.005)),
        Outcome("failures beside half-open handshakes", count, str(failed), "0", failed == 0),
        Outcome("memory kept after them", count, f"{kept:+.0f} MiB", f"<= {MOST_MIB} MiB", kept <= MOST_MIB),
    ]


async def _waves(server: ServerProcess, count: int, seconds: float) -> tuple[float, float, int, int]:
    """Returns the p99 of a client alone and beside the handshakes in seconds, its failures, and the growth in KiB."""
    alone, failed = await _ask(server.port, seconds)
    before_kib = resident_kib(server.pid)
    beside: list[float] = []
    for _ in range(WAVES):
        silent = [writer for _, writer in await asyncio.gather(*[_silent(server.port) for _ in range(count)])]
        latencies_s, lost = await _ask(server.port, seconds)
        beside, failed = beside + latencies_s, failed + lost
        for writer in silent:
            writer.close()
    await _ask(server.port, seconds)  # gives the server time to notice
    return percentile(alone, 0.99), percentile(beside, 0.99), failed, resident_kib(server.pid) - before_kib


async def _silent(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Opens a connection from another address of this machine than that of the client."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))


async def _ask(port: int, seconds: float) -> tuple[list[float], int]:
    """Sends one request after the other, each on a connection of its own. Returns the latencies and the failures."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    latencies_s, failed, until = [], 0, time.monotonic() + seconds
    while (started := time.monotonic()) < until:
        head = b""
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
        failed += not head.startswith(b"HTTP/1.1 200")
        latencies_s.append(time.monotonic() - started)
        await asyncio.sleep(PAUSE_S)
    return latencies_s, failed
