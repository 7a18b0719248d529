"""A server as a process: how it stops, what it survives, and that it loses nothing on the way."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.http.listener import RETRY_S, Listener, bind
from swiftlet_serve.service.http.server import GIVE_UP_S, LOOK_S
from swiftlet_serve.service.http.watchdog import Watchdog
from tests.support.fakes import PATIENCE_S
from tests.support.processes import ROOT, Process, Tally, ask, load, read_response, request, serving
from tests.support.restarts import roll

LONG = ("--drain-s", "600", "--shutdown-timeout-s", "600")
HANGS = """
import asyncio
from swiftlet_serve.service.pipeline import Pipeline
async def answer(self, *_):
    print("asked", flush=True)
    await asyncio.Event().wait()
Pipeline.answer = answer
"""
BLOCKS = """
import threading
from swiftlet_serve.service.http import openapi
openapi.describe = lambda *_: threading.Event().wait()
"""


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 3 * PATIENCE_S))


async def said(process: subprocess.Popen[str], line: str) -> None:
    """Returns once a process has written a line. One that does not in time is killed, which ends its output."""
    late = asyncio.get_running_loop().call_later(PATIENCE_S, process.kill)
    assert await asyncio.to_thread(lambda: f"{line}\n" in iter(process.stdout.readline, "")), f"it never said {line!r}"
    late.cancel()


async def until_not_ready(port: int) -> None:
    while (await ask(port, "/health/ready", None)).status == 200:
        await asyncio.sleep(0)


# Stopping


def test_a_rolling_restart_behind_a_balancer_loses_nothing(artifact_dir):
    """Two workers, clients with a connection for each request and such that keep theirs."""
    tally, statuses = run(roll(artifact_dir, restarts=2, rate=80))

    assert tally.lost == []
    assert tally.refused == 0
    assert tally.answered > 100
    assert statuses == [0, 0]


async def stop_under_load(server: Process, clients: int, interval_s: float) -> tuple[int, Tally]:
    """Stops a server while clients come, each on a connection of its own. Its exit status, and what became of them."""
    stopped, tally = asyncio.Event(), Tally()
    loading = asyncio.ensure_future(load(server.port, clients, interval_s, stopped, keep=False, tally=tally))
    while tally.answered < 3 * clients:
        await asyncio.sleep(0)
    server.stop()
    status = await asyncio.to_thread(server.wait)
    stopped.set()
    return status, await loading


def test_a_server_without_a_balancer_refuses_and_loses_nothing(artifact_dir):
    """It stops at once, with connections in every state: whoever got one gets an answer."""

    with serving(artifact_dir) as server:
        status, tally = run(stop_under_load(server, 30, 0))

    assert status == 0
    assert server.complaints == ""
    assert tally.lost == []
    assert tally.answered > 0


def test_a_new_server_takes_over_the_port_of_an_old_one(artifact_dir):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = ("--reuse-port", "true", "--port", port)

    with serving(artifact_dir, *shared) as old, serving(artifact_dir, *shared):
        status, tally = run(stop_under_load(old, 10, 0.05))

    assert status == 0
    assert (tally.lost, tally.refused) == ([], 0)
    assert tally.answered > 0


def test_a_draining_server_says_so_and_goes_on_serving(artifact_dir):
    async def scenario():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        before = await read_response(reader)
        server.stop()
        await until_not_ready(server.port)
        writer.write(request())
        after = await read_response(reader)
        ended = await reader.read()
        return before, after, ended, await ask(server.port), await ask(server.admin_port, "/health/ready", None)

    with serving(artifact_dir, *LONG, "--admin-port", "0") as server:
        before, after, ended, new, admin = run(scenario())

    assert (before.status, "connection" in before.headers) == (200, False)
    assert (after.status, after.headers["connection"], ended) == (200, "close", b"")
    assert (new.status, new.headers["connection"]) == (200, "close")
    assert (admin.status, json.loads(admin.body)["code"]) == (503, "draining")


def test_requests_that_have_not_come_whole_are_answered_before_the_server_stops(artifact_dir):
    patient = f"from swiftlet_serve.service.http import server\nserver.SILENT_S = {PATIENCE_S}"

    async def scenario():
        begun = [(sent, *await asyncio.open_connection("127.0.0.1", server.port)) for sent in (0, 1, 40, 100)]
        for sent, _, writer in begun:
            writer.write(request()[:sent])
        await ask(server.port)  # so it has taken the others too
        server.stop()
        await until_not_ready(server.admin_port)
        for sent, _, writer in begun:
            writer.write(request()[sent:])
        return [await read_response(reader) for _, reader, _ in begun], await asyncio.to_thread(server.wait)

    with serving(artifact_dir, "--admin-port", "0", code=patient) as server:
        responses, status = run(scenario())

    assert [(response.status, response.headers["connection"]) for response in responses] == [(200, "close")] * 4
    assert status == 0


def test_connections_that_nobody_uses_do_not_keep_the_server(artifact_dir):
    async def scenario():
        silent, _ = await asyncio.open_connection("127.0.0.1", server.port)
        idle, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        await read_response(idle)
        server.stop()
        return await asyncio.to_thread(server.wait), await silent.read(), await idle.read()

    with serving(artifact_dir, "--shutdown-timeout-s", "600") as server:
        assert run(scenario()) == (0, b"", b"")


def test_a_second_signal_leaves_nothing_that_is_waited_for_longer_than_a_second():
    """Requests that are cancelled, connections that are closed, the runtime, and the own port, one after the other."""
    assert 3 * GIVE_UP_S + LOOK_S < 1


@pytest.mark.parametrize("why", ["SIGTERM", "SIGINT", "the time is up"])
def test_a_request_that_does_not_end_is_answered_503_when_the_server_will_not_wait(why, artifact_dir):
    options = LONG if why != "the time is up" else ("--shutdown-timeout-s", "1")

    async def scenario():
        asking = asyncio.ensure_future(ask(server.port))
        await said(server.process, "asked")
        server.stop()
        if why != "the time is up":
            await until_not_ready(server.port)
            server.stop(signal.Signals[why])
        told = time.monotonic()
        response = await asking
        return response, await asyncio.to_thread(server.wait), time.monotonic() - told

    with serving(artifact_dir, *options, code=HANGS) as server:
        response, status, seconds = run(scenario())

    assert (response.status, json.loads(response.body)["code"]) == (503, "draining")
    assert response.headers["connection"] == "close"
    assert status == 0
    assert "Traceback" not in server.complaints
    assert seconds < PATIENCE_S / 2  # a second and less, or two, where the machine is not busy


FIRST = ("unshare", "--pid", "--fork", "--kill-child")  # as the first process of a container


@pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*FIRST, "true"], capture_output=True).returncode != 0,
    reason="needs unshare, and the right to make a process namespace",
)
def test_the_first_process_of_a_container_stops_while_it_loads(tmp_path):
    os.mkfifo(keys := tmp_path / "keys")  # what it reads before it loads anything, and waits for
    command = [
        *FIRST,
        sys.executable,
        "-m",
        "swiftlet_serve.service",
        "serve",
        "--port",
        "0",
        "--api-keys-file",
        str(keys),
    ]
    with subprocess.Popen(command, cwd=ROOT) as process, keys.open("w"):  # opened as soon as it is there to read
        (server,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(server), signal.SIGTERM)

        assert process.wait(PATIENCE_S) == 0


def test_a_client_who_comes_while_the_listener_closes_is_refused_not_reset():
    async def scenario():
        listener = Listener(bind("127.0.0.1", 0))
        listener.listen()
        made = []
        listener.open(lambda: made.append(asyncio.Protocol()) or made[-1])
        before = await asyncio.open_connection(*listener.address)
        address = listener.address
        closing = asyncio.ensure_future(listener.close())
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        await closing
        assert len(made) == 1
        before[1].close()

    run(scenario())


def test_an_address_that_cannot_be_had_is_said_in_a_sentence():
    taken = bind("127.0.0.1", 0)
    taken.listen()

    with taken, pytest.raises(SetupError, match=r"Cannot listen on 127.0.0.1, port .*: Address already in use"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_of_two_who_bound_an_address_at_once_the_second_is_told_so_too():
    with bind("127.0.0.1", 0) as first, bind("127.0.0.1", first.getsockname()[1]) as second:
        Listener(first).listen()
        with pytest.raises(SetupError, match="Address already in use"):
            Listener(second).listen()


# Nobody listens in, and nobody is called


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A directory with cert.pem and key.pem for 127.0.0.1, and locked.pem, the key with a password."""
    if not (openssl := shutil.which("openssl")):
        pytest.skip("no openssl to make a certificate with")
    made = tmp_path_factory.mktemp("certificate")
    new = f"{openssl} req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=127.0.0.1"
    new += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    for command in (new, f"{openssl} ec -in key.pem -aes128 -passout pass:word -out locked.pem"):
        subprocess.run(command.split(), cwd=made, check=True, capture_output=True)
    return made


