"""Server processes, and small clients for them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.generator import closed_loop
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

BODY = json.dumps({"inputs": "fine"}).encode()


@dataclass(eq=False)
class Process:
    """A running server process."""

    process: subprocess.Popen[str]
    url: str
    admin_url: str | None
    grpc_address: str | None = None
    stderr: str = ""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def admin_port(self) -> int:
        assert self.admin_url is not None
        return int(self.admin_url.rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    @property
    def warnings(self) -> str:
        """The log of a process that has ended, without the lines of its life cycle."""
        lines = self.stderr.splitlines(keepends=True)
        cycle = (" INFO swiftlet_serve.inference.runtime: model ", " INFO swiftlet_serve.server: ")
        return "".join(line for line in lines if not any(part in line for part in cycle))

    def wait(self) -> int:
        """Waits for the process and returns its exit status. Stores its log in `stderr`."""
        _, self.stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextmanager
def serving(artifact_dir: Path, *options: str, code: str = "") -> Iterator[Process]:
    """Starts a server with the echo engine and without a spare on a free port.

    Args:
        artifact_dir: the directory of the small artifacts.
        options: further options of `swiftlet serve`.
        code: Python code that the process runs first.
    """
    start = f"{code}\nfrom swiftlet_serve.cli.main import main\nmain()" if code else None
    command = [sys.executable, *(["-c", start] if start else ["-m", "swiftlet_serve"])]
    command += ["serve", "--port", "0", "--engine", "echo", "--models", str(artifact_dir / "tiny-classify")]
    command += ["--spare-engine", "false", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWIFTLET_")}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            announced = process.stdout.readline()
            url, *admin_url = re.findall(r"https?://[^,\s\"]+", announced)
            grpc = re.search(r"gRPC port (\S+)", announced)
            yield Process(process, url, admin_url[0] if admin_url else None, grpc[1] if grpc else None)
        finally:
            process.kill()
            process.stdout.close()


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes


def request(path: str = "/classify", body: bytes | None = BODY, headers: Sequence[str] = (), method: str = "") -> bytes:
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {path} HTTP/1.1", "Host: swiftlet", *headers]
    if body is not None:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


async def read_response(reader: asyncio.StreamReader) -> Response:
    """Reads a response.

    Raises:
        asyncio.IncompleteReadError: the connection ends before the response does.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    return Response(int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"])))


async def ask(port: int, *args: Any, tls: ssl.SSLContext | None = None, **kwargs: Any) -> Response:
    """Sends one request on a new connection and returns the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        writer.write(request(*args, **kwargs))
        return await asyncio.wait_for(read_response(reader), PATIENCE_S)
    finally:
        writer.close()


@dataclass
class Tally:
    """The outcomes of requests. Lost requests are described."""

    answered: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)


class Client:
    """Sends requests one after another, without retries. Opens a connection per request unless it keeps its own."""

    def __init__(self, port: int, keep: bool, tally: Tally, headers: Sequence[str] = ()) -> None:
        self._port = port
        self._keep = keep
        self._headers = headers if keep else (*headers, "Connection: close")
        self._tally = tally
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, _: float) -> None:
        step = "connect"
        try:
            if self._connection is None or self._connection[0].at_eof():
                self._connection = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._connection
            step = "request"
            writer.write(request(headers=self._headers))
            response = await asyncio.wait_for(read_response(reader), PATIENCE_S)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            self._connection = None
            if step == "connect" and isinstance(error, ConnectionRefusedError):
                self._tally.refused += 1
            else:
                self._tally.lost.append(f"{step}, keep={self._keep}: {error!r}")
            return
        if response.status == 200:
            self._tally.answered += 1
        else:
            self._tally.lost.append(f"{response.status} {response.body!r}")
        if response.headers.get("connection") == "close":
            writer.close()
            self._connection = None


async def load(
    port: int,
    clients: int,
    interval_s: float,
    stopped: asyncio.Event,
    keep: bool = True,
    tally: Tally | None = None,
    headers: Sequence[str] = (),
) -> Tally:
    """Runs clients that send a request every `interval_s`, or after each response if that is later.

    With `keep`, every second client keeps its connection. Returns the outcomes once `stopped` is set.
    """
    tally = Tally() if tally is None else tally

    senders = [Client(port, keep and number % 2 == 0, tally, headers).send for number in range(clients)]
    await closed_loop(senders, interval_s=interval_s, stopped=stopped)
    return tally


class Balancer:
    """A TCP load balancer: passes connections to ready servers in turn, without retries."""

    POLL_S = 0.05  # between two readiness checks

    def __init__(self) -> None:
        self._servers: dict[int, bool] = {}
        self._checked = asyncio.Condition()
        self._next = 0

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1000)
        self._checking = asyncio.ensure_future(self._check())
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        self._server.close()
        self._checking.cancel()

    async def add(self, port: int) -> None:
        self._servers[port] = False
        async with self._checked:
            await self._checked.wait_for(lambda: self._servers[port])

    def remove(self, port: int) -> None:
        del self._servers[port]

    async def _check(self) -> None:
        while True:
            for port in list(self._servers):
                try:
                    ready = (await ask(port, "/health/ready", None)).status == 200
                except OSError:
                    ready = False
                if port in self._servers:
                    self._servers[port] = ready
            async with self._checked:
                self._checked.notify_all()
            await asyncio.sleep(self.POLL_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ready = [port for port, answers in self._servers.items() if answers]
        self._next += 1
        try:
            upstream = await asyncio.open_connection("127.0.0.1", ready[self._next % len(ready)])
        except OSError:
            writer.transport.abort()
            return
        with suppress(asyncio.CancelledError):  # the test has ended
            await asyncio.gather(_pump(reader, upstream[1]), _pump(upstream[0], writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()
    except ConnectionError:
        writer.transport.abort()
