"""A server with several fronts answers, limits, counts and drains as a server without fronts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from swiftlet_serve.errors import SetupError
from swiftlet_serve.fronts.sockets import bind_public
from swiftlet_serve.http.gate.api_keys import make_key
from swiftlet_serve.settings import Settings
from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S
from tests.support.fronts import CONNECTIONS, ask_all, processes, until_metrics, until_replaced
from tests.support.metrics import ACCEPTED, FINISHED, IN_FLIGHT, REFUSED, scrape, total
from tests.support.processes import ROOT, Tally, ask, load, read_response, request, serving

FRONT = "swiftlet_serve.fronts.front_main"
WORKER = "swiftlet_serve.workers.worker_main"
TWO = ("--fronts", "2")
LIMITED = (*TWO, "--client-rate-limit", "0.001")
REQUESTS = [
    ("/classify", {"inputs": "fine"}),
    ("/classify", {"inputs": ["fine", "bad " * 200, ""], "partial": True}),
    ("/classify", {"inputs": [["a pair", "of texts"], "one"], "parameters": {"top_k": 2}}),
    ("/classify", {"inputs": ["fine", "", "one"], "partial": True, "model": "both"}),
    ("/classify", {"inputs": 3}),
    ("/qa", {"inputs": {"question": "Who?", "context": "Ada wrote it. " * 50}, "parameters": {"top_k": 3}}),
    ("/fill-mask", {"inputs": "a [MASK] day", "parameters": {"top_k": 3}}),
    ("/fill-mask", {"inputs": ["a [MASK] day", "the [MASK]"], "parameters": {"targets": ["a", "b"]}}),
]

NEVER_ANSWERS = """
import asyncio
from swiftlet_serve.workers.process_executor import ProcessExecutor
ProcessExecutor._run_on = lambda self, *call: asyncio.get_running_loop().create_future()
"""

NO_REPLACEMENT = """
from swiftlet_serve.machine import child_process
child_process.BACK_OFF_S = (600.0,)
"""

SOON_IMPATIENT = """
from swiftlet_serve.fronts import coordinator
coordinator.MAX_SILENCE_S = 3.0
"""

DAMAGES_ONE_REQUEST = """
from swiftlet_serve.fronts import front_process
receive, damaged = front_process.FrontProcess._receive, []
def damage(self, kind, number, body):
    if kind is front_process.Kind.SUBMIT and number == 3 and not damaged:
        damaged.append(self)
        body = body[:-1]
    receive(self, kind, number, body)
