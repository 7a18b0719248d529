"""What the server says of itself: stats that balance, metrics, logs and traces, and no user's text in any of them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from swiftlet_serve.service.errors import Unavailable, deadline_exceeded
from swiftlet_serve.service.http.app import create_admin, create_app
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry import access_log, log_format, prometheus, request_stats
from swiftlet_serve.service.telemetry.request_record import STAGES, RequestRecord, ran, recording
from swiftlet_serve.service.telemetry.request_stats import ENDINGS, Histogram, RequestStats
from swiftlet_serve.service.telemetry.tracing import Tracer
from swiftlet_serve.service.workers.executor import HostedModel
from tests.support.engines import TEST_ENGINES
from tests.support.fakes import PATIENCE_S, GatedEngine
from tests.support.processes import Process, ask, read_response, request, serving

CANARY = "xyzzyplugh"
MODELS = ("tiny-classify", "tiny-qa")
ACCEPTED, FINISHED, FLYING = (
    "swiftlet_requests_accepted_total",
    "swiftlet_requests_finished_total",
    "swiftlet_requests_in_flight",
)

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Series:
    """Every sample, by its name and its labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(series: Series, name: str, **labels: str) -> float:
    """The sum of all samples of that name with these labels."""
    return sum(value for (one, own), value in series.items() if one == name and labels.items() <= set(own))


def imbalance(series: Series) -> dict[str, float]:
    """For each model, accepted less all that became of it."""
    return {
        model: total(series, ACCEPTED, model=model)
        - total(series, FINISHED, model=model)
        - total(series, FLYING, model=model)
        for model in MODELS
    }


async def scrape(port: int) -> Series:
    response = await ask(port, "/metrics", None)
    assert response.status == 200
    return read(response.body.decode())


# RequestStats


@given(st.lists(st.floats(0, 20), max_size=50))
def test_a_histogram_counts_each_value_once_in_the_first_bucket_that_holds_it(values):
    histogram = Histogram(request_stats.REQUEST_S)
    for value in values:
        histogram.add(value)

    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))
    for at, bound in enumerate(histogram.bounds):
        assert sum(histogram.counts[: at + 1]) == sum(value <= bound for value in values)


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "accept", "end"]), st.integers(0, 9), st.integers(0, 5)))
FATES = [(200, ""), (422, "answer_too_large"), (500, "internal"), (503, "draining"), (504, "deadline_exceeded")]


@given(STEPS)
def test_the_books_balance_whatever_happens_in_whatever_order(steps):
    kept, open_, begun, ended = RequestStats({"a": "classify", "b": "qa"}), [], 0, 0
    for what, which, how in steps:
        record = open_[which % len(open_)] if open_ else None
        if what == "begin" or record is None:
            begun += 1
            open_.append(RequestRecord(model="ab"[which % 2], on_accept=kept.accept))
        elif what == "accept" and not record.accepted:
            record.accept(1, 4)
        elif what == "end":
            record.status, record.code = [*FATES, (None, "")][how]
            if not record.accepted and record.status == 200:
                continue  # nothing is answered that was not accepted
            kept.finish(record)
            open_.remove(record)
            ended += 1
        for model, account in kept.accounts.items():
            waiting = sum(one.accepted and one.model == model for one in open_)
            assert account.in_flight == waiting
            assert account.accepted == account.in_flight + sum(account.seconds[one].count for one in ENDINGS)
    assert sum(kept.refusals.values()) + sum(one.accepted - one.in_flight for one in kept.accounts.values()) == ended


def test_a_copy_of_the_books_stays_as_it_is():
    kept = RequestStats({"a": "classify"})
    record = RequestRecord(model="a", on_accept=kept.accept)
    record.accept(1, 4)
    copy = kept.copy()
    record.status = 200
    record.note("infer", 1.0, 2.0)
    kept.finish(record)
    kept.refuse("overloaded")
    kept.ran("a", 2, 8, 1)

    account = copy.accounts["a"]
    assert (account.accepted, account.in_flight, account.padding, copy.refusals) == (1, 1, 0, {})
    assert account.seconds["answered"].count == account.stages["infer"].count == account.rows.count == 0
    assert kept.accounts["a"].stages["infer"].sum == 1.0