def test_with_a_certificate_the_public_port_speaks_tls_and_nothing_else(artifact_dir, certificate):
    trusting = ssl.create_default_context(cafile=certificate / "cert.pem")

    async def scenario():
        silent = await asyncio.open_connection("127.0.0.1", server.port)
        plain, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request())
        refused = await plain.read()
        response = await ask(server.port, tls=trusting)
        silent[1].close()
        live = await ask(server.admin_port, "/health/live", None)
        server.stop()
        return refused, response, live, await asyncio.to_thread(server.wait)

    files = ("--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem"))
    with serving(artifact_dir, *files, "--admin-port", "0") as server:
        refused, response, live, status = run(scenario())

    assert server.url.startswith("https://")
    assert b"HTTP" not in refused
    assert (response.status, live.status, status) == (200, 200, 0)
    assert server.complaints == ""


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("cert.pem", "nowhere.pem", "cannot be read: No such file or directory"),
        ("nowhere.pem", "key.pem", "cannot be read: No such file or directory"),
        ("key.pem", "cert.pem", "are no certificate and the key that belongs to it"),
        ("cert.pem", "locked.pem", "are no certificate and the key that belongs to it"),
        ("cert.pem", None, "are no certificate and the key that belongs to it"),
        (None, "key.pem", "tls_key is set and tls_cert is not"),
    ],
)
def test_files_that_make_no_tls_are_said_in_a_sentence(cert, key, said, certificate):
    options = [f"--{name}={certificate / file}" for name, file in (("tls-cert", cert), ("tls-key", key)) if file]
    result = CliRunner().invoke(main, ["serve", *options, "--models", "nowhere"])

    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


