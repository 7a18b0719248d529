"""Classification as SGLang and vLLM serve it. The answers are those of our own route."""

from __future__ import annotations

import pytest

from tests.support.apps import SECRET

TEXTS = ["A warm film.", "서울의 봄 🎬"]
LABELS = ("bad", "good", "neither")


@pytest.mark.parametrize("path", ["/v1/classify", "/classify"])
def test_probabilities_are_in_the_order_of_the_labels(path, client):
    own = client.post("/classify", json={"inputs": TEXTS}).json()
    response = client.post(path, json={"model": "tiny-classify", "input": TEXTS}).json()

    scores = [{one["label"]: one["score"] for one in row} for row in own]
    assert response["data"] == [
        {"index": i, "label": row[0]["label"], "probs": [score[label] for label in LABELS], "num_classes": 3}
        for i, (row, score) in enumerate(zip(own, scores, strict=True))
    ]
    assert (response["object"], response["model"]) == ("list", "tiny-classify")
    assert response["usage"]["prompt_tokens"] == response["usage"]["total_tokens"] > 0


def test_scores_without_activation_are_logits(client):
    own = client.post("/classify", json={"inputs": TEXTS, "parameters": {"function_to_apply": "none"}}).json()
    response = client.post("/classify", json={"input": TEXTS, "use_activation": False}).json()
    scores = [{one["label"]: one["score"] for one in row} for row in own]
    assert [one["probs"] for one in response["data"]] == [[score[label] for label in LABELS] for score in scores]


def test_one_text_is_a_list_of_one(client):
    assert len(client.post("/v1/classify", json={"input": TEXTS[0]}).json()["data"]) == 1


def test_text_that_looks_like_a_field_is_text(client):
    """The bytes of a body of ours may hold the name of a foreign field."""
    text = 'the "input" of a function'

    assert client.post("/classify", json={"inputs": text}).status_code == 200
    assert client.post("/classify", json={"inputs": {"text": text, "text_pair": '"input"'}}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"model": SECRET, "input": "a"}, 404, "unknown_model"),
        ({"model": "tiny-qa", "input": "a"}, 404, "unknown_model"),
        ({"input": []}, 422, "validation_failed"),
        ({"input": [[SECRET]]}, 422, "validation_failed"),
        ({"input": " "}, 422, "empty_input"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_openai(body, status, code, client):
    response = client.post("/v1/classify", json=body)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"].keys() == {"message", "type", "param", "code"}
    assert SECRET not in response.text
