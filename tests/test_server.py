"""A server process: shutdown, restarts, isolation and the watchdog."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from swiftlet_serve.http.connections.port import CANCEL_S, POLL_S
from swiftlet_serve.machine.watchdog import Watchdog
from tests.support.fakes import PATIENCE_S
from tests.support.processes import ROOT, Process, Tally, ask, load, read_response, request, serving
from tests.support.restarts import roll
from tests.support.tiers import first

LONG = ("--drain-s", "600", "--shutdown-timeout-s", "600")

HANGS = """
import asyncio
from swiftlet_serve.inference.pipeline import Pipeline
async def answer(self, *_, **__):
    print("asked", flush=True)
    await asyncio.Event().wait()
Pipeline.answer = answer
"""

BLOCKS = """
import threading
from swiftlet_serve.http.endpoints import models
models.describe = lambda *_: threading.Event().wait()
"""


async def wait_for_output(process: subprocess.Popen[str], line: str) -> None:
    """Waits until a process has written a line. Kills it after `PATIENCE_S`, which ends its output."""
    killer = asyncio.get_running_loop().call_later(PATIENCE_S, process.kill)
    assert await asyncio.to_thread(lambda: f"{line}\n" in iter(process.stdout.readline, "")), f"it never wrote {line!r}"
    killer.cancel()


async def until_not_ready(port: int) -> None:
    while (await ask(port, "/health/ready", None)).status == 200:
        await asyncio.sleep(0)


async def test_rolling_restart_behind_a_load_balancer_loses_no_request(artifact_dir):
    """Half of the clients open a connection per request, half keep theirs."""
    tally, statuses = await roll(artifact_dir, restarts=2, rate=80)

    assert tally.lost == []
    assert tally.refused == 0
    assert tally.answered > 100
    assert statuses == [0, 0]


@pytest.mark.parametrize(("host", "warns"), first([("0.0.0.0", True), ("localhost", False)], ("0.0.0.0", True)))
def test_open_server_with_a_public_address_or_a_shared_port_says_so(host, warns, artifact_dir):
    with serving(artifact_dir, "--host", host, "--reuse-port", str(warns).lower()) as server:
        server.stop()
        server.wait()

    for sentence in ("The server needs no API key", "a request for /metrics reaches any of the servers"):
        assert (sentence in server.warnings) == warns


async def stop_under_load(server: Process, clients: int, interval_s: float) -> tuple[int, Tally]:
    """Stops a server under load, with a connection per request. Returns its exit status and the outcomes."""
    stopped, tally = asyncio.Event(), Tally()
    loading = asyncio.ensure_future(load(server.port, clients, interval_s, stopped, keep=False, tally=tally))
    while tally.answered < 3 * clients:
        await asyncio.sleep(0)
    server.stop()
    status = await asyncio.to_thread(server.wait)
    stopped.set()
    return status, await loading


@pytest.mark.exhaustive
async def test_shutdown_without_a_load_balancer_loses_no_request(artifact_dir):
    """The server stops at once, with connections in every phase. Every accepted connection gets a response."""

    with serving(artifact_dir) as server:
        status, tally = await stop_under_load(server, 30, 0)

    assert status == 0
    assert server.warnings == ""
    assert tally.lost == []
    assert tally.answered > 0


@pytest.mark.exhaustive
async def test_new_server_takes_over_a_shared_port(artifact_dir):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = ("--reuse-port", "true", "--port", port)

    with serving(artifact_dir, *shared) as old, serving(artifact_dir, *shared):
        status, tally = await stop_under_load(old, 10, 0.05)

    assert status == 0
    assert (tally.lost, tally.refused) == ([], 0)
    assert tally.answered > 0


async def test_draining_server_is_not_ready_and_still_serves(artifact_dir):
    with serving(artifact_dir, *LONG, "--admin-port", "0") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        before = await read_response(reader)
        server.stop()
        await until_not_ready(server.port)
        writer.write(request())
        after = await read_response(reader)
        ended = await reader.read()
        new = await ask(server.port)
        admin = await ask(server.admin_port, "/health/ready", None)

    assert (before.status, "connection" in before.headers) == (200, False)
    assert (after.status, after.headers["connection"], ended) == (200, "close", b"")
    assert (new.status, new.headers["connection"]) == (200, "close")
    assert (admin.status, json.loads(admin.body)["code"]) == (503, "draining")


async def test_shutdown_waits_for_incomplete_requests(artifact_dir):
    patient = f"from swiftlet_serve.http.connections import port\nport.UNUSED_S = {PATIENCE_S}"

    with serving(artifact_dir, "--admin-port", "0", code=patient) as server:
        begun = [(sent, *await asyncio.open_connection("127.0.0.1", server.port)) for sent in (0, 1, 40, 100)]
        for sent, _, writer in begun:
            writer.write(request()[:sent])
        await ask(server.port)  # by then it has accepted the other connections too
        server.stop()
        await until_not_ready(server.admin_port)
        for sent, _, writer in begun:
            writer.write(request()[sent:])
        responses, status = (
            [await read_response(reader) for _, reader, _ in begun],
            await asyncio.to_thread(server.wait),
        )

    assert [(response.status, response.headers["connection"]) for response in responses] == [(200, "close")] * 4
    assert status == 0


async def test_shutdown_closes_idle_connections(artifact_dir):
    with serving(artifact_dir, "--shutdown-timeout-s", "600") as server:
        silent, _ = await asyncio.open_connection("127.0.0.1", server.port)
        idle, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        await read_response(idle)
        server.stop()
        assert (await asyncio.to_thread(server.wait), await silent.read(), await idle.read()) == (0, b"", b"")


def test_second_signal_stops_the_server_within_a_second():
    """The time is the sum of cancelled requests, closed connections, the runtime and the admin port."""
    assert 3 * CANCEL_S + POLL_S < 1


@pytest.mark.parametrize("why", first(["SIGTERM", "SIGINT", "timeout"], "SIGTERM"))
async def test_endless_request_gets_a_503_when_the_server_stops_waiting(why, artifact_dir):
    options = LONG if why != "timeout" else ("--shutdown-timeout-s", "1")

    with serving(artifact_dir, *options, code=HANGS) as server:
        asking = asyncio.ensure_future(ask(server.port))
        await wait_for_output(server.process, "asked")
        server.stop()
        if why != "timeout":
            await until_not_ready(server.port)
            server.stop(signal.Signals[why])
        reports = time.monotonic()
        response = await asking
        status = await asyncio.to_thread(server.wait)
        seconds = time.monotonic() - reports

    assert (response.status, json.loads(response.body)["code"]) == (503, "draining")
    assert response.headers["connection"] == "close"
    assert status == 0
    assert "Traceback" not in server.stderr
    assert seconds < PATIENCE_S / 2  # usually one or two seconds


IN_NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")  # as in a container


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*IN_NEW_NAMESPACE, "true"], capture_output=True).returncode != 0,
    reason="needs unshare, and the right to make a process namespace",
)
def test_pid_1_of_a_container_stops_while_it_loads():
    command = [
        *IN_NEW_NAMESPACE,
        sys.executable,
        "-m",
        "swiftlet_serve",
        "serve",
        "--port",
        "0",
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"starting Swiftlet" in process.stderr.readline()  # before it loads models
        (server,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(server), signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


AUDIT = """
import atexit, os, socket, sys
from swiftlet_serve.cli import main, summaries
from swiftlet_serve.http.endpoints import models
calls, announce = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"), summaries.announce
def arm(*arguments):
    sys.addaudithook(lambda event, _: event in calls and os.write(2, b"outgoing call: " + event.encode() + b"\\n"))
    announce(*arguments)
