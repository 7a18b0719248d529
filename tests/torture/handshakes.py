"""The torture case of TLS: silent connections beside a client that opens a connection for each request."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from pathlib import Path
from typing import Final

import uvloop

from loadtest.server_process import ServerProcess, resident_kib, serving
from swiftlet_serve.inference.loading import locate
from swiftlet_serve.telemetry.percentile import percentile
from tests.support.certificates import make_certificate
from tests.support.processes import ask
from tests.torture.outcome import Outcome, scaled

MODEL: Final = "albert-sst2"
PAUSE_S: Final = 0.02  # between two requests
WAVES: Final = 3
MOST_MIB: Final = 32  # that the server may have kept after the waves


def handshakes(_: Path, scale: float) -> list[Outcome]:
    """Measures a client beside many connections that never start their TLS handshakes."""
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
    """Measures the client alone, then beside each wave of silent connections.

    Returns:
        The client's p99 latency alone and beside the waves, in seconds.
        The number of its failed requests.
        The growth of the server's memory, in KiB.
    """
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
    """Opens a connection that sends nothing. Its address is not the client's."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))


async def _ask(port: int, seconds: float) -> tuple[list[float], int]:
    """Sends requests one by one, each on a new connection. Returns the latencies and the number of failures."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    latencies_s, failed, until = [], 0, time.monotonic() + seconds
    while (started := time.monotonic()) < until:
        try:
            failed += (await ask(port, tls=context)).status != 200
        except (OSError, asyncio.IncompleteReadError):
            failed += 1
        latencies_s.append(time.monotonic() - started)
        await asyncio.sleep(PAUSE_S)
    return latencies_s, failed
