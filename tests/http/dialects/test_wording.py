"""Errors in the terms of the client: its fields, the index in its list, the limit, and advice that it can follow."""

from __future__ import annotations

from typing import Any

import pytest

from swiftlet_serve.tasks._requests import MAX_INPUTS
from tests.support.apps import SECRET
from tests.support.hostile_dialects import tensor

LONG = "film " * 200
INFER = "/v2/models/classify/infer"
NOUL = {"q": {"type": "noul", "instructions": "Is it good?"}}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]}


def sentence(response: Any) -> str:
    body = response.json()
    found = body.get("message") or body.get("detail") or body["error"]
    return str(found["message"] if isinstance(found, dict) else found)


TOO_LONG: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("/v1/embeddings", {"model": "embed", "input": ["a", LONG]}, "/input/1", {"truncate_prompt_tokens": -1}),
    ("/v1/embeddings", {"model": "embed", "input": LONG}, "/input", {"truncate_prompt_tokens": -1}),
    ("/v1/classify", {"input": ["a", LONG], "truncation": False}, "/input/1", {"truncate_prompt_tokens": -1}),
    ("/classify", {"input": ["a", LONG], "truncation": False}, "/input/1", {"truncate_prompt_tokens": -1}),
    (
        "/classify",
        {"inputs": ["a", LONG], "parameters": {"truncation": False}},
        "/inputs/1",
        {"parameters": {"truncation": True}},
    ),
    ("/predict", {"inputs": [["a"], [LONG]]}, "/inputs/1", {"truncate": True}),
    ("/predict", {"inputs": ["a", LONG]}, "/inputs", {"truncate": True}),
    ("/embed", {"inputs": ["a", LONG], "truncate": False}, "/inputs/1", {"truncate": True}),
    ("/rerank", {"query": "a", "texts": ["b", LONG]}, "/texts/1", {"truncate": True}),
    ("/rerank", {"query": "a", "documents": ["b", LONG], "truncate": "NONE"}, "/documents/1", {"truncate": "END"}),
    ("/v2/rerank", {"query": "a", "documents": ["b", LONG], "truncate": "NONE"}, "/documents/1", {"truncate": "END"}),
    (
        "/similarity",
        {"inputs": {"source_sentence": "a", "sentences": ["b", LONG]}, "parameters": {"truncate": False}},
        "/inputs/sentences/1",
        {"parameters": {"truncate": True}},
    ),
    (
        "/v1/models/classify:predict",
        {"instances": ["a", LONG], "parameters": {"truncation": False}},
        "/instances/1",
        {"parameters": {"truncation": True}},
    ),
    (
        "/v2/models/classify/infer",
        {"inputs": [tensor("text", "a", LONG)], "parameters": {"truncation": False}},
        "/inputs/0/data/1",
        {"parameters": {"truncation": True}},
    ),
    (
        "/v2/models/rerank/infer",
        {"inputs": [tensor("query", "a"), tensor("texts", "b", LONG)], "parameters": {"truncation": False}},
        "/inputs/1/data/1",
        {"parameters": {"truncation": True}},
    ),
    ("/v1/decisions", {"model": "classify", "input": LONG, "questions": [CHOICE]}, "/input", {"truncation": True}),
    ("/v1/systemone", {"model": "zero-shot", "state": LONG, "questions": NOUL}, "/state", {"truncation": True}),
]


@pytest.mark.parametrize(("path", "body", "pointer", "advice"), TOO_LONG)
def test_advice_for_a_long_text_names_fields_of_the_protocol_and_helps(
    path: str, body: dict[str, Any], pointer: str, advice: dict[str, Any], every_client: Any
) -> None:
    response = every_client.post(path, json=body)

    assert response.status_code == 422
    said = sentence(response)
    ((name, value),) = advice.get("parameters", advice).items()
    assert "tokens, and 48 at most are read. Shorten it, or set " in said
    assert f"{name} to {str(value).replace('True', 'true')}." in said
    assert said.endswith(f"(At {pointer}.)") == any(step.isdecimal() for step in pointer.split("/"))
    assert every_client.post(path, json=body | advice).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"truncation": True}, 200),
        ({"truncation": False}, 422),
        ({"truncation": None}, 422),
        ({"truncate": True}, 200),
        ({"truncate": "END"}, 200),
        ({"truncate": "NONE"}, 422),
        ({"truncate": False}, 422),
        ({"truncate": True, "truncation": False}, 422),
        ({"truncate": "NONE", "truncate_prompt_tokens": -1}, 200),
        ({"truncate_prompt_tokens": 48}, 200),
        ({"truncate_prompt_tokens": 8192}, 200),
        ({"truncate_prompt_tokens": 2}, 422),
        ({"truncate_prompt_tokens": 0}, 422),
        ({"truncate_prompt_tokens": -2}, 422),
    ],
)
def test_openai_s_clients_choose_what_happens_to_long_texts(
    changes: dict[str, Any], status: int, every_client: Any
) -> None:
    body = {"model": "embed", "input": [LONG]}
    cut = every_client.post("/v1/embeddings", json=body | {"truncation": True}).json()["data"]

    response = every_client.post("/v1/embeddings", json=body | changes)
    assert response.status_code == status
    assert status != 200 or response.json()["data"] == cut
    assert status != 422 or "truncate_prompt_tokens" in sentence(response)