LISTENS_IN = """
import atexit, os, socket, sys
from swiftlet_serve.service import cli
from swiftlet_serve.service.http import openapi
calls, announce = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"), cli._announce
def arm(*arguments):
    sys.addaudithook(lambda event, _: event in calls and os.write(2, b"called somebody: " + event.encode()))
    announce(*arguments)
cli._announce = arm
atexit.register(lambda: [os.write(2, b"knows the hub") for name in sys.modules if name.startswith("huggingface")])
"""
CALLS = """
describe = openapi.describe
openapi.describe = lambda *a: socket.socket().connect_ex(("127.0.0.1", 9)) and describe(*a)
"""


@pytest.mark.parametrize("calls", [False, True])
def test_a_served_request_calls_nobody(calls, artifact_dir):
    """The second time somebody is called, so that this test is seen to notice it."""
    bodies = ["http://127.0.0.1:9/", "../tiny-classify", "bert-base-uncased", "file:///etc/passwd", None]

    async def scenario():
        for model in bodies:
            await ask(server.port, body=json.dumps({"inputs": "http://127.0.0.1:9/", "model": model}).encode())
        for path in ("/models", "/openapi.json", "/health/ready", "/http://127.0.0.1:9/"):
            await ask(server.port, path, None)
        server.stop()
        return await asyncio.to_thread(server.wait)

    with serving(artifact_dir, code=LISTENS_IN + CALLS * calls) as server:
        assert run(scenario()) == 0

    assert server.complaints == ("called somebody: socket.connect" if calls else "")