def test_of_several_encodings_the_slowest_counts():
    with recording(RequestRecord()) as record:
        record.note("infer", 0.0, 2.0)
        record.note("infer", 5.0, 6.0)

    assert record.stages["infer"].seconds == 2.0


def test_of_several_batches_the_largest_counts():
    with recording(RequestRecord()) as record:
        for rows in (2, 5, 3):
            ran(rows)

    assert record.batch_rows == 5


def test_a_request_is_told_of_its_batch_neighbours_included(artifact_dir):
    """One core, held by a call: what waits behind it runs together, and each learns with how many."""

    async def scenario():
        runtime, engine = gated(artifact_dir)
        await runtime.open()
        pipeline = runtime.pipelines["tiny-classify"]
        far = asyncio.get_running_loop().time() + 1e6

        async def answer(inputs):
            with recording(RequestRecord()) as record:
                await pipeline.answer(pipeline.model.task.Request(inputs=inputs), far)
            return record

        requests = [asyncio.ensure_future(answer("abc"))]
        calls = [await engine.called()]
        requests += [asyncio.ensure_future(answer(inputs)) for inputs in ("abc", ["abd", "abe"])]
        while (await runtime.snapshot()).queue.rows < 3:
            await asyncio.sleep(0)
        calls[0].finish([np.zeros((1, 3), np.float32)])
        calls.append(await engine.called())
        calls[1].finish([np.zeros((1, 3), np.float32)] * 3)
        records = await asyncio.gather(*requests)
        await runtime.close()
        return [(record.rows, record.batch_rows) for record in records]

    assert asyncio.run(scenario()) == [(1, 1), (1, 3), (2, 3)]


# Metrics


def gated(artifact_dir: Path) -> tuple[Runtime, GatedEngine]:
    """A runtime with one core, whose engine answers when told to."""
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo", cores=1))
    engine = GatedEngine()
    runtime._executor._models["tiny-classify"] = HostedModel(engine, 3)
    return runtime, engine


