"""The endpoints that run a model: response headers, deadlines and disconnects."""

from __future__ import annotations

import asyncio
import json
import re
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.endpoints.model_endpoint import COMPUTE_HEADERS, dump
from swiftlet_serve.scheduling import admission
from swiftlet_serve.telemetry.request_record import STAGES
from tests.support.apps import SECRET, assert_problem, make_gated_runtime, make_runtime
from tests.support.fakes import PATIENCE_S


def test_model_endpoint_answers_the_example_of_its_schema(client, runtime):
    for task, pipeline in runtime.tasks.items():
        example = pipeline.model.task.Request.model_json_schema()["examples"][0]
        response = client.post(f"/{task}", json=example)

        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        stages = ", ".join(rf"{stage};dur=\d+\.\d\d" for stage in STAGES).replace(
            ", infer", ';desc="sequences=1", infer'
        )
        assert re.fullmatch(stages, response.headers["server-timing"])


def test_model_endpoint_sends_the_compute_headers_of_hugging_face_and_tei(client):
    """Clients multiply X-Compute-Time, a float in seconds, and count X-Compute-Characters to compute costs."""
    response = client.post("/qa", json={"inputs": {"question": "wer 하나?", "context": "it was me."}})
    told = {name: response.headers[name] for name in map(str.lower, COMPUTE_HEADERS)}

    assert told["x-compute-type"] == "echo"
    assert told["x-compute-characters"] == str(len("wer 하나?") + len("it was me."))
    assert 10 < int(told["x-compute-tokens"]) < 30
    assert re.fullmatch(r"\d+\.\d{3}", told["x-compute-time"])
    names = "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"
    whole = {name: int(told[name]) for name in names}
    assert abs(whole["x-total-time"] - 1000 * float(told["x-compute-time"])) <= 1
    assert all(0 <= ms <= whole["x-total-time"] + 1 for ms in whole.values())


def test_model_endpoint_responds_in_the_shapes_of_hugging_face(client):
    one = client.post("/classify", json={"inputs": "fine", "parameters": {"top_k": 2}}).json()
    assert [len(labels) for labels in one] == [2]
    answer = client.post("/qa", json={"inputs": {"question": "who?", "context": "it was me."}}).json()
    assert set(answer) == {"score", "start", "end", "answer"}
    tokens = client.post("/fill-mask", json={"inputs": "a [MASK] b"}).json()
    assert [set(token) for token in tokens] == [{"score", "token", "token_str", "sequence"}] * 5


def test_model_endpoint_uses_the_named_model(client):
    assert client.post("/classify", json={"inputs": "fine", "model": "tiny-classify"}).status_code == 200
    for name in ("tiny-qa", SECRET, "../tiny-classify"):
        assert_problem(client.post("/classify", json={"inputs": "fine", "model": name}), 404, "unknown_model")


def test_model_endpoint_responds_at_the_deadline_of_a_slow_engine(artifact_dir):
    runtime, engine = make_gated_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        started = time.monotonic()
        response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-timeout-ms": "1000"})
        took = time.monotonic() - started
        assert_problem(response, 504, "deadline_exceeded")
        engine.calls.get(timeout=PATIENCE_S).finish()

    assert response.json()["retryable"]
    assert 1 <= took < PATIENCE_S / 2


@pytest.mark.parametrize("refused", [True, False])
def test_timeout_that_no_request_can_meet_is_an_error_of_the_client(artifact_dir, monkeypatch, refused):
    """Whether the request is refused because others wait, or admitted and late."""
    runtime, engine = make_gated_runtime(artifact_dir)
    runtime.dispatcher.models["tiny-classify"].latency.learn([3], 60.0)
    if refused:
        monkeypatch.setattr(
            admission, "wait_s", lambda load, priority, model=None, *_, **__: 60.0 * (model is not None)
        )
    with TestClient(create_app(runtime)) as client:
        response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-timeout-ms": "500"})
        problem = assert_problem(response, 504, "deadline_too_short")
        if not refused:
            engine.calls.get(timeout=PATIENCE_S).finish()

    assert not problem["retryable"]
    assert "retry-after" not in response.headers
    least_ms = int(re.search(r"at least (\d+) ms", problem["detail"])[1])
    assert least_ms > 20
    assert runtime.stats.deadline_exceeded == 1


def test_model_endpoint_responds_504_after_a_blocked_event_loop(artifact_dir, monkeypatch):
    """Nothing is awaited before the deadline passes, so no timer can have fired."""
    runtime = make_runtime(artifact_dir)

    async def blocks(*_: object, **__: object) -> list[str]:
        time.sleep(0.05)
        return []

    monkeypatch.setattr(runtime.tasks["classify"], "answer", blocks)
    with TestClient(create_app(runtime)) as client:
        for timeout, status in (("49", 504), ("60000", 200)):
            response = client.post("/classify", json={"inputs": "a"}, headers={"x-request-timeout-ms": timeout})
            assert response.status_code == status


async def test_model_endpoint_cancels_the_work_of_a_disconnected_client(artifact_dir):
    """The test calls the application as a server would. The client disconnects while its request is queued."""
    runtime, engine = make_gated_runtime(artifact_dir)
    app = create_app(runtime)
    body = json.dumps({"inputs": "a"}).encode()
    sent = []

    left = asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/classify", "headers": [], "query_string": b""}
    busy = [asyncio.ensure_future(app(scope, _stay_connected(body), send)) for _ in range(2)]
    calls = [await engine.called() for _ in range(2)]
    request = asyncio.ensure_future(app(scope, receive, send))
    while not runtime.dispatcher.queued_tokens:
        await asyncio.sleep(0)
    left.set()
    await request

    assert sent == []
    assert runtime.dispatcher.queued_tokens == 0
    for call in calls:
        call.finish(rows=[])
    await asyncio.gather(*busy)
    await runtime.close()
    assert engine.calls.empty()


def _stay_connected(body: bytes):
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    return receive


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_answers_to_many_inputs_are_one_list(count: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(count, 384)).round(8)
    labels = [[{"label": "a, b", "score": float(vector[0])}] for vector in vectors]

    assert json.loads(dump(list(vectors))) == vectors.tolist()
    for answer in (labels, [labels], [labels, labels], [labels[0], [labels[0]] * count]):
        assert json.loads(dump(answer)) == answer
        assert json.loads(dump(answer, b'{"answer":', b"}")) == {"answer": answer}