MANY = ["a"] * 3000
BLANKS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/embeddings", {"model": "embed", "input": ["a", " "]}, "/input/1"),
    ("/classify", {"input": ["a", " "]}, "/input/1"),
    ("/classify", {"inputs": ["a", {"text": " "}]}, "/inputs/1/text"),
    ("/predict", {"inputs": [["a"], [" ", "b"]]}, "/inputs/1/0"),
    ("/predict", {"inputs": [" ", "b"]}, "/inputs/0"),
    ("/embed", {"inputs": ["a", " "], "truncate": True}, "/inputs/1"),
    ("/rerank", {"query": "a", "texts": ["b", " "]}, "/texts/1"),
    ("/rerank", {"inputs": {"query": "a", "texts": ["b", " "]}}, "/inputs/texts/1"),
    ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b", " "]}}, "/inputs/sentences/1"),
    ("/v1/models/qa:predict", {"instances": [{"question": " ", "context": "a"}]}, "/instances/0/question"),
    (
        "/v2/models/qa/infer",
        {"inputs": [tensor("context", "a"), tensor("question", "b", " ")]},
        "/inputs/1/data/1",
    ),
]


@pytest.mark.parametrize(("path", "body", "pointer"), BLANKS)
def test_blank_text_in_a_list_is_named_by_its_index(
    path: str, body: dict[str, Any], pointer: str, every_client: Any
) -> None:
    response = every_client.post(path, json=body)

    assert (response.status_code, sentence(response)) == (
        422,
        f"The text is empty. Send a text that is not blank. (At {pointer}.)",
    )


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/embeddings", {"model": "embed", "input": MANY}, f"/input has more than {MAX_INPUTS} items."),
        ("/v1/embeddings", {"model": "embed", "input": []}, "/input has too few items. Send at least 1."),
        ("/v1/embeddings", {"input": "a"}, "/model is missing. Add it."),
        ("/v1/embeddings", {"model": "embed", "input": ["a", None]}, "/input/1 must be a text"),
        ("/v1/embeddings", {"model": "embed", "input": "a", "dimensions": 0}, "/dimensions must be at least 1."),
        ("/v1/embeddings", {"model": "embed", "input": "a", "encoding_format": SECRET}, "/encoding_format is none of"),
        ("/embed", {"inputs": MANY}, f"/inputs has more than {MAX_INPUTS} items."),
        ("/embed", {"inputs": MANY, "truncate": True}, f"/inputs has more than {MAX_INPUTS} items."),
        ("/embed", {"inputs": 5}, "/inputs must be a text or a list."),
        ("/classify", {"inputs": ["a", 5]}, "/inputs/1 must be a text or an object."),
        ("/classify", {"input": MANY}, f"/input has more than {MAX_INPUTS} items."),
        ("/v2/rerank", {"query": "a", "documents": MANY}, "/documents has more than 1000 items."),
        ("/v2/rerank", {"query": "a", "documents": ["b", {"title": SECRET}]}, "/documents/1/text is missing."),
        ("/rerank", {"query": "a", "texts": MANY}, "/texts has more than 1000 items."),
        ("/predict", {"inputs": [["a"], []]}, "An input is neither a text nor a pair of texts."),
        ("/v1/models/classify:predict", {"instances": MANY}, f"/instances has more than {MAX_INPUTS} items."),
        (
            "/v2/models/classify/infer",
            {"inputs": [tensor("text", *MANY)]},
            f"/inputs/0/data has more than {MAX_INPUTS} items.",
        ),
        (
            "/v2/models/classify/infer",
            {"inputs": [tensor("text", "a")], "parameters": {"top_k": 0}},
            "/parameters/top_k must",
        ),
    ],
)
def test_invalid_value_is_described_with_its_place_and_limit(
    path: str, body: dict[str, Any], said: str, every_client: Any
) -> None:
    response = every_client.post(path, json=body)

    assert response.status_code == 422
    assert said in sentence(response)
    assert SECRET not in response.text


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("/embed", {"inputs": [" "], "truncate": True}, {"error", "error_type", "code"}),
        ("/rerank", {"query": " ", "texts": ["a"]}, {"error", "error_type", "code"}),
        ("/rerank", {"texts": ["a"]}, {"error", "error_type", "code"}),
        ("/rerank", {"query": " ", "documents": ["a"]}, {"id", "message", "code"}),
        ("/rerank", {"documents": 5}, {"id", "message", "code"}),
        ("/classify", {"input": " "}, {"error"}),
    ],
)
def test_error_on_a_shared_route_has_the_form_of_the_body_s_protocol(
    path: str, body: dict[str, Any], fields: set[str], every_client: Any
) -> None:
    response = every_client.post(path, json=body)

    assert response.status_code == 422
    assert response.json().keys() == fields
    own = every_client.post(path, json={"inputs": 5})
    assert own.headers["content-type"] == "application/problem+json"