class Load:
    """Clients that do all that clients do; what they were answered is counted."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self.statuses: Counter[int] = Counter()
        self.sent = 0
        self.gone = 0

    async def one(self) -> None:
        kind = self._random.choice(["good", "good", "good", "late", "wrong", "gone", "nowhere"])
        text = {"inputs": CANARY * self._random.randrange(1, 5)}
        headers = ["X-Request-Timeout-Ms: 3"] if kind == "late" else []
        body = b"{" if kind == "wrong" else json.dumps(text).encode()
        self.sent += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(request("/nowhere" if kind == "nowhere" else "/classify", body, headers))
            if kind == "gone":
                self.gone += 1
                await asyncio.sleep(self._random.random() / 50)
                writer.transport.abort()
                return
            self.statuses[(await asyncio.wait_for(read_response(reader), PATIENCE_S)).status] += 1
            writer.close()

    async def go_on(self, stopped: asyncio.Event) -> None:
        while not stopped.is_set():
            await self.one()


def test_the_books_balance_at_every_scrape_under_load_cancels_and_faults(artifact_dir, tmp_path):
    """Clients hang up, bring nonsense and are in a hurry; the engine fails, is slow and is killed."""
    (tmp_path / "tiny-classify").symlink_to(artifact_dir / "tiny-classify", target_is_directory=True)
    (tmp_path / "tiny-qa").symlink_to(artifact_dir / "tiny-qa", target_is_directory=True)
    (tmp_path / "slow").write_text("0.002")

    async def scenario(server: Process):
        stopped, loads = asyncio.Event(), [Load(server.port, seed) for seed in range(12)]
        running = [asyncio.ensure_future(one.go_on(stopped)) for one in loads]
        scrapes, flying = [], 0.0
        for turn in range(60):
            series = await scrape(server.admin_port)
            scrapes.append(imbalance(series))
            flying = max(flying, total(series, FLYING))
            if turn == 20:
                (tmp_path / "broken").touch()
            if turn == 24:
                (tmp_path / "broken").unlink()
            if turn == 40:
                for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
                    for pid in children.read_text().split():
                        os.kill(int(pid), signal.SIGKILL)
            await asyncio.sleep(0.03)
        stopped.set()
        await asyncio.gather(*running)
        async with asyncio.timeout(PATIENCE_S):
            while total(series := await scrape(server.admin_port), FLYING):
                await asyncio.sleep(0.05)
        return loads, scrapes, flying, series

    models = ",".join(str(tmp_path / name) for name in MODELS)
    options = ("--engine", "switchable", "--models", models, "--cores", "2", "--admin-port", "0")
    with serving(artifact_dir, *options, code=TEST_ENGINES) as server:
        loads, scrapes, flying, series = asyncio.run(scenario(server))

    assert all(off == dict.fromkeys(MODELS, 0) for off in scrapes)
    assert imbalance(series) == dict.fromkeys(MODELS, 0)
    assert flying > 1
    answers = sum((one.statuses for one in loads), Counter())
    codes = "invalid_json", "unknown_route"
    refused = {code: total(series, "swiftlet_requests_refused_total", reason=code) for code in codes}
    answered = total(series, FINISHED, outcome="answered")
    assert 50 < answers[200] <= answered <= answers[200] + sum(one.gone for one in loads)
    assert total(series, FINISHED, outcome="cancelled") > 0
    assert total(series, FINISHED, outcome="failed") > 0
    assert refused["invalid_json"] == answers[400] > 0
    assert refused["unknown_route"] == answers[404] > 0
    assert total(series, "swiftlet_deadline_exceeded_total") == answers[504]
    assert total(series, "swiftlet_engine_restarts_total") > 0
    # Whoever aborted before the server read the request is all that may be missing.
    known = total(series, ACCEPTED) + total(series, "swiftlet_requests_refused_total")
    assert sum(answers.values()) <= known <= sum(one.sent for one in loads)


def test_no_client_can_make_a_series(artifact_dir):
    """Random paths, methods, models, ids, hosts and keys: the set of series is what it was before the first of them."""
    draw = random.Random(7)

    def word() -> str:
        return "".join(draw.choices("abcdefghij", k=draw.randrange(1, 30)))

    async def scenario(server: Process):
        before = await scrape(server.port)
        for _ in range(300):
            headers = [f"X-Request-Id: {word()}", f"X-API-Key: {word()}", f"{word()}: {word()}"]
            body = json.dumps({"inputs": word(), draw.choice(["model", word()]): word()}).encode()
            method = draw.choice(["POST", "GET", word().upper()])
            await ask(server.port, draw.choice(["/classify", f"/{word()}"]), body, headers, method)
        return before.keys(), (await scrape(server.port)).keys()

    with serving(artifact_dir) as server:
        before, after = asyncio.run(scenario(server))

    assert after == before
    assert len(before) > 200


def test_metrics_say_what_was_done(artifact_dir):
    """A call with two rows of different lengths to an engine that pads: rows, tokens, padding, and all stages."""
    settings = Settings(
        models=(str(artifact_dir / "tiny-classify"), str(artifact_dir / "tiny-qa")), engine="onnx_cpu", cores=1
    )
    with TestClient(create_app(Runtime.load(settings))) as client:
        assert client.post("/classify", json={"inputs": ["ab", "abcdef"]}).status_code == 200
        assert client.post("/classify", json={"inputs": ""}).status_code == 422
        series = read(client.get("/metrics").text)

    one = {"task": "classify", "model": "tiny-classify"}
    rows = total(series, "swiftlet_batch_size_sum", **one)
    calls = total(series, "swiftlet_batch_size_count", **one)
    assert (rows, total(series, "swiftlet_batch_tokens_sum", **one)) == (2, 4 + 8)
    assert total(series, "swiftlet_padding_tokens_total", **one) == (4 if calls == 1 else 0)
    for stage in STAGES:
        assert total(series, "swiftlet_request_stage_duration_seconds_count", stage=stage, **one) == 1, stage
    seconds = total(series, "swiftlet_request_duration_seconds_sum", outcome="answered", **one)
    assert (
        0
        < sum(total(series, "swiftlet_request_stage_duration_seconds_sum", stage=stage, **one) for stage in STAGES)
        <= seconds
    )
    assert total(series, "swiftlet_request_duration_seconds_bucket", le="+Inf", outcome="answered", **one) == 1
    assert total(series, "swiftlet_requests_refused_total", reason="empty_input") == 1
    info = {"architecture": "table", "precision": "fp32", "engine": "onnx_cpu", "version": "1"}
    assert total(series, "swiftlet_model_info", **info) == 2
    assert total(series, "swiftlet_engine_ready") == 1
    assert total(series, ACCEPTED, model="tiny-qa") == 0


def test_what_can_wait_and_is_refused_for_want_of_room_is_told_apart(artifact_dir, monkeypatch):
    def full(*_, **__):
        raise Unavailable("overloaded", "Too much waits.", retry_after=1.0)

    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    monkeypatch.setattr(runtime, "expect", full)
    with TestClient(create_app(runtime)) as client:
        for priority, status in (("bulk", 503), ("interactive", 503), ("bulk", 503), ("never", 422)):
            answer = client.post("/classify", json={"inputs": "ab"}, headers={"X-Request-Priority": priority})
            assert answer.status_code == status
        series = read(client.get("/metrics").text)

    assert total(series, "swiftlet_requests_refused_total", reason="overloaded") == 3
    assert total(series, "swiftlet_bulk_requests_shed_total") == 2


def test_deadlines_that_were_not_met_are_told_apart_by_how_long_they_were(artifact_dir, monkeypatch):
    """Whoever brings none has the server's; and what can wait and is shed is told elsewhere."""
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    errors = [Unavailable("overloaded", "Too much waits.", retry_after=1.0), deadline_exceeded()]
    short, long, bulk = ["50", "interactive"], ["2000", "interactive"], ["20", "bulk"]

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(runtime, "expect", refuse)
    with TestClient(create_app(runtime)) as client:
        for error in errors:
            assert client.post("/classify", json={"inputs": "ab"}).status_code == error.status
            for told in (short, long, bulk):
                headers = dict(zip(("X-Request-Timeout-Ms", "X-Request-Priority"), told, strict=True))
                assert client.post("/classify", json={"inputs": "ab"}, headers=headers).status_code == error.status
        series = read(client.get("/metrics").text)

    name = "swiftlet_unmet_deadline_seconds"
    assert total(series, f"{name}_bucket", reason="overloaded", le="0.05") == 1
    assert total(series, f"{name}_count", reason="overloaded") == 2
    assert total(series, f"{name}_bucket", reason="deadline_exceeded", le="0.05") == 2
    assert total(series, f"{name}_count", reason="deadline_exceeded") == 3
    assert total(series, "swiftlet_deadline_exceeded_total") == 4


