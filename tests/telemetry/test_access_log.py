"""The access log, and observers of requests in general."""

from __future__ import annotations

import re

from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry import access_log
from swiftlet_serve.telemetry.request_record import STAGES, RequestRecord


def test_access_log_has_id_trace_counts_and_durations_of_a_request(artifact_dir, caplog):
    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"X-Request-Id": "mine-1", "traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    logger = access_log.__name__
    with (
        TestClient(create_app(runtime, observers=[access_log.log_request])) as client,
        caplog.at_level("INFO", logger),
    ):
        response = client.post("/classify", json={"inputs": "fine"}, headers=headers)
        client.get("/nowhere")
        client.get("/classify")
    answered, unknown, wrong_method = [record.fields for record in caplog.records if record.name == logger]

    assert response.headers["x-request-id"] == answered["request_id"] == "mine-1"
    assert (answered["trace_id"], answered["method"], answered["route"]) == (trace, "POST", "/classify")
    assert answered["status"] == 200
    assert (answered["model"], answered["sequences"], answered["batch_size"]) == ("tiny-classify", 1, 1)
    assert (answered["characters"], answered["bytes"]) == (4, 17)
    assert {f"{stage}_ms" for stage in STAGES} <= answered.keys()
    assert (unknown["route"], unknown["status"], unknown["code"]) == ("-", 404, "unknown_route")
    assert (wrong_method["route"], wrong_method["status"]) == ("/classify", 405)
    assert wrong_method["code"] == "method_not_allowed"


def test_observer_that_raises_does_not_fail_the_request(artifact_dir, caplog):
    secret = "xyzzyplugh"  # a text that must not be logged

    def fail(_: RequestRecord) -> None:
        raise RuntimeError(secret)

    runtime = LocalRuntime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo"))
    with TestClient(create_app(runtime, observers=[fail])) as client:
        assert client.post("/classify", json={"inputs": "fine"}).status_code == 200

    assert re.search(r"an observer of request \w+ failed: RuntimeError", caplog.text)
    assert secret not in caplog.text
