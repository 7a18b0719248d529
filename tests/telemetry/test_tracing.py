"""OpenTelemetry spans of requests, and start-up without the extra `otel`."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_record import STAGES
from swiftlet_serve.telemetry.tracing import Tracer
from tests.support.fakes import PATIENCE_S
from tests.support.processes import ask, serving

CANARY = "xyzzyplugh"


@pytest.fixture
def traced(artifact_dir):
    """A client, and the exporter that receives the spans of its requests."""
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter), "1")
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime, observers=[tracer.trace_request])) as client:
        yield client, exporter
    tracer.close()


def test_request_has_a_span_in_the_callers_trace_and_one_child_per_stage(traced):
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


def test_failed_request_without_a_parent_starts_a_trace_with_status_error(traced, monkeypatch):
    client, exporter = traced
    monkeypatch.setattr("swiftlet_serve.inference.partial_results.encode", lambda *_: 1 / 0)
    client.post("/classify", json={"inputs": "x"}, headers={"traceparent": CANARY})
    (*_, root) = exporter.get_finished_spans()

    assert root.parent is None
    assert (root.status.status_code.name, root.attributes["error.type"]) == ("ERROR", "internal")
    assert CANARY not in root.to_json()


WITHOUT_EXTRA = """
import sys
import threading
class Missing:
    def find_spec(self, name, *_):
        if name in ("opentelemetry.sdk", "opentelemetry.exporter"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
"""Code that hides the packages of the extra `otel` from a server process."""


def test_setting_an_endpoint_without_the_extra_fails_at_startup(artifact_dir):
    command = ["serve", "--port", "0", "--engine", "echo", "--models", str(artifact_dir / "tiny-classify")]
    command += ["--traces-endpoint", "http://127.0.0.1:9/v1/traces"]
    code = f"{WITHOUT_EXTRA}\nfrom swiftlet_serve.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=PATIENCE_S)

    assert done.returncode == 1
    assert "Run: pip install opentelemetry-exporter-otlp-proto-http==" in done.stderr.splitlines()[-1]


async def test_endpoint_in_the_environment_without_the_extra_is_a_warning(artifact_dir, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with serving(artifact_dir, code=WITHOUT_EXTRA) as server:
        assert (await ask(server.port)).status == 200
        server.stop()
        server.wait()

    assert "Tracing is disabled." in server.stderr


async def test_server_without_an_endpoint_does_not_need_the_extra(artifact_dir):
    with serving(artifact_dir, code=WITHOUT_EXTRA) as server:
        assert (await ask(server.port)).status == 200
        server.stop()

        assert server.wait() == 0
    assert server.warnings == ""


async def test_blocked_collector_does_not_delay_shutdown(artifact_dir):
    with socket.create_server(("127.0.0.1", 0)) as blocked:
        endpoint = f"http://127.0.0.1:{blocked.getsockname()[1]}/v1/traces"
        with serving(artifact_dir, "--traces-endpoint", endpoint) as server:
            await ask(server.port)
            server.stop()
            stopped = asyncio.get_running_loop().time()
            await asyncio.to_thread(server.wait)
            duration_s = asyncio.get_running_loop().time() - stopped

    assert duration_s < 8  # the exporter's own timeout is ten seconds
