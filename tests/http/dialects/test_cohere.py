"""Ranking as Cohere and vLLM serve it. The scores are those of our own route."""

from __future__ import annotations

import pytest

from tests.support.apps import SECRET

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
        ({"truncate": "START"}, 422, "validation_failed"),
        ({"documents": [{"title": SECRET}]}, 422, "validation_failed"),
        ({"documents": SECRET}, 422, "validation_failed"),
        ({"query": " "}, 422, "empty_input"),
        ({"query": None}, 422, "validation_failed"),
        ({"top_n": 0}, 422, "validation_failed"),
        ({"max_tokens_per_doc": 5}, 422, "validation_failed"),
        ({"rank_fields": [SECRET]}, 422, "validation_failed"),
        ({"model": SECRET}, 404, "unknown_model"),
    ],
)
def test_invalid_request_is_refused_in_the_form_of_the_protocol(changes, status, code, search_client):
    response = search_client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS} | changes)

    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.json()["message"]
    assert SECRET not in response.text
