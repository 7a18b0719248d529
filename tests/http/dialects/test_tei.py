"""The protocol of text-embeddings-inference. The answers are those of our own routes."""

from __future__ import annotations

import pytest

from swiftlet_serve.tasks._requests import MAX_INPUTS
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


def test_vectors_are_normalised_unless_asked_otherwise(search_client):
    own = search_client.post("/embed", json={"inputs": [TEXT], "parameters": {"normalize": False}}).json()

    assert search_client.post("/embed", json={"inputs": TEXT, "normalize": False}).json() == own
    normalised = search_client.post("/embed", json={"inputs": TEXT, "truncate": True}).json()
    assert normalised == search_client.post("/embed", json={"inputs": TEXT}).json() != own


def test_prompts_and_dimensions_are_those_of_the_model(search_client):
    own = {"prompt_name": "query", "dimensions": 3}
    expected = search_client.post("/embed", json={"inputs": TEXT, "parameters": own}).json()

    assert search_client.post("/embed", json={"inputs": TEXT} | own).json() == expected


def test_texts_are_ranked(search_client):
    own = {"inputs": {"query": TEXT, "texts": PAIR}}
    expected = search_client.post("/rerank", json=own).json()

    assert search_client.post("/rerank", json=own["inputs"]).json() == expected
    with_texts = search_client.post("/rerank", json=own["inputs"] | {"return_text": True}).json()
    assert [one["text"] for one in with_texts] == [PAIR[one["index"]] for one in expected]
    raw = search_client.post("/rerank", json=own["inputs"] | {"raw_scores": True}).json()
    assert [one["index"] for one in raw] == [one["index"] for one in expected]
    assert raw != expected


def test_similarities_are_cosines(search_client):
    source, *others = search_client.post("/embed", json={"inputs": [TEXT, *PAIR]}).json()
    expected = [sum(a * b for a, b in zip(source, other, strict=True)) for other in others]

    body = {"inputs": {"source_sentence": TEXT, "sentences": PAIR}}
    assert search_client.post("/similarity", json=body).json() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/similarity", {"inputs": {"source_sentence": SECRET, "sentences": []}}),
        ("/similarity", {"inputs": {"source_sentence": SECRET, "sentences": [SECRET] * MAX_INPUTS}}),
        ("/similarity", {"inputs": SECRET}),
        ("/embed", {"inputs": SECRET, "prompt_name": SECRET}),
        ("/embed", {"inputs": [SECRET] * (MAX_INPUTS + 1), "truncate": True}),
        ("/embed", {"inputs": SECRET, "truncate": SECRET}),
        ("/rerank", {"query": SECRET, "texts": []}),
        ("/rerank", {"query": SECRET, "texts": [SECRET], "truncation_direction": SECRET}),
        ("/rerank", {"texts": [SECRET]}),
    ],
)
def test_invalid_search_is_refused(path, body, search_client):
    response = search_client.post(path, json=body)

    assert response.status_code == 422
    assert response.json()["code"] == "validation_failed"
    assert SECRET not in response.text


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"inputs": [SECRET] * 3}, 422, "Validation"),
        ({"inputs": [[]]}, 422, "Validation"),
        ({"inputs": []}, 422, "Validation"),
        ({"inputs": " "}, 422, "Empty"),
        ({"inputs": 1}, 422, "Validation"),
        ({"inputs": SECRET, "truncation_direction": SECRET}, 422, "Validation"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(body, status, kind, client):
    response = client.post("/predict", json=body)

    assert (response.status_code, response.json()["error_type"]) == (status, kind)
    assert SECRET not in response.text


def test_info_describes_the_default_model(client):
    found = client.get("/info").json()

    assert (found["model_id"], found["max_client_batch_size"]) == ("tiny-classify", MAX_INPUTS)
    assert found["model_type"] == {
        "classifier": {
            "id2label": {"0": "bad", "1": "good", "2": "neither"},
            "label2id": {"bad": 0, "good": 1, "neither": 2},
        }
    }


def test_info_names_the_kind_of_the_default_model(search_client):
    assert search_client.get("/info").json()["model_type"] == {"embedding": {"pooling": "cls"}}


def test_health_is_empty(client):
    response = client.get("/health")

    assert (response.status_code, response.content) == (200, b"")