def test_a_deadline_that_was_missed_counts_whether_or_not_the_request_was_accepted():
    kept = RequestStats({"a": "classify"})
    for accepted in (True, False):
        record = RequestRecord(model="a", on_accept=kept.accept, allowed_s=0.02, status=504, code="deadline_exceeded")
        if accepted:
            record.accept(1, 4)
        kept.finish(record)

    assert kept.unmet["deadline_exceeded"].count == kept.late == 2
    assert kept.copy().unmet["deadline_exceeded"].count == 2


def test_the_queue_is_seen_while_it_is_there(artifact_dir):
    """One core, held by a call: what waits behind it has rows, tokens, an age and a wait."""

    async def scenario():
        runtime, engine = gated(artifact_dir)
        await runtime.open()
        pipeline, body = (
            runtime.pipelines["tiny-classify"],
            runtime.pipelines["tiny-classify"].model.task.Request(inputs="abc"),
        )
        far = asyncio.get_running_loop().time() + 1e6
        first = asyncio.ensure_future(pipeline.answer(body, far))
        call = await engine.called()
        others = [asyncio.ensure_future(pipeline.answer(body, far)) for _ in range(3)]
        while (seen := (await runtime.snapshot()).queue).rows < 3:
            await asyncio.sleep(0)
        first.cancel()
        call.finish()
        for one in others:
            one.cancel()
        await runtime.close()
        return seen

    seen = asyncio.run(scenario())

    assert (seen.rows, seen.tokens, seen.running) == (3, 3 * 5, 1)
    assert seen.age_s > 0
    assert seen.wait_s > 0
    assert seen.busy_s >= seen.age_s  # the call that runs counts before it has ended


