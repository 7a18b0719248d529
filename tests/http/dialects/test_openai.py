"""OpenAI's embeddings and list of models. The vectors are those of our own route."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from swiftlet_serve.tasks._requests import MAX_INPUTS
from tests.support.apps import SECRET
from tests.support.artifacts import make_tokenizer

TEXTS = ["A warm film.", "서울의 봄 🎬"]


def embed(client, **body):
    return client.post("/v1/embeddings", json={"model": "tiny-embed", "input": TEXTS} | body)


def vectors(response):
    return [one["embedding"] for one in response.json()["data"]]


@pytest.fixture
def own(search_client):
    """The vectors of our own route."""
    return search_client.post("/embed", json={"inputs": TEXTS}).json()


def test_vectors_are_listed_in_order(search_client, own):
    response = embed(search_client)

    assert vectors(response) == own
    body = response.json()
    assert [(one["object"], one["index"]) for one in body["data"]] == [("embedding", 0), ("embedding", 1)]
    assert (body["object"], body["model"]) == ("list", "tiny-embed")
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0


def test_one_text_is_a_list_of_one(search_client, own):
    assert vectors(embed(search_client, input=TEXTS[0])) == own[:1]


def test_base64_holds_little_endian_floats(search_client, own):
    encoded = vectors(embed(search_client, encoding_format="base64"))

    assert np.array([np.frombuffer(base64.b64decode(one), "<f4") for one in encoded]) == pytest.approx(np.array(own))


def test_further_formats_are_those_of_our_own_route(search_client):
    parameters = {"encoding_format": "int8", "normalize": True}
    own = search_client.post("/embed", json={"inputs": TEXTS, "parameters": parameters}).json()

    assert vectors(embed(search_client, encoding_format="int8")) == own


def test_dimensions_shorten_the_vectors(search_client):
    assert [len(one) for one in vectors(embed(search_client, dimensions=3))] == [3, 3]


def test_what_texts_are_chooses_the_prompt_as_in_other_services(search_client, own):
    query = search_client.post("/embed", json={"inputs": TEXTS, "parameters": {"prompt_name": "query"}}).json()
    assert query != own
    for said in ({"input_type": "query"}, {"input_type": "search_query"}, {"task": "retrieval.query"}):
        assert vectors(embed(search_client, **said)) == query
    for said in ({"input_type": "document"}, {"task": "text-matching"}, {"input_type": None, "task": None}):
        assert vectors(embed(search_client, **said)) == own  # the model has no such prompt


def test_vllm_s_clients_get_vectors_as_they_are_and_voyage_s_get_short_ones(search_client):
    raw = search_client.post("/embed", json={"inputs": TEXTS, "parameters": {"normalize": False}}).json()
    assert vectors(embed(search_client, use_activation=False)) == raw
    assert vectors(embed(search_client, output_dimension=2)) == vectors(embed(search_client, dimensions=2))


def test_token_ids_are_those_of_the_model(search_client):
    text = "abc"
    ids = [int(each) for each in make_tokenizer().encode([text], 48)[0].input_ids[1:-1]]

    expected = vectors(embed(search_client, input=text))
    assert vectors(embed(search_client, input=ids)) == expected
    assert vectors(embed(search_client, input=[ids, ids])) == expected * 2


@pytest.mark.parametrize("count", [200, 1000, MAX_INPUTS])
@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_as_many_texts_as_openai_takes_are_answered_together(count, encoding, search_client):
    """LangChain sends 1,000 texts at a time."""
    texts = [f"text {i}" for i in range(count)]
    alone = vectors(embed(search_client, input=texts[-3:], encoding_format=encoding))

    response = embed(search_client, input=texts, encoding_format=encoding)
    assert (len(vectors(response)), vectors(response)[-3:]) == (count, alone)
    assert [one["index"] for one in response.json()["data"]] == list(range(count))
    own = search_client.post("/embed", json={"inputs": texts, "parameters": {"encoding_format": encoding}}).json()
    assert own == vectors(response)


def test_tei_reads_token_ids_as_whole_sequences(search_client):
    ids = [int(each) for each in make_tokenizer().encode(["abc"], 48)[0].input_ids]
    own = vectors(embed(search_client, input=ids[1:-1]))

    tei = search_client.post("/embed", json={"inputs": [ids, ids[1:-1]], "normalize": None}).json()
    assert tei[0] == pytest.approx(own[0])
    assert tei[1] != pytest.approx(own[0])


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"input": []}, 422, "validation_failed"),
        ({"input": " "}, 422, "empty_input"),
        ({"input": {"text": SECRET}}, 422, "validation_failed"),
        ({"input": [SECRET] * (MAX_INPUTS + 1)}, 422, "validation_failed"),
        ({"input": [1, SECRET]}, 422, "validation_failed"),
        ({"input": [-1]}, 422, "validation_failed"),
        ({"input": [[1 << 40]]}, 422, "validation_failed"),
        ({"input": [[]]}, 422, "empty_input"),
        ({"input": SECRET * 9}, 422, "input_too_long"),
        ({"dimensions": 9}, 422, "validation_failed"),
        ({"dimensions": 0}, 422, "validation_failed"),
        ({"encoding_format": SECRET}, 422, "validation_failed"),
        ({"model": SECRET}, 404, "unknown_model"),
        ({"model": "tiny-rerank"}, 404, "unknown_model"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(changes, status, code, search_client):
    response = embed(search_client, **changes)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert SECRET not in response.text


def test_models_are_listed(search_client):
    listed = search_client.get("/v1/models").json()

    assert [one["id"] for one in listed["data"]] == ["tiny-embed", "tiny-rerank", "jev-latest"]
    assert search_client.get("/v1/models/tiny-embed").json()["object"] == "model"
    assert search_client.get(f"/v1/models/{SECRET}").status_code == 404


def test_errors_of_the_list_of_models_are_openai_s(search_client):
    """KServe's clients share the path, but only OpenAI's read the body of an error."""
    refused = search_client.post("/v1/models", json={})

    assert refused.status_code == 405
    assert refused.json()["error"]["code"] == "method_not_allowed"