front_process.FrontProcess._receive = damage
"""


NO_FRONTS = """
from swiftlet_serve.fronts import front_process
front_process.MODULE = "no_such_module"
"""


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 3 * PATIENCE_S))


def is_idle(series):
    """Returns whether no request is in flight, for the fronts, and none is queued, for the coordinator."""
    return total(series, IN_FLIGHT) == total(series, "swiftlet_queue_sequences") == 0


def answer_of(response):
    """Returns what does not depend on the time or the identity of a request."""
    body = json.loads(response.body)
    if isinstance(body, dict):
        body.pop("instance", None)
    return response.status, body


@pytest.fixture
def both(artifact_dir, tmp_path):
    """The options for two classifiers, which an ensemble precedes, and the other tasks."""
    paths = [artifact_dir / f"tiny-{task}" for task in ("classify", "qa", "fill-mask")]
    paths.append(make_artifact(tmp_path, "classify", "other").path)
    return "--models", ",".join(map(str, paths)), "--ensembles", "both=tiny-classify+other"


def test_answers_equal_those_of_a_server_without_fronts(artifact_dir, both):

    async def scenario(server):
        return [answer_of(await ask(server.port, path, json.dumps(body).encode())) for path, body in REQUESTS]

    async def pages(server):
        return [(await ask(server.port, path, None)).body for path in ("/models", "/openapi.json", "/health/ready")]

    with serving(artifact_dir, *both) as one, serving(artifact_dir, *both, *TWO) as two:
        expected = run(scenario(one))
        assert {status for status, _ in expected} == {200, 422}
        assert [run(scenario(two)) for _ in range(4)] == [expected] * 4
        assert run(pages(two)) == run(pages(one))


@pytest.mark.exhaustive
async def test_metrics_and_status_of_any_front_are_those_of_all(artifact_dir):
    with serving(artifact_dir, *TWO, "--admin-port", "0") as server:
        answers, bad = await ask_all(server), await ask_all(server, body=b"{")
        status = [json.loads((await ask(server.port, "/status", None)).body) for _ in range(6)]
        answers, bad = {one.status for one in answers}, {one.status for one in bad}
        series = await scrape(server.admin_port)
    with serving(artifact_dir, *TWO) as server:
        await ask_all(server)
        scrapes = [await scrape(server.port) for _ in range(6)]

    assert (answers, bad) == ({200}, {400})
    assert total(series, ACCEPTED) == total(series, FINISHED, outcome="answered") == CONNECTIONS
    assert total(series, REFUSED, reason="invalid_json") == CONNECTIONS
    assert total(series, "swiftlet_batch_size_sum") == CONNECTIONS
    assert [(one["models"][0]["answered"], one["models"][0]["in_flight"]) for one in status] == [(CONNECTIONS, 0)] * 6
    assert {total(one, ACCEPTED) for one in scrapes} == {CONNECTIONS}
    assert {total(one, "swiftlet_fronts") for one in scrapes} == {2}
    assert len({total(one, "process_start_time_seconds") for one in scrapes}) == 1  # of the same process each time


async def test_rate_limit_holds_over_all_fronts(artifact_dir, both):
    """One request in a thousand seconds, of both models."""
    with serving(artifact_dir, *LIMITED, *both) as server:
        answers = await ask_all(server)
        invalid = await ask(server.port, "/classify", b"{")

    assert [one.status for one in answers] == [200] + [429] * (CONNECTIONS - 1)
    assert all(900 < int(one.headers["retry-after"]) <= 1000 for one in answers[1:])
    assert {json.loads(one.body)["code"] for one in answers[1:]} == {"quota_exceeded"}
    assert invalid.status in (400, 429)  # 429 if its front has refused the client before


@pytest.mark.exhaustive
async def test_body_that_is_no_json_counts_for_the_rate_limit(artifact_dir):
    with serving(artifact_dir, *LIMITED) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        statuses = []
        for body in ({"body": b"{"}, {}):
            writer.write(request(**body))
            statuses.append((await read_response(reader)).status)

    assert statuses == [400, 429]


@pytest.mark.exhaustive
async def test_batch_above_the_rate_limit_is_answered_and_the_next_requests_wait(artifact_dir):
    batch = json.dumps({"requests": [{"task": "classify", "inputs": "fine"}] * 3}).encode()
    with serving(artifact_dir, *LIMITED) as server:
        answer = await ask(server.port, "/batch", batch)
        others = await ask_all(server)

    assert answer.status == 200
    assert {one.status for one in others} == {429}
    assert max(int(one.headers["retry-after"]) for one in others) > 2000


@pytest.mark.exhaustive
async def test_rate_limit_of_tokens_holds_over_all_fronts(artifact_dir):
    """One token in a thousand seconds: the first request leaves a debt."""

    with serving(artifact_dir, *TWO, "--client-token-rate-limit", "0.001") as server:
        invalid, answers = await ask(server.port, "/classify", b"{"), await ask_all(server)

    assert invalid.status == 400  # it has no tokens
    assert [one.status for one in answers] == [200] + [429] * (CONNECTIONS - 1)
    owed = 1000 * (int(answers[0].headers["x-compute-tokens"]) - 1)
    assert all(owed - 100 < int(one.headers["retry-after"]) <= owed for one in answers[1:])
    assert all("rate limit of tokens" in json.loads(one.body)["detail"] for one in answers[1:])


@pytest.mark.exhaustive
async def test_full_queue_refuses_in_every_front(artifact_dir):
    options = (*TWO, "--cores", "1", "--max-queued-tokens", "8", "--timeout-ms", "600000")

    with serving(artifact_dir, *options, code=NEVER_ANSWERS) as server:
        waiting = [asyncio.ensure_future(ask(server.port))]  # runs
        await until_metrics(server, lambda series: total(series, "swiftlet_batches_running") == 1)
        waiting.append(asyncio.ensure_future(ask(server.port)))  # is queued: six tokens
        await until_metrics(server, lambda series: total(series, "swiftlet_queue_sequences") == 1)
        refused = await ask_all(server)
        series = await scrape(server.port)
        for one in waiting:
            one.cancel()
        refused, series, ended = refused, series, await until_metrics(server, is_idle)

    assert {(one.status, json.loads(one.body)["code"]) for one in refused} == {(503, "overloaded")}
    assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
    assert (total(series, IN_FLIGHT), total(series, ACCEPTED)) == (2, 2)
    assert total(series, REFUSED, reason="overloaded") == CONNECTIONS
    assert total(ended, FINISHED, outcome="cancelled") == 2


@pytest.mark.exhaustive
async def test_deadline_ends_a_request_in_any_front(artifact_dir):
    with serving(artifact_dir, *TWO, code=NEVER_ANSWERS) as server:
        late = await ask_all(server, headers=["X-Request-Timeout-Ms: 20"])
        await until_metrics(server, is_idle)

    assert {one.status for one in late} <= {503, 504}
    assert 504 in {one.status for one in late}


async def test_killed_front_loses_its_own_connections_only_and_comes_back(artifact_dir):
    with serving(artifact_dir, *TWO) as server:
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS)]
        for reader, writer in kept:
            writer.write(request())
            assert (await read_response(reader)).status == 200
        before = await scrape(server.port)
        victim = processes(server, FRONT)[0]
        os.kill(victim, signal.SIGKILL)
        outcomes = [await _again(reader, writer) for reader, writer in kept]
        new = await ask_all(server)
        during = await scrape(server.port)
        after = await until_replaced(server)
        assert victim not in processes(server, FRONT)
        new += await ask_all(server)
        outcomes, new, before, during, after, last = outcomes, new, before, during, after, await scrape(server.port)
        server.stop()
        assert server.wait() == 0

    lost = outcomes.count(None)
    assert 0 < lost < CONNECTIONS
    assert outcomes.count(200) == CONNECTIONS - lost
    assert {one.status for one in new} == {200}
    answered = 3 * CONNECTIONS - lost
    assert [total(series, ACCEPTED) for series in (before, during, after)] == [CONNECTIONS, answered, answered]
    assert total(last, ACCEPTED) == total(last, FINISHED) == answered + CONNECTIONS
    assert "ended by signal 9 (SIGKILL)" in server.stderr


async def _again(reader, writer):
    """Sends another request on a connection. Returns its status, or None if the connection is lost."""
    try:
        writer.write(request())
        return (await read_response(reader)).status
    except (OSError, asyncio.IncompleteReadError):
        return None


@pytest.mark.exhaustive
async def test_stopped_front_is_replaced(artifact_dir):
    with serving(artifact_dir, *TWO, code=SOON_IMPATIENT) as server:
        victim = processes(server, FRONT)[0]
        os.kill(victim, signal.SIGSTOP)
        while victim in processes(server, FRONT):
            await asyncio.sleep(0.01)
        answers = await ask_all(server)
        server.stop()
        assert server.wait() == 0

    assert {one.status for one in answers} == {200}
    assert "it has sent nothing for 3 s" in server.stderr


@pytest.mark.exhaustive
async def test_other_fronts_accept_the_connections_of_a_lost_one(artifact_dir):
    with serving(artifact_dir, *TWO, code=NO_REPLACEMENT) as server:
        os.kill(processes(server, FRONT)[1], signal.SIGKILL)
        await until_metrics(server, lambda series: total(series, "swiftlet_fronts") == 1)
        answers = await ask_all(server)
        server.stop()
        assert server.wait() == 0

    assert {one.status for one in answers} == {200}


@pytest.mark.exhaustive
async def test_front_that_sends_garbage_is_replaced(artifact_dir):
    with serving(artifact_dir, *TWO, code=DAMAGES_ONE_REQUEST) as server:
        kept = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS)]
        outcomes = [await _again(reader, writer) for reader, writer in kept]
        await until_replaced(server)
        outcomes, answers = outcomes, await ask_all(server)
        server.stop()
        assert server.wait() == 0

    assert set(outcomes) == {200, None}
    assert {one.status for one in answers} == {200}
    assert "An invalid message ends the connection between processes" in server.stderr


async def test_killed_engine_and_a_shutdown_under_load_lose_no_request(artifact_dir):
    with serving(artifact_dir, *TWO, "--spare-engine", "true") as server:
        stopped, tally = asyncio.Event(), Tally()
        loading = asyncio.ensure_future(load(server.port, 8, 0, stopped, tally=tally))
        await until_metrics(server, lambda series: total(series, ACCEPTED) > 50)
        os.kill(processes(server, WORKER)[0], signal.SIGKILL)
        killed = await until_metrics(server, lambda series: total(series, "swiftlet_engine_restarts_total") == 1)
        await until_metrics(server, lambda series: total(series, ACCEPTED) > total(killed, ACCEPTED) + 50)
        series = await scrape(server.port)
        server.stop()
        status = await asyncio.to_thread(server.wait)
        stopped.set()
        await loading

    assert (status, tally.lost) == (0, [])
    assert 100 < total(series, FINISHED, outcome="answered") <= tally.answered
    assert f"{tally.answered} answered, 0 failed, 0 cancelled" in server.stderr


@pytest.mark.exhaustive
async def test_endless_requests_get_a_503_when_the_server_stops_waiting(artifact_dir):
    with serving(
        artifact_dir, *TWO, "--shutdown-timeout-s", "1", "--timeout-ms", "600000", code=NEVER_ANSWERS
    ) as server:
        asking = [asyncio.ensure_future(ask(server.port)) for _ in range(8)]
        await until_metrics(server, lambda series: total(series, IN_FLIGHT) == 8)
        server.stop()
        answers, status = await asyncio.gather(*asking), await asyncio.to_thread(server.wait)

    assert {(one.status, json.loads(one.body)["code"]) for one in answers} == {(503, "draining")}
    assert status == 0
    assert "Traceback" not in server.stderr


@pytest.mark.exhaustive
async def test_sighup_changes_the_keys_of_all_fronts(artifact_dir, tmp_path):
    (old, old_line), (new, new_line) = make_key("old"), make_key("new")
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(f"{old_line}\n")

    async def statuses(key):
        return {one.status for one in await ask_all(server, headers=[f"X-API-Key: {key}"])}

    with serving(artifact_dir, *TWO, "--api-keys-file", str(file)) as server:
        before = await statuses(old), await statuses(new)
        file.write_text(f"{new_line}\n")
        server.stop(signal.SIGHUP)
        while await statuses(new) != {200}:
            await asyncio.sleep(0)
        before, after = before, await statuses(old)

    assert before == ({200}, {401})
    assert after == {401}


def test_server_whose_fronts_cannot_start_says_so_and_ends(artifact_dir):
    start = f"{NO_FRONTS}\nfrom swiftlet_serve.cli.main import main\nmain()"
    command = [sys.executable, "-c", start, "serve", "--port", "0", "--engine", "echo", "--fronts", "2"]
    command += ["--models", str(artifact_dir / "tiny-classify")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "Error: A front process ended before it was ready." in ended.stderr


def test_second_server_on_the_port_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SetupError, match="Cannot listen on 127"):
        bind_public(Settings(fronts=2, port=taken.getsockname()[1]))
