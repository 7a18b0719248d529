"""Ranking as Cohere and vLLM serve it, and Cohere's embeddings. The answers are those of our own routes."""

from __future__ import annotations

from typing import get_args

import pytest

from swiftlet_models.artifact import Embedding, MultiVector
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks._vectors import Format
from tests.support.app_client import AppClient
from tests.support.apps import SECRET
from tests.support.artifacts import make_artifact, reseal

QUERY, DOCUMENTS = "How do bees dance?", ["Rain is wet.", "꿀벌은 춤춘다 🐝", "Bees waggle."]


@pytest.fixture
def own(search_client):
    """The answer of our own route."""
    return search_client.post("/rerank", json={"inputs": {"query": QUERY, "texts": DOCUMENTS}}).json()


@pytest.mark.parametrize(("path", "version"), [("/v1/rerank", "1"), ("/v2/rerank", "2"), ("/rerank", "2")])
def test_documents_are_ranked(path, version, search_client, own):
    response = search_client.post(path, json={"model": "tiny-rerank", "query": QUERY, "documents": DOCUMENTS}).json()

    assert response["results"] == [{"index": one["index"], "relevance_score": one["score"]} for one in own]
    assert response["meta"]["api_version"] == {"version": version}
    assert response["model"] == "tiny-rerank"
    assert response["usage"]["total_tokens"] == response["meta"]["tokens"]["input_tokens"] > 0


def test_documents_may_be_objects_and_are_returned(search_client, own):
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1], "title": SECRET}, {"text": DOCUMENTS[2]}]
    body = {"query": QUERY, "documents": documents, "top_n": 2, "return_documents": True}

    results = search_client.post("/v1/rerank", json=body).json()["results"]

    assert [(one["index"], one["document"]) for one in results] == [
        (one["index"], {"text": DOCUMENTS[one["index"]]}) for one in own[:2]
    ]


def test_top_n_may_exceed_the_documents(search_client):
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": 1000}

    assert len(search_client.post("/v2/rerank", json=body).json()["results"]) == 3


def test_clients_of_vllm_and_infinity_choose_the_number_and_the_form_of_scores(search_client, own):
    body = {"query": QUERY, "documents": DOCUMENTS}
    raw = {"inputs": {"query": QUERY, "texts": DOCUMENTS}, "parameters": {"raw_scores": True}}
    expected = [one["score"] for one in search_client.post("/rerank", json=raw).json()]
    assert expected != [one["score"] for one in own]

    def scores(**more):
        return [one["relevance_score"] for one in search_client.post("/rerank", json=body | more).json()["results"]]

    assert scores(top_n=0) == scores(use_activation=True, instruction=SECRET) == [one["score"] for one in own]
    assert scores(use_activation=False) == scores(raw_scores=True) == expected


def test_blank_documents_are_named_and_the_others_ranked(search_client, own):
    documents = [" ", *DOCUMENTS[:1], "", *DOCUMENTS[1:]]
    places = [1, 3, 4]  # of the documents that are not blank

    response = search_client.post("/v2/rerank", json={"query": QUERY, "documents": documents}).json()
    assert response["results"] == [{"index": places[one["index"]], "relevance_score": one["score"]} for one in own]
    assert response["meta"]["warnings"] == ["Blank and not ranked: /documents/0, /documents/2."]
    long = {"query": QUERY, "documents": [" ", "film " * 99], "truncate": "NONE"}
    assert "(At /documents/1.)" in search_client.post("/v2/rerank", json=long).json()["message"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"documents": []}, 422, "validation_failed"),
        ({"documents": [SECRET] * 1001}, 422, "validation_failed"),
        ({"documents": [" "]}, 422, "empty_input"),
        ({"documents": [" ", ""]}, 422, "empty_input"),
        ({"truncate": SECRET}, 422, "validation_failed"),
        ({"documents": [{"title": SECRET}]}, 422, "validation_failed"),
        ({"documents": SECRET}, 422, "validation_failed"),
        ({"query": " "}, 422, "empty_input"),
        ({"query": None}, 422, "validation_failed"),
        ({"top_n": -1}, 422, "validation_failed"),
        ({"max_tokens_per_doc": -1}, 422, "validation_failed"),
        ({"truncate_prompt_tokens": 4}, 422, "validation_failed"),
        ({"rank_fields": [SECRET]}, 422, "validation_failed"),
        ({"model": SECRET}, 404, "unknown_model"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(changes, status, code, search_client):
    response = search_client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS} | changes)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.json()["message"]
    assert SECRET not in response.text