def test_a_scrape_of_a_server_whose_loop_is_blocked_says_so_in_time(artifact_dir, monkeypatch):
    """The own port answers all the same; Prometheus takes the 503 for a server that is down."""
    monkeypatch.setattr(prometheus, "PATIENCE_S", 0.05)
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime)), TestClient(create_admin(runtime)) as own:
        free = threading.Event()
        assert own.get("/metrics").status_code == 200
        runtime.loop.call_soon_threadsafe(free.wait)
        blocked = own.get("/metrics")
        free.set()

        assert (blocked.status_code, blocked.json()["code"]) == (503, "overloaded")
        monkeypatch.undo()
        assert own.get("/metrics").status_code == 200


def test_requests_that_the_application_never_sees_are_counted(artifact_dir):
    async def scenario(server: Process):
        for bad in (b"GET / HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(bad)
            await reader.read()
            writer.close()
        return await scrape(server.port)

    with serving(artifact_dir) as server:
        series = asyncio.run(scenario(server))

    assert total(series, "swiftlet_requests_refused_total", reason="bad_framing") == 2


def test_servers_on_one_port_each_have_their_own_books_on_their_own_port(artifact_dir):
    """Their sums are what the clients saw, which is how Prometheus puts several servers together."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = ("--reuse-port", "true", "--port", port, "--admin-port", "0")

    async def scenario(servers):
        for _ in range(60):
            assert (await ask(int(port))).status == 200
        return [await scrape(server.admin_port) for server in servers]

    with serving(artifact_dir, *shared) as one, serving(artifact_dir, *shared) as other:
        both = asyncio.run(scenario([one, other]))

    counts = [total(series, FINISHED, outcome="answered") for series in both]
    assert sum(counts) == 60
    assert min(counts) > 0  # the kernel shares out connections


def test_whoever_shares_a_port_without_an_own_one_is_warned(artifact_dir):
    with serving(artifact_dir, "--reuse-port", "true") as server:
        server.stop()
        server.wait()

    assert "/metrics is that of one of the servers" in server.complaints


# No text


SECRETS = {
    "body": json.dumps({"inputs": f"a film about {CANARY}"}).encode(),
    "not JSON": f'{{"inputs": {CANARY}'.encode(),
    "field": json.dumps({CANARY: "x", "inputs": "y"}).encode(),
    "type": json.dumps({"inputs": {CANARY: CANARY}}).encode(),
    "model": json.dumps({"inputs": "x", "model": CANARY}).encode(),
    "parameter": json.dumps({"inputs": "x", "parameters": {"function_to_apply": CANARY}}).encode(),
}
PLACES = [
    *((("/classify", body), {}) for body in SECRETS.values()),
    ((f"/{CANARY}?{CANARY}={CANARY}", None), {}),
    (("/classify", SECRETS["body"]), {"method": CANARY.upper()}),
    (("/classify", SECRETS["body"]), {"headers": [f"Authorization: Bearer {CANARY}", f"Cookie: {CANARY}"]}),
    (("/classify", SECRETS["body"]), {"headers": [f"Content-Type: {CANARY}", f"X-Request-Id: {CANARY} {CANARY}"]}),
    (("/classify", SECRETS["body"]), {"headers": [f"traceparent: 00-{CANARY}", f"X-Request-Timeout-Ms: {CANARY}"]}),
    (("/classify", SECRETS["body"]), {"headers": ["X-Request-Timeout-Ms: 1"]}),
]


@pytest.mark.parametrize("kind", ["text", "json"])
def test_no_text_of_a_request_gets_into_logs_errors_metrics_or_traces(kind, artifact_dir, tmp_path):
    """At the level debug, with the access log on, an engine that fails, and traces sent to a collector."""
    (tmp_path / "tiny-classify").symlink_to(artifact_dir / "tiny-classify", target_is_directory=True)
    posted: list[bytes] = []

    async def collect(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
        posted.append(await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async def scenario():
        collector = await asyncio.start_server(collect, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{collector.sockets[0].getsockname()[1]}/v1/traces"
        options = ("--engine", "switchable", "--models", str(tmp_path / "tiny-classify"), "--log-level", "debug")
        options += ("--access-log", "true", "--log-format", kind, "--traces-endpoint", endpoint)
        with serving(artifact_dir, *options, code=TEST_ENGINES) as server:
            said = b""
            for mood in ("", "broken"):
                if mood:
                    (tmp_path / mood).touch()
                for args, kwargs in PLACES:
                    response = await ask(server.port, *args, **kwargs)
                    said += response.body + repr(response.headers).encode()
            said += (await ask(server.port, "/metrics", None)).body
            server.stop()
            await asyncio.to_thread(server.wait)
        collector.close()
        return said.decode(), server.complaints

    said, log = asyncio.run(asyncio.wait_for(scenario(), 4 * PATIENCE_S))
    traces = b"".join(posted).decode("latin-1")

    assert "failed on one encoding" in log
    assert "POST" in log
    assert b"infer" in b"".join(posted)
    for where in (said, log, traces):
        assert CANARY not in where.lower()
    if kind == "json":
        told = [json.loads(line) for line in log.splitlines()]
        assert {"time", "level", "logger"} <= set.intersection(*map(set, told))


# Logs


def formatted(kind: str, message: str, fields: dict | None = None) -> str:
    record = logging.LogRecord("service.x", logging.ERROR, "", 0, message, (), None)
    if fields is not None:
        record.fields = fields
    return log_format.formatter(kind).format(record)


@given(st.text(max_size=200))
def test_one_event_is_one_line_of_json_whatever_it_holds(message):
    line = formatted("json", message.replace("%", ""))

    assert len(line.splitlines()) == 1
    assert json.loads(line)["message"] == message.replace("%", "")
    assert "\x1b" not in line


def test_a_line_is_no_longer_than_a_message_may_be():
    assert len(formatted("json", "x" * 1_000_000)) < log_format.MOST + 200


def test_a_request_is_logged_with_its_id_and_its_times(artifact_dir, caplog):
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"X-Request-Id": "mine-1", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    with (
        TestClient(create_app(runtime, observers=[access_log.note])) as client,
        caplog.at_level("INFO", "swiftlet_serve.service.telemetry.access_log"),
    ):
        response = client.post("/classify", json={"inputs": "fine"}, headers=headers)
        client.get("/nowhere")
        client.get("/classify")
    one, nowhere, other = [
        record.fields for record in caplog.records if record.name == "swiftlet_serve.service.telemetry.access_log"
    ]

    assert response.headers["x-request-id"] == one["request_id"] == "mine-1"
    assert (one["trace_id"], one["method"], one["route"], one["status"]) == (trace, "POST", "/classify", 200)
    assert (one["model"], one["rows"], one["batch_rows"]) == ("tiny-classify", 1, 1)
    assert (one["characters"], one["bytes"]) == (4, 17)
    assert {f"{stage}_ms" for stage in STAGES} <= one.keys()
    assert (nowhere["route"], nowhere["status"], nowhere["code"]) == ("-", 404, "unknown_route")
    assert (other["route"], other["status"], other["code"]) == ("/classify", 405, "method_not_allowed")


def test_what_looks_on_cannot_fail_a_request(artifact_dir, caplog):
    def stumble(_: RequestRecord) -> None:
        raise RuntimeError(CANARY)

    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime, observers=[stumble])) as client:
        assert client.post("/classify", json={"inputs": "fine"}).status_code == 200

    assert "could not be noted: RuntimeError" in caplog.text
    assert CANARY not in caplog.text


# Traces


@pytest.fixture
def traced(artifact_dir):
    """A client, and where the spans of its requests go."""
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter), "1")
    runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime, observers=[tracer.note])) as client:
        yield client, exporter
    tracer.close()


def test_a_request_is_a_span_of_its_callers_trace_with_a_span_for_each_stage(traced):
    client, exporter = traced
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    client.post("/classify", json={"inputs": CANARY}, headers={"traceparent": f"00-{trace}-{parent}-01"})
    client.get("/models")
    *stages, root = exporter.get_finished_spans()

    assert [span.name for span in stages] == list(STAGES)
    assert (root.name, root.kind.name, f"{root.parent.span_id:016x}") == ("POST /classify", "SERVER", parent)
    assert {f"{span.context.trace_id:032x}" for span in (*stages, root)} == {trace}
    assert {span.parent.span_id for span in stages} == {root.context.span_id}
    assert root.attributes["swiftlet.model"] == "tiny-classify"
    assert root.attributes["http.response.status_code"] == 200
    for span in stages:
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time + 1_000
    assert CANARY not in "".join(span.to_json() for span in (*stages, root))


def test_a_request_without_a_trace_begins_one_and_a_failed_one_is_marked(traced, monkeypatch):
    client, exporter = traced
    monkeypatch.setattr("swiftlet_serve.service.partial_results.encode", lambda *_: 1 / 0)
    client.post("/classify", json={"inputs": "x"}, headers={"traceparent": CANARY})
    (*_, root) = exporter.get_finished_spans()

    assert root.parent is None
    assert (root.status.status_code.name, root.attributes["error.type"]) == ("ERROR", "internal")
    assert CANARY not in root.to_json()


WITHOUT = """
import sys
import threading
class Missing:
    def find_spec(self, name, *_):
        if name in ("opentelemetry.sdk", "opentelemetry.exporter"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def test_without_the_extra_traces_that_are_asked_for_end_the_start_in_a_sentence(artifact_dir):
    command = ["serve", "--port", "0", "--engine", "echo", "--models", str(artifact_dir / "tiny-classify")]
    command += ["--traces-endpoint", "http://127.0.0.1:9/v1/traces"]
    code = f"{WITHOUT}\nfrom swiftlet_serve.service.cli import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 1
    assert "pip install 'swiftlet[otel]'" in done.stderr.splitlines()[-1]


def test_without_the_extra_an_endpoint_of_the_environment_is_only_warned_of(artifact_dir, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with serving(artifact_dir, code=WITHOUT) as server:
        assert asyncio.run(ask(server.port)).status == 200
        server.stop()
        server.wait()

    assert "There are none." in server.complaints


def test_without_an_endpoint_the_extra_is_not_even_looked_for(artifact_dir):
    with serving(artifact_dir, code=WITHOUT) as server:
        assert asyncio.run(ask(server.port)).status == 200
        server.stop()

        assert server.wait() == 0
    assert server.complaints == ""


def test_a_collector_that_hangs_does_not_hold_up_the_end(artifact_dir):
    async def scenario(server: Process) -> float:
        await ask(server.port)
        server.stop()
        told = asyncio.get_running_loop().time()
        await asyncio.to_thread(server.wait)
        return asyncio.get_running_loop().time() - told

    with socket.create_server(("127.0.0.1", 0)) as hanging:
        endpoint = f"http://127.0.0.1:{hanging.getsockname()[1]}/v1/traces"
        with serving(artifact_dir, "--traces-endpoint", endpoint) as server:
            took_s = asyncio.run(scenario(server))

    assert took_s < 8  # the exporter would wait for ten seconds
