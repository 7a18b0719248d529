"""The endpoint `/batch`."""

from __future__ import annotations

import asyncio

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.apps import SECRET, assert_problem
from tests.support.shared_trunks import make_heads

MIXED = [
    {"task": "classify", "inputs": "fine", "parameters": {"top_k": 2}},
    {"task": "qa", "inputs": {"question": "who?", "context": "it was me."}},
    {"task": "fill-mask", "inputs": ["a [MASK] b", "[MASK]"], "details": True},
    {"task": "classify", "inputs": "fine", "model": "tiny-classify"},
]


def alone(client: TestClient, request: dict) -> object:
    body = dict(request)
    return client.post(f"/{body.pop('task')}", json=body).json()


def test_batch_answers_each_request_as_its_route_does(client):
    response = client.post("/batch", json={"requests": MIXED})

    assert response.status_code == 200, response.text
    assert response.json() == {"answers": [alone(client, request) for request in MIXED]}
    assert 'desc="sequences=' in response.headers["server-timing"]
    characters = len("finewho?it was me.a [MASK] b[MASK]fine")
    assert response.headers["x-compute-characters"] == str(characters)
    lone = client.post("/batch", json={"requests": MIXED[:1]})
    assert lone.json() == {"answers": [alone(client, MIXED[0])]}


@pytest.mark.parametrize(
    ("request_", "pointer", "code"),
    [
        ({"inputs": "fine"}, "/requests/1/task", "missing"),
        ({"task": SECRET, "inputs": "fine"}, "/requests/1/task", "literal_error"),
        ({"task": ["classify"], "inputs": "fine"}, "/requests/1/task", "literal_error"),
        ({"task": "classify", "inputs": 3}, "/requests/1/inputs", None),
        ({"task": "classify", "inputs": "fine", SECRET: 1}, None, None),
        ({"task": "classify", "inputs": ""}, "/requests/1/inputs", "empty_input"),
        ({"task": "fill-mask", "inputs": "no mask " + SECRET}, "/requests/1/inputs", "no_mask"),
    ],
)
def test_batch_names_the_place_of_an_invalid_request(client, request_, pointer, code):
    response = client.post("/batch", json={"requests": [MIXED[0], request_]})

    assert response.status_code == 422
    assert SECRET not in response.text
    errors = response.json()["errors"]
    if pointer:
        assert any(error["pointer"].startswith(pointer) for error in errors), errors
    if code:
        assert code in {error["code"] for error in errors}

    partial = client.post("/batch", json={"requests": [MIXED[0], request_, MIXED[1]], "partial": True})
    assert partial.status_code == 200, partial.text
    first, failed, last = partial.json()["answers"]
    assert [first, last] == [alone(client, MIXED[0]), alone(client, MIXED[1])]
    assert set(failed) == {"error", "error_type", "code"}
    assert SECRET not in partial.text


def test_batch_refuses_an_unknown_model_and_a_wrong_body(client):
    unknown = {"task": "classify", "inputs": "fine", "model": SECRET}
    response = client.post("/batch", json={"requests": [unknown]})
    assert_problem(response, 404, "unknown_model")
    assert SECRET not in response.text
    only = client.post("/batch", json={"requests": [unknown], "partial": True}).json()
    assert [answer["code"] for answer in only["answers"]] == ["unknown_model"]
    for body in ({}, {"requests": []}, {"requests": [{}] * 65}, {"requests": [3]}, {"requests": MIXED, "more": 1}):
        assert client.post("/batch", json=body).status_code == 422
    assert client.get("/batch").status_code == 405


def test_batch_counts_each_request_for_its_model(client, runtime):
    before = runtime.stats.copy()
    client.post("/batch", json={"requests": MIXED})
    client.post("/batch", json={"requests": [MIXED[0], {"task": "classify", "inputs": ""}]})
    after = runtime.stats
    assert after.models["tiny-classify"].accepted - before.models["tiny-classify"].accepted in (2, 3)
    assert after.models["tiny-qa"].accepted - before.models["tiny-qa"].accepted == 1
    assert all(model.in_flight == 0 for model in after.models.values())
    assert after.responses["/batch", 200] - before.responses["/batch", 200] == 1
    assert after.responses["/qa", 200] - before.responses["/qa", 200] == 1


def test_batch_counts_for_the_rate_limit_as_its_requests_do(artifact_dir):
    models = (str(artifact_dir / "tiny-classify"),)
    settings = Settings(models=models, engine="echo", client_rate_limit=8)
    with TestClient(create_app(LocalRuntime.load(settings))) as client:
        assert client.post("/batch", json={"requests": [MIXED[0]] * 63}).status_code == 200
        response = client.post("/classify", json={"inputs": "fine"})
    assert_problem(response, 429, "quota_exceeded")
    assert int(response.headers["Retry-After"]) in (7, 8)  # 64 requests, a second's quota being there at first


def test_batch_of_more_tokens_than_the_rate_limit_is_answered_and_charged_once(artifact_dir):
    settings = Settings(models=(str(artifact_dir / "tiny-classify"),), engine="echo", client_token_rate_limit=1)
    with TestClient(create_app(LocalRuntime.load(settings))) as client:
        answer = client.post("/batch", json={"requests": [MIXED[0]] * 8})
        response = client.post("/batch", json={"requests": [MIXED[0]] * 8})
    assert answer.status_code == 200
    assert_problem(response, 429, "quota_exceeded")
    tokens = int(answer.headers["X-Compute-Tokens"])
    assert tokens - 3 <= int(response.headers["Retry-After"]) <= tokens  # a second's quota being there at first


def test_models_that_share_a_trunk_read_a_text_once(monkeypatch):
    """Through a worker process: the texts are long, so that threads encode them."""
    artifacts = make_heads("bert")
    settings = Settings(models=tuple(str(artifact.path) for artifact in artifacts), engine="native", cores=2)
    runtime = LocalRuntime.start(settings)
    calls: list[list[int]] = []
    run = runtime.dispatcher.executor.run

    def spy(model, encodings, timeout_s):
        calls.append([one.head for one in encodings])
        return run(model, encodings, timeout_s)

    monkeypatch.setattr(runtime.dispatcher.executor, "run", spy)
    text = "abc de " * 60
    requests = [
        {"task": "classify", "inputs": text},
        {"task": "embed", "inputs": text, "model": "bert-mean"},
        {"task": "embed", "inputs": text, "model": "bert-cls"},
    ]
    with TestClient(create_app(runtime)) as client:
        titles = client.get("/models").json()
        together = client.post("/batch", json={"requests": requests}).json()
        assert [sorted(call) for call in calls] == [[0, 3, 4]]
        assert together == {"answers": [alone(client, request) for request in requests]}
        assert {model["name"] for model in titles} == {artifact.manifest.name for artifact in artifacts}
        assert "5 heads on one trunk" in runtime.engine_title(runtime.pipelines["bert-qa"])
    apart = LocalRuntime.load(settings)
    with TestClient(create_app(apart)) as client:
        assert together == {"answers": [alone(client, request) for request in requests]}


def test_batch_stops_all_requests_when_one_fails(runtime, client, monkeypatch):
    cancelled = asyncio.Event()
    pipeline = runtime.tasks["qa"]

    async def never(*_: object) -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    monkeypatch.setattr(pipeline, "answer", never)
    response = client.post("/batch", json={"requests": [MIXED[1], {"task": "classify", "inputs": ""}]})
    assert response.status_code == 422
    assert cancelled.is_set()
