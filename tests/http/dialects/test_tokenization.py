"""Tokens as text-embeddings-inference and vLLM serve them. They are those that the model reads."""

from __future__ import annotations

import threading

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.dialect_parts import tokenization
from tests.support.apps import SECRET, make_runtime

TEXTS = ["A warm film.", "서울의 봄 🎬 [SEP] e\u0301", " \u200b", ""]


@pytest.fixture(scope="module")
def tokenizer(runtime):
    return runtime.tasks["classify"].model.tokenizer


def test_tokens_of_tei_are_those_of_the_model_with_their_places(client, tokenizer):
    rows = client.post("/tokenize", json={"inputs": TEXTS}).json()

    expected = [encoding.input_ids.tolist() for encoding in tokenizer.encode(TEXTS, 512)]
    assert [[token["id"] for token in row] for row in rows] == expected
    for text, row in zip(TEXTS, rows, strict=True):
        assert [token["special"] for token in row] == [True, *[False] * (len(row) - 2), True]
        assert (row[0], row[-1]["text"]) == (
            {"id": expected[0][0], "text": "[CLS]", "special": True, "start": None, "stop": None},
            "[SEP]",
        )
        assert all(token["text"] == text[token["start"] : token["stop"]] for token in row[1:-1])


def test_text_of_tei_is_a_batch_of_one_and_may_lack_special_tokens(client):
    (row,) = client.post("/tokenize", json={"inputs": TEXTS[0], "add_special_tokens": False}).json()

    assert "".join(token["text"] for token in row) == TEXTS[0].replace(" ", "")
    assert not any(token["special"] for token in row)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_tokens_of_vllm_are_the_same(text, special, client, tokenizer):
    (row,) = client.post("/tokenize", json={"inputs": text, "add_special_tokens": special}).json()
    body = {"prompt": text, "add_special_tokens": special, "return_token_strs": True}
    found = client.post("/tokenize", json=body).json()

    ids = [token["id"] for token in row]
    assert found == {
        "count": len(ids),
        "max_model_len": 48,
        "tokens": ids,
        "token_strs": [tokenizer.token(number) for number in ids],
    }
    assert client.post("/tokenize", json={"prompt": text}).json()["token_strs"] is None


def test_text_that_names_a_field_of_vllm_is_text(client):
    (row,) = client.post("/tokenize", json={"inputs": "prompt", "add_special_tokens": False}).json()

    assert "".join(token["text"] for token in row) == "prompt"


def test_model_of_vllm_may_be_named(client):
    named = client.post("/tokenize", json={"model": "tiny-qa", "prompt": TEXTS[0]})

    assert named.json() == client.post("/tokenize", json={"prompt": TEXTS[0]}).json()
    assert client.post("/detokenize", json={"model": SECRET, "tokens": [1]}).status_code == 404


def test_ids_become_texts_with_special_tokens_or_without(client):
    tokens = client.post("/tokenize", json={"prompt": "a b"}).json()["tokens"]

    whole = client.post("/detokenize", json={"tokens": tokens}).json()
    assert whole == {"prompt": "[CLS] a b [SEP]"}
    assert client.post("/decode", json={"ids": tokens}).json() == ["a b"]
    both = client.post("/decode", json={"ids": [tokens, tokens[:2]], "skip_special_tokens": False}).json()
    assert both == ["[CLS] a b [SEP]", "[CLS] a"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/detokenize", {"tokens": [5, 99_999]}, "/tokens/1"),
        ("/detokenize", {"tokens": []}, "/tokens"),
        ("/detokenize", {"tokens": [-1]}, "/tokens/0"),
        ("/tokenize", {"prompt": 5, "x": SECRET}, "/prompt"),
        ("/tokenize", {"messages": [{"content": SECRET}]}, "/prompt"),
        ("/decode", {"ids": [[5], [99_999]]}, "/ids/1/0"),
        ("/decode", {"ids": [5, 99_999]}, "/ids/1"),
        ("/decode", {"ids": SECRET}, "/ids"),
        ("/tokenize", {"inputs": [], "x": SECRET}, "/inputs"),
        ("/tokenize", {"inputs": SECRET, "prompt_name": SECRET}, ""),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_its_protocol(path, body, place, client):
    response = client.post(path, json=body)

    assert (response.status_code, SECRET in response.text) == (422, False)
    error = response.json()["error"]
    if path == "/detokenize" or {"prompt", "messages"} & body.keys():
        assert (error["code"], error["param"]) == ("validation_failed", place)
    else:
        assert response.json()["error_type"] == "Validation"
        assert place in error


def test_tokens_are_limited_before_they_are_written(artifact_dir, monkeypatch):
    monkeypatch.setattr(tokenization, "MAX_TOKENS", 8)
    with TestClient(create_app(make_runtime(artifact_dir))) as client:
        assert client.post("/tokenize", json={"inputs": ["a " * 4] * 2}).status_code == 200
        refused = client.post("/tokenize", json={"inputs": ["a " * 4, "a " * 5]})

    assert (refused.status_code, refused.json()["code"]) == (422, "input_too_long")


def test_tokens_need_admission(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        runtime.admission.close()
        assert client.post("/tokenize", json={"inputs": "a"}).status_code == 503
        assert client.post("/detokenize", json={"tokens": [5]}).json()["error"]["code"] == "draining"


def test_tokens_have_a_deadline(artifact_dir, monkeypatch):
    runtime = make_runtime(artifact_dir)
    done = threading.Event()
    monkeypatch.setattr(tokenization.Tokenize, "encode", lambda *_: [done.wait()])
    with TestClient(create_app(runtime)) as client:
        late = client.post("/tokenize", json={"inputs": "a"}, headers={"X-Request-Timeout-Ms": "20"})
        done.set()

    assert (late.status_code, late.json()["error_type"]) == (504, "Overloaded")


def test_tokens_are_no_answers_of_the_model(artifact_dir):
    runtime = make_runtime(artifact_dir)
    with TestClient(create_app(runtime)) as client:
        client.post("/tokenize", json={"prompt": "a"})
        client.post("/decode", json={"ids": [5]})

    assert runtime.stats.models["tiny-classify"].accepted == 0
    assert (runtime.stats.dialects["vllm", "2xx"], runtime.stats.dialects["tei", "2xx"]) == (1, 1)


def test_vllm_alone_serves_its_own_route(artifact_dir):
    with TestClient(create_app(make_runtime(artifact_dir, dialects=("vllm",)))) as client:
        assert client.post("/tokenize", json={"prompt": "a"}).json()["count"] == 3
        assert client.post("/tokenize", json={"inputs": "a"}).status_code == 422