summaries.announce = arm
atexit.register(lambda: [os.write(2, b"imported the hub") for name in sys.modules if name.startswith("huggingface")])
"""

CALLS = """
describe = models.describe
models.describe = lambda *a: socket.socket().connect_ex(("127.0.0.1", 9)) and describe(*a)
"""


@pytest.mark.parametrize("calls", first([False, True], True))
async def test_requests_open_no_outgoing_connections(calls, artifact_dir):
    """The second run opens one, which shows that the test notices it."""
    bodies = ["http://127.0.0.1:9/", "../tiny-classify", "bert-base-uncased", "file:///etc/passwd", None]

    with serving(artifact_dir, code=AUDIT + CALLS * calls) as server:
        for model in bodies:
            await ask(server.port, body=json.dumps({"inputs": "http://127.0.0.1:9/", "model": model}).encode())
        for path in ("/models", "/openapi.json", "/health/ready", "/http://127.0.0.1:9/"):
            await ask(server.port, path, None)
        server.stop()
        assert await asyncio.to_thread(server.wait) == 0

    assert server.warnings == ("outgoing call: socket.connect\n" if calls else "")


@pytest.mark.parametrize("own", first([False, True], False))
async def test_requests_start_no_tokenizer_threads(own, artifact_dir):
    """The second run starts some, which shows that the test notices them. The library reads the last character."""
    body = b'{"inputs": "I want to eat a [MASK]. \\udb40\\udc41"}'
    code = "import os; os.environ['TOKENIZERS_PARALLELISM'] = 'true'" if own else ""

    with serving(artifact_dir, "--models", str(artifact_dir / "tiny-fill-mask"), code=code) as server:
        threads = Path(f"/proc/{server.process.pid}/task")
        before = len(list(threads.iterdir()))
        assert (await ask(server.port, "/fill-mask", body)).status == 200
        assert (len(list(threads.iterdir())) - before > 0) == own


async def test_admin_port_responds_until_the_watchdog_ends_a_blocked_process(artifact_dir):
    with serving(artifact_dir, "--admin-port", "0", code=BLOCKS) as server:
        asking = asyncio.ensure_future(ask(server.port, "/models", None))
        while True:
            try:
                await asyncio.wait_for(ask(server.port, "/health/live", None), 1.0)
            except TimeoutError:
                break
        live = await ask(server.admin_port, "/health/live", None)
        status = await asyncio.to_thread(server.wait)
        await asyncio.wait([asking])

    assert live.status == 200
    assert status == 1
    assert "The event loop is blocked" in server.stderr
    assert "pages.py" in server.stderr


async def test_watchdog_ignores_a_busy_event_loop():
    ended = threading.Event()

    watchdog = Watchdog(ended.set, timeout_s=1)
    watchdog.start()
    ends = time.monotonic() + 2
    while time.monotonic() < ends:
        time.sleep(0.2)  # blocks the loop for a short time
        await asyncio.sleep(0)
    assert not ended.is_set()
    time.sleep(2)
    assert ended.is_set()
    watchdog.stop()
