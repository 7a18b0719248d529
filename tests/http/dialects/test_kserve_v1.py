"""KServe's first protocol. The answers are those of our own routes."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from tests.support.apps import SECRET, make_runtime

TEXTS = ["A warm film.", "서울의 봄 🎬"]


def test_predictions_are_our_answers(client):
    own = client.post("/classify", json={"inputs": TEXTS, "parameters": {"top_k": 1}}).json()
    response = client.post("/v1/models/classify:predict", json={"instances": TEXTS, "parameters": {"top_k": 1}})

    assert response.json() == {"predictions": own}


@pytest.mark.parametrize("count", [1, 2])
def test_instance_may_be_an_object(count, client):
    samples = [{"question": "Who?", "context": "Clara."}, {"question": "Where?", "context": "In Rome."}][:count]
    own = [client.post("/qa", json={"inputs": sample}).json() for sample in samples]

    assert client.post("/v1/models/tiny-qa:predict", json={"instances": samples}).json() == {"predictions": own}


def test_model_is_ready(client):
    found = client.get("/v1/models/classify").json()
    assert (found["name"], found["ready"]) == ("tiny-classify", True)


@pytest.mark.parametrize(
    ("model", "body", "status"),
    [
        ("no", {"instances": [SECRET]}, 404),
        ("classify", {"instances": []}, 422),
        ("classify", {"instances": SECRET}, 422),
        ("classify", {"instances": [{SECRET: 1}]}, 422),
        ("classify", {"instances": [SECRET], "parameters": {SECRET: 1}}, 422),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(model, body, status, client):
    response = client.post(f"/v1/models/{model}:predict", json=body)

    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert response.json().keys() == {"error", "code"}
    assert SECRET not in response.text


def test_models_are_listed_by_a_server_that_does_not_speak_system_one(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir, dialects=("kserve-v1",)))) as client:
        assert client.get("/v1/models").json()["models"] == ["tiny-classify", "tiny-qa", "tiny-fill-mask"]