def embedded(client, version=2, **body):
    return client.post(f"/v{version}/embed", json={"model": "tiny-embed", "texts": DOCUMENTS} | body)


def test_vectors_have_the_types_that_are_asked_for(search_client):
    asked = {kind: {"encoding_format": kind, "normalize": True} for kind in get_args(Format)}
    own = {
        kind: search_client.post("/embed", json={"inputs": DOCUMENTS, "parameters": parameters}).json()
        for kind, parameters in asked.items()
    }
    response = embedded(search_client, embedding_types=[*own, "int8"]).json()

    floats = response["embeddings"].pop("float")
    assert [pytest.approx(vector, abs=1e-7) for vector in own.pop("float")] == floats  # they pass through fp32
    assert response["embeddings"] == own
    assert response["texts"] == DOCUMENTS
    assert response["response_type"] == "embeddings_by_type"
    for kind in own:
        assert embedded(search_client, embedding_types=[kind]).json()["embeddings"] == {kind: own[kind]}


def test_vectors_are_floats_by_default(search_client):
    first, second = (embedded(search_client, version).json() for version in (1, 2))

    assert (first["response_type"], second["response_type"]) == ("embeddings_floats", "embeddings_by_type")
    assert {"float": first["embeddings"]} == second["embeddings"]
    assert first["meta"] == {
        "api_version": {"version": "1"},
        "tokens": {"input_tokens": second["meta"]["tokens"]["input_tokens"]},
    }
    cut = embedded(search_client, output_dimension=3).json()["embeddings"]["float"]
    assert [len(vector) for vector in cut] == [3, 3, 3]


def test_long_texts_are_told_or_refused(search_client):
    texts = ["a", "film " * 99]
    (warning,) = embedded(search_client, texts=texts).json()["meta"]["warnings"]

    assert warning == "Truncated to the model's 48 tokens: /texts/1. To refuse, set truncate to NONE."
    message = embedded(search_client, texts=texts, truncate="NONE").json()["message"]
    assert "set truncate to END" in message
    assert message.endswith("(At /texts/1.)")


@pytest.mark.parametrize(
    ("changes", "code", "place"),
    [
        ({"texts": []}, "validation_failed", "/texts"),
        ({"texts": ["a", " "]}, "empty_input", "/texts/1"),
        ({"embedding_types": [SECRET]}, "validation_failed", "/embedding_types"),
        ({"embedding_types": ["float", "binary"], "output_dimension": 3}, "validation_failed", "multiple of 8"),
        ({"output_dimension": 0}, "validation_failed", "/output_dimension"),
        ({"output_dimension": 9999}, "validation_failed", "dimensions"),
        (
            {"max_tokens": 2},
            "validation_failed",
            "/max_tokens must be at least 3: fewer tokens leave nothing of a text",
        ),
    ],
)
def test_invalid_embedding_request_is_refused(changes, code, place, search_client):
    response = embedded(search_client, **changes)

    assert (response.status_code, response.json()["code"]) == (422, code)
    assert place in response.json()["message"]
    assert SECRET not in response.text


def test_a_model_without_dense_vectors_is_refused(tmp_path):
    """Its other outputs are no lists of numbers, which clients of Cohere and OpenAI read."""
    made = make_artifact(tmp_path, "embed")
    colbert = Embedding("mean", vector=False, multi_vector=MultiVector(made.manifest.width))
    settings = Settings(models=(str(reseal(made, embedding=colbert)),), engine="echo", cores=2)
    with AppClient(create_app(LocalRuntime.load(settings))) as client:
        for types in ({}, {"embedding_types": ["float"]}, {"embedding_types": ["float", "int8"]}):
            response = embedded(client, **types)
            assert (response.status_code, response.json()["code"]) == (422, "validation_failed")
            assert response.json()["message"] == "The model has no dense output. It has: multi_vector."
        error = client.post("/v1/embeddings", json={"model": "embed", "input": "a"}).json()["error"]
        assert error["message"] == "The model has no dense output. It has: multi_vector."
        assert error["param"] == "/model"