@pytest.mark.parametrize("own", [False, True])
def test_text_is_read_and_written_without_threads_of_the_tokenizer(own, artifact_dir):
    """The second time it has some, so that this test is seen to notice them."""
    body = b'{"inputs": "I want to eat a [MASK]."}'
    code = "import os; os.environ['TOKENIZERS_PARALLELISM'] = 'true'" if own else ""

    async def scenario():
        threads = Path(f"/proc/{server.process.pid}/task")
        before = len(list(threads.iterdir()))
        assert (await ask(server.port, "/fill-mask", body)).status == 200
        return len(list(threads.iterdir())) - before

    with serving(artifact_dir, "--models", str(artifact_dir / "tiny-fill-mask"), code=code) as server:
        assert (run(scenario()) > 0) == own


# Surviving


def test_the_own_port_answers_while_the_event_loop_is_blocked_and_the_watchdog_ends_it(artifact_dir):
    async def scenario():
        asking = asyncio.ensure_future(ask(server.port, "/models", None))
        while True:
            try:
                await asyncio.wait_for(ask(server.port, "/health/live", None), 1.0)
            except TimeoutError:
                break
        live = await ask(server.admin_port, "/health/live", None)
        status = await asyncio.to_thread(server.wait)
        await asyncio.wait([asking])
        return live, status

    with serving(artifact_dir, "--admin-port", "0", code=BLOCKS) as server:
        live, status = run(scenario())

    assert live.status == 200
    assert status == 1
    assert "The event loop is blocked" in server.complaints
    assert "in models" in server.complaints


def test_the_watchdog_lets_a_loop_live_that_is_only_busy():
    ended = threading.Event()

    async def scenario():
        watchdog = Watchdog(ended.set, patience_s=1)
        watchdog.start()
        ends = time.monotonic() + 2
        while time.monotonic() < ends:
            time.sleep(0.2)  # blocks it, but not for long
            await asyncio.sleep(0)
        assert not ended.is_set()
        time.sleep(2)
        assert ended.is_set()
        watchdog.stop()

    asyncio.run(scenario())


def test_without_descriptors_clients_wait_and_are_taken_when_there_are_some(caplog):
    async def scenario():
        made: asyncio.Queue[asyncio.Protocol] = asyncio.Queue()

        class Made(asyncio.Protocol):
            def connection_made(self, transport):
                made.put_nowait(self)

        listener = Listener(bind("127.0.0.1", 0))
        listener.listen()
        clients = [socket.create_connection(listener.address) for _ in range(20)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 5, hard))
        try:
            listener.open(Made)
            for _ in range(5):
                await made.get()
            while not caplog.records:
                await asyncio.sleep(0)
            await asyncio.sleep(3 * RETRY_S)
            assert made.empty()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(15):
            await made.get()
        await listener.close()
        for client in clients:
            client.close()

    run(scenario())

    assert [record.getMessage() for record in caplog.records] == [
        "No connection can be taken: Too many open files. What waits is kept."
    ]


def test_while_the_loop_is_behind_one_client_after_the_other_is_taken():
    async def scenario():
        made: list[asyncio.Protocol] = []
        before: list[int] = []  # clients that had been taken, whenever the listener asked

        class Made(asyncio.Protocol):
            def connection_made(self, transport):
                made.append(self)

        def behind() -> bool:
            before.append(len(made))
            return len(before) <= 5

        listener = Listener(bind("127.0.0.1", 0))
        listener.listen()
        clients = [socket.create_connection(listener.address) for _ in range(20)]
        listener.open(Made, behind)
        while len(made) < len(clients):
            await asyncio.sleep(0)
        assert before[:6] == [0, 1, 2, 3, 4, 5]
        await listener.close()
        for client in clients:
            client.close()

    run(scenario())
