"""The protocol of text-embeddings-inference. The answers are those of our own routes."""

from __future__ import annotations

import pytest

from tests.support.apps import SECRET

TEXT, PAIR = "A warm film.", ["서울의 봄", "🎬"]


def test_prediction_of_one_text_is_flat(client):
    own = client.post("/classify", json={"inputs": TEXT}).json()

    assert client.post("/predict", json={"inputs": TEXT}).json() == own[0]


def test_list_of_two_strings_is_one_pair(client):
    own = client.post("/classify", json={"inputs": {"text": PAIR[0], "text_pair": PAIR[1]}}).json()

    assert client.post("/predict", json={"inputs": PAIR}).json() == own[0]
    assert client.post("/predict", json={"inputs": [[TEXT], PAIR]}).json()[1] == own[0]


def test_batch_of_one_is_nested(client):
    assert len(client.post("/predict", json={"inputs": [[TEXT]]}).json()) == 1


def test_raw_scores_are_logits(client):
    own = client.post("/classify", json={"inputs": TEXT, "parameters": {"function_to_apply": "none"}}).json()

    assert client.post("/predict", json={"inputs": TEXT, "raw_scores": True}).json() == own[0]


def test_long_text_is_refused_unless_truncated(client):
    text = "film " * 200

    response = client.post("/predict", json={"inputs": text})
    assert (response.status_code, response.json()["code"]) == (422, "input_too_long")
    assert response.json()["error_type"] == "Validation"
    assert client.post("/predict", json={"inputs": text, "truncate": True}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": [SECRET] * 3}, 422, "Validation"),
        ({"inputs": [[]]}, 422, "Validation"),
        ({"inputs": []}, 422, "Validation"),
        ({"inputs": " "}, 422, "Empty"),
        ({"inputs": 1}, 422, "Validation"),
        ({"inputs": SECRET, "truncation_direction": "left"}, 422, "Validation"),
        ({"inputs": SECRET, "truncation_direction": SECRET}, 422, "Validation"),
        ({"inputs": [[SECRET]] * 65}, 422, "Validation"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(body, status, kind, client):
    response = client.post("/predict", json=body)

    assert (response.status_code, response.json()["error_type"]) == (status, kind)
    assert SECRET not in response.text


def test_info_describes_the_default_model(client):
    found = client.get("/info").json()

    assert (found["model_id"], found["max_client_batch_size"]) == ("tiny-classify", 64)
    assert found["model_type"] == {
        "classifier": {
            "id2label": {"0": "bad", "1": "good", "2": "neither"},
            "label2id": {"bad": 0, "good": 1, "neither": 2},
        }
    }


def test_health_is_empty(client):
    response = client.get("/health")

    assert (response.status_code, response.content) == (200, b"")
