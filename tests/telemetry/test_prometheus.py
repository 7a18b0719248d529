"""The metrics that a server reports."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics import parser as openmetrics
from starlette.testclient import TestClient

from swiftlet_serve import build_info
from swiftlet_serve.errors import Unavailable, deadline_exceeded
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry import prometheus
from swiftlet_serve.telemetry.request_record import STAGES
from swiftlet_serve.telemetry.tracing import Tracer
from tests.support.apps import admin_app, make_runtime
from tests.support.gated_runtime import make_gated_runtime
from tests.support.metrics import ACCEPTED, FINISHED, REFUSED, parse, scrape, total
from tests.support.processes import ask, serving


def test_metrics_describe_a_batch_its_padding_and_all_stages(artifact_dir):
    """Two sequences of different lengths run on an engine that pads."""
    models = str(artifact_dir / "tiny-classify"), str(artifact_dir / "tiny-qa")
    settings = Settings(models=models, engine="onnx_cpu", cores=1)
    with TestClient(create_app(LocalRuntime.load(settings))) as client:
        assert client.post("/classify", json={"inputs": ["ab", "abcdef"]}).status_code == 200
        assert client.post("/classify", json={"inputs": ""}).status_code == 422
        series = parse(client.get("/metrics").text)

    labels = {"task": "classify", "model": "tiny-classify"}
    sequences = total(series, "swiftlet_batch_size_sum", **labels)
    batches = total(series, "swiftlet_batch_size_count", **labels)
    assert (sequences, total(series, "swiftlet_batch_tokens_sum", **labels)) == (2, 4 + 8)
    assert total(series, "swiftlet_padding_tokens_total", **labels) == (4 if batches == 1 else 0)
    stage_duration = "swiftlet_request_stage_duration_seconds"
    for stage in STAGES:
        assert total(series, f"{stage_duration}_count", stage=stage, **labels) == 1, stage
    duration = total(series, "swiftlet_request_duration_seconds_sum", outcome="answered", **labels)
    assert 0 < sum(total(series, f"{stage_duration}_sum", stage=stage, **labels) for stage in STAGES) <= duration
    assert total(series, "swiftlet_request_duration_seconds_bucket", le="+Inf", outcome="answered", **labels) == 1
    assert total(series, REFUSED, reason="empty_input") == 1
    info = {"architecture": "table", "precision": "fp32", "engine": "onnx_cpu", "version": "1"}
    assert total(series, "swiftlet_model_info", **info) == 2
    assert total(series, "swiftlet_engine_ready") == 1
    assert total(series, ACCEPTED, model="tiny-qa") == 0


@pytest.fixture(scope="module")
def server(artifact_dir):
    with serving(artifact_dir) as process:
        yield process


async def test_clients_cannot_create_series(server):
    """Random paths, methods, models, ids and keys leave the set of series as it was."""
    draw = random.Random(7)

    def word() -> str:
        return "".join(draw.choices("abcdefghij", k=draw.randrange(1, 30)))

    before = await scrape(server.port)
    for _ in range(300):
        headers = [f"X-Request-Id: {word()}", f"X-API-Key: {word()}", f"{word()}: {word()}"]
        body = json.dumps({"inputs": word(), draw.choice(["model", word()]): word()}).encode()
        method = draw.choice(["POST", "GET", word().upper()])
        await ask(server.port, draw.choice(["/classify", f"/{word()}"]), body, headers, method)
    before, after = before.keys(), (await scrape(server.port)).keys()

    late = "swiftlet_http_responses_total"  # its series do not exist from the start
    responses = [dict(labels) for name, labels in after if name == late]
    assert {one["route"] for one in responses} == {"/classify", "/metrics", "-"}
    assert {one["status"] for one in responses} <= {"200", "404", "405", "422"}
    assert len(before) > 200
    assert {key for key in after if key[0] != late} == {key for key in before if key[0] != late}


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html, q, ;;q=x,,", "text/plain"),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "application/openmetrics-text"),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
         "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5",
         "application/openmetrics-text"),
        ("text/plain;q=0.2,application/openmetrics-text;q=0.1", "text/plain"),
        ("text/plain;q=0.2,application/openmetrics-text;q=²".encode("latin-1"), "text/plain"),
    ],
)  # fmt: skip
def test_format_is_the_one_that_the_scraper_prefers(artifact_dir, accept, media_type):
    """Prometheus sends the second and third last headers, the latter if it reads native histograms."""
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        response = client.get("/metrics", headers={"accept": accept})

    assert response.headers["content-type"].split(";")[0] == media_type
    assert response.headers["vary"] == "Accept, Accept-Encoding"


def test_scrape_is_compressed_if_the_scraper_can_read_it(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        plain = client.get("/metrics", headers={"accept-encoding": "identity"})
        packed = client.get("/metrics", headers={"accept-encoding": "gzip"})
        refused = client.get("/metrics", headers={"accept-encoding": "gzip;q=0, identity"})

    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in refused.headers
    assert int(packed.headers["content-length"]) < len(plain.content) / 8
    assert {name for name, _ in parse(packed.text)} >= {name for name, _ in parse(plain.text)}


def test_openmetrics_has_the_traces_of_slow_and_fast_responses(artifact_dir):
    tracer = Tracer(SimpleSpanProcessor(InMemorySpanExporter()), "1")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    with TestClient(create_app(make_runtime(artifact_dir), observers=[tracer.trace_request])) as client:
        assert client.post("/classify", json={"inputs": "ab"}, headers=headers).status_code == 200
        text = client.get("/metrics", headers={"accept": "application/openmetrics-text"}).text

    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    found = [one.exemplar for one in families["swiftlet_request_duration_seconds"].samples if one.exemplar]
    assert [one.labels for one in found] == [{"trace_id": trace_id}]
    assert found[0].value > 0


async def test_build_connections_and_workers_are_described(artifact_dir):
    with serving(artifact_dir, "--admin-port", "0") as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert (await ask(server.port, "/classify")).status == 200
        series = await scrape(server.admin_port)
        writer.close()

    assert total(series, "swiftlet_build_info", version=build_info.version(), revision=build_info.revision()) == 1
    assert total(series, "swiftlet_connections") >= 1
    assert total(series, "swiftlet_http_responses_total", route="/classify", status="200") == 1
    assert total(series, "swiftlet_worker_resident_memory_bytes", worker="serving") > 10e6
    assert total(series, "swiftlet_worker_cpu_seconds_total", worker="serving") > 0
    assert total(series, "swiftlet_event_loop_lag_seconds") >= 0


def test_shed_bulk_requests_are_counted_separately(artifact_dir, monkeypatch):
    def refuse(*_, **__):
        raise Unavailable("overloaded", "Too much waits.", retry_after=1.0)

    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    monkeypatch.setattr(runtime.admission, "reserve", refuse)
    with TestClient(create_app(runtime)) as client:
        for priority, status in (("bulk", 503), ("interactive", 503), ("bulk", 503), ("never", 422)):
            response = client.post("/classify", json={"inputs": "ab"}, headers={"X-Request-Priority": priority})
            assert response.status_code == status
        series = parse(client.get("/metrics").text)

    assert total(series, REFUSED, reason="overloaded") == 3
    assert total(series, "swiftlet_bulk_requests_shed_total") == 2


def test_unmet_deadlines_are_counted_by_requested_timeout(artifact_dir, monkeypatch):
    """Requests with the default timeout and shed bulk requests do not count."""
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    errors = [Unavailable("overloaded", "Too much waits.", retry_after=1.0), deadline_exceeded()]
    short, long, bulk = ["50", "interactive"], ["2000", "interactive"], ["20", "bulk"]

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(runtime.admission, "reserve", refuse)
    with TestClient(create_app(runtime)) as client:
        for error in errors:
            assert client.post("/classify", json={"inputs": "ab"}).status_code == error.status
            for values in (short, long, bulk):
                headers = dict(zip(("X-Request-Timeout-Ms", "X-Request-Priority"), values, strict=True))
                assert client.post("/classify", json={"inputs": "ab"}, headers=headers).status_code == error.status
        series = parse(client.get("/metrics").text)

    name = "swiftlet_unmet_deadline_seconds"
    assert total(series, f"{name}_bucket", reason="overloaded", le="0.05") == 1
    assert total(series, f"{name}_count", reason="overloaded") == 2
    assert total(series, f"{name}_bucket", reason="deadline_exceeded", le="0.05") == 2
    assert total(series, f"{name}_count", reason="deadline_exceeded") == 3
    assert total(series, "swiftlet_deadline_exceeded_total") == 4


async def test_snapshot_describes_the_queue(artifact_dir):
    """A call occupies the only core while three requests are queued."""

    runtime, engine = make_gated_runtime(artifact_dir)
    await runtime.open()
    pipeline = runtime.pipelines["tiny-classify"]
    body = pipeline.model.task.Request(inputs="abc")
    deadline = asyncio.get_running_loop().time() + 1e6
    first = asyncio.ensure_future(pipeline.answer(body, deadline))
    call = await engine.called()
    others = [asyncio.ensure_future(pipeline.answer(body, deadline)) for _ in range(3)]
    while (queue := (await runtime.snapshot()).queue).sequences < 3:
        await asyncio.sleep(0)
    first.cancel()
    call.finish()
    for one in others:
        one.cancel()
    await runtime.close()

    assert (queue.sequences, queue.tokens, queue.running_batches) == (3, 3 * 5, 1)
    assert queue.oldest_age_s > 0
    assert queue.wait_s > 0
    assert queue.busy_s >= queue.oldest_age_s  # includes the batch that is still running


def test_scrape_fails_in_time_if_the_event_loop_is_blocked(artifact_dir, monkeypatch):
    """The admin port responds with 503, which Prometheus takes for a server that is down."""
    monkeypatch.setattr(prometheus, "SNAPSHOT_TIMEOUT_S", 0.05)
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime)), TestClient(admin_app(runtime)) as admin:
        unblock = threading.Event()
        assert admin.get("/metrics").status_code == 200
        runtime.loop.call_soon_threadsafe(unblock.wait)
        response = admin.get("/metrics")
        unblock.set()

        assert (response.status_code, response.json()["code"]) == (503, "overloaded")
        monkeypatch.undo()
        assert admin.get("/metrics").status_code == 200


async def test_malformed_requests_are_counted_as_refused(server):
    """The application never sees these requests."""
    before = await scrape(server.port)
    for bad in (b"GET / HTTP/1.1\r\n\r\n", b"nonsense\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(bad)
        await reader.read()
        writer.close()
    series = await scrape(server.port)

    assert total(series, REFUSED, reason="bad_framing") - total(before, REFUSED, reason="bad_framing") == 2


def test_servers_that_share_a_port_count_separately_on_their_admin_ports(artifact_dir):
    """The sum over the servers is what the clients saw."""
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
    assert min(counts) > 0  # the kernel distributes connections
