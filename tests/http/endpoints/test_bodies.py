"""Request bodies: media types, sizes, JSON and validation."""

from __future__ import annotations

import gzip
import json
import logging

import pytest
from pydantic import ValidationError

from swiftlet_serve import tasks
from swiftlet_serve.errors import Unprocessable
from swiftlet_serve.http import dialects
from swiftlet_serve.http.endpoints import bodies
from tests.support.apps import MAX_BODY_BYTES, SECRET, assert_problem


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"', None]
)
def test_body_is_json_with_or_without_content_type(client, content_type):
    headers = {} if content_type is None else {"content-type": content_type}

    assert client.post("/classify", content=b'{"inputs": "fine"}', headers=headers).status_code == 200


def test_body_uses_the_last_of_repeated_keys(client):
    twice = client.post("/classify", content=b'{"inputs": "first", "inputs": "second"}').json()

    assert twice == client.post("/classify", json={"inputs": "second"}).json()
    assert twice != client.post("/classify", json={"inputs": "first"}).json()


def test_body_accepts_control_characters(client):
    assert client.post("/classify", json={"inputs": "fine\x00and\x1bwell"}).status_code == 200


DEEP = b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (SECRET.encode(), 400, "invalid_json"),
        (b'{"inputs": "a"} {}', 400, "invalid_json"),
        (b'{"inputs": "a",}', 400, "invalid_json"),
        (DEEP, 400, "invalid_json"),
        (b'{"inputs": "\\ud800' + SECRET.encode() + b'"}', 400, "invalid_json"),
        (b'{"\\udfff' + SECRET.encode() + b'": 1, "inputs": "a"}', 400, "invalid_json"),
        (b'{"inputs": "a\nb"}', 400, "invalid_json"),
        (b'{"inputs": "a", "parameters": {"top_k": ' + b"9" * 1500 + b"}}", 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": 1e400}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": -0}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": 01}}', 400, "invalid_json"),
        (b'{"inputs": "a", "parameters": {"top_k": NaN}}', 422, "validation_failed"),
        (b'{"inputs": NaN}', 422, "validation_failed"),
        (b'{"inputs": Infinity}', 422, "validation_failed"),
        (b"NaN", 422, "validation_failed"),
        (b"\xef\xbb\xbf" + b'{"inputs": "a"}', 400, "invalid_json"),
        ('{"inputs": "a"}'.encode("utf-16"), 400, "invalid_utf8"),
        ('{"inputs": "a"}'.encode("utf-16-le"), 400, "invalid_json"),
        ('{"inputs": "a"}'.encode("utf-32-le"), 400, "invalid_json"),
        (b'{"inputs": "\xff"}', 400, "invalid_utf8"),
        (b'{"inputs": "\xc0\xaf"}', 400, "invalid_utf8"),
        (b'{"inputs": "\xed\xa0\xbd\xed\xb8\x80"}', 400, "invalid_utf8"),
        (b"null", 422, "validation_failed"),
        (b"[]", 422, "validation_failed"),
        (b'"' + SECRET.encode() + b'"', 422, "validation_failed"),
        (b"{}", 422, "validation_failed"),
        (b'{"inputs": null}', 422, "validation_failed"),
        (b'{"inputs": true}', 422, "validation_failed"),
        (b'{"inputs": 5}', 422, "validation_failed"),
        (b'{"inputs": []}', 422, "validation_failed"),
        (b'{"inputs": {}}', 422, "validation_failed"),
        (b'{"inputs": [[]]}', 422, "validation_failed"),
        (b'{"inputs": ["a", 5]}', 422, "validation_failed"),
        (b'{"inputs": {"text": "a", "' + SECRET.encode() + b'": 1}}', 422, "validation_failed"),
        (b'{"inputs": "a", "' + SECRET.encode() + b'": "' + SECRET.encode() + b'"}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"' + SECRET.encode() + b'": 1}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": "5"}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": 5.0}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": true}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": 0}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": -1}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"top_k": 1000000000}}', 422, "validation_failed"),
        (b'{"inputs": "a", "parameters": {"function_to_apply": "' + SECRET.encode() + b'"}}', 422, "validation_failed"),
        (b'{"inputs": "a", "model": 5}', 422, "validation_failed"),
        (b'{"inputs": "a", "model": "' + SECRET.encode() * 20 + b'"}', 422, "validation_failed"),
        (json.dumps({"inputs": [5] * 65}).encode(), 422, "validation_failed"),
        (b'{"inputs": ""}', 422, "empty_input"),
        (b'{"inputs": " \\n\\t"}', 422, "empty_input"),
        (b'{"inputs": ["a", ""]}', 422, "empty_input"),
    ],
)
def test_body_is_rejected_and_never_echoed(body, status, code, client, caplog):
    caplog.set_level(logging.DEBUG)
    response = client.post("/classify", content=body)

    assert_problem(response, status, code)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("task", "body", "code"),
    [
        ("qa", {"inputs": "a"}, "validation_failed"),
        ("qa", {"inputs": {"question": "", "context": "a"}}, "empty_input"),
        ("qa", {"inputs": {"question": "a", "context": "\u200b "}}, "empty_input"),
        ("qa", {"inputs": {"question": SECRET * 10, "context": "a"}}, "input_too_long"),
        ("qa", {"inputs": {"question": ["a", "b"], "context": ["a"]}}, "validation_failed"),
        ("qa", {"inputs": {"question": "a", "context": "a"}, "parameters": {"doc_stride": 99}}, "validation_failed"),
        ("fill-mask", {"inputs": SECRET}, "no_mask"),
        ("fill-mask", {"inputs": "<mask>"}, "no_mask"),
        ("fill-mask", {"inputs": "[MASK]" * 100}, "too_many_masks"),
        ("fill-mask", {"inputs": SECRET * 10 + " [MASK]"}, "input_too_long"),
        ("fill-mask", {"inputs": "[MASK]", "parameters": {"targets": []}}, "validation_failed"),
        ("fill-mask", {"inputs": "[MASK]", "parameters": {"targets": ""}}, "validation_failed"),
        ("fill-mask", {"inputs": "[MASK]", "parameters": {"top_k": 101}}, "validation_failed"),
    ],
)
def test_body_is_rejected_by_its_task(task, body, code, client):
    assert_problem(client.post(f"/{task}", json=body), 422, code)


def test_field_errors_contain_field_names_of_the_schema_only(client):
    body = {"inputs": {"text": 5, SECRET: 1}, "parameters": {"top_k": 0, SECRET: 2}, SECRET: 3}
    problem = assert_problem(client.post("/classify", json=body), 422, "validation_failed")

    assert {"pointer": "/parameters/top_k", "code": "greater_than_equal", "limit": 1} in problem["errors"]
    assert {"pointer": "/inputs/text", "code": "string_type"} in problem["errors"]
    assert {"pointer": "/parameters", "code": "extra_forbidden"} in problem["errors"]
    assert {"pointer": "", "code": "extra_forbidden"} in problem["errors"]


def test_field_errors_are_limited(client):
    body = {"inputs": "a", **{f"{i}": 1 for i in range(101)}}
    problem = assert_problem(client.post("/classify", json=body), 422, "validation_failed")

    assert "more than 100 invalid values" in problem["detail"]


@pytest.mark.parametrize("item", [5, {}, [], {"text": 1, "texts": 2}])
def test_list_fails_at_its_first_invalid_item(item, client):
    problem = assert_problem(client.post("/classify", json={"inputs": ["a", *[item] * 60]}), 422, "validation_failed")

    assert {error["pointer"].split("/")[2] for error in problem["errors"] if error["pointer"] != "/inputs"} == {"1"}


def models_of_bodies():
    own = [tasks.load(name).TASK.Request for name in tasks.names()]
    foreign = [dialects.load(name).OPERATIONS for name in dialects.names()]
    return list(dict.fromkeys([*own, *(operation.body for operations in foreign for operation in operations)]))


@pytest.mark.parametrize("model", models_of_bodies())
def test_body_with_too_many_items_is_refused_before_it_is_parsed(model, monkeypatch):
    """pydantic would need a second for the items of 1 MB, in which the event loop stands still."""
    monkeypatch.setattr(model, "model_validate_json", None)
    body = json.dumps({"inputs": [[]] * (model.max_items + 1)}).encode()

    with pytest.raises(Unprocessable) as caught:
        bodies.parse(model, body)

    (error,) = caught.value.field_errors
    assert (error.code, error.limit) == ("too_many_items", model.max_items)


def count_errors(model, fields):
    try:
        model.model_validate(fields)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("model", models_of_bodies())
@pytest.mark.parametrize("item", [1, None, "a", {}, {"a": 1}, [[]], {"type": "choice"}])
def test_invalid_items_make_few_errors(model, item):
    """Each error costs microseconds. Only an object with unknown fields, or values of a mapping, has one for each."""
    for field in model.model_fields:
        assert count_errors(model, {field: [item] * 1000}) <= 30


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/json; charset=utf-7",
        "application/json, text/plain",
        "application/problem+json",
        "",
        ";",
        SECRET,
    ],
)
def test_body_of_another_media_type_is_rejected(content_type, client):
    response = client.post("/classify", content=b'{"inputs": "a"}', headers={"content-type": content_type})

    assert_problem(response, 415, "unsupported_media_type")
    assert response.headers["accept"] == "application/json"


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "identity, gzip", SECRET])
def test_compressed_body_is_rejected(encoding, client):
    body = gzip.compress(b'{"inputs": "a"}')
    response = client.post("/classify", content=body, headers={"content-encoding": encoding})

    assert_problem(response, 415, "unsupported_encoding")
    assert response.headers["accept-encoding"] == "identity"


def test_body_with_too_large_content_length_is_rejected_unread(client):
    response = client.post("/classify", content=json.dumps({"inputs": "a" * MAX_BODY_BYTES}))

    assert_problem(response, 413, "body_too_large")
    assert response.headers["connection"] == "close"


def test_chunked_body_is_read_up_to_the_limit(client):
    def chunks():
        for _ in range(MAX_BODY_BYTES):
            yield SECRET.encode()

    response = client.post("/classify", content=chunks())

    assert_problem(response, 413, "body_too_large")


def test_body_of_exactly_the_limit_is_accepted(client):
    body = b'{"inputs": "a"}'.ljust(MAX_BODY_BYTES)

    assert client.post("/classify", content=body).status_code == 200
    assert_problem(client.post("/classify", content=body + b" "), 413, "body_too_large")


@pytest.mark.parametrize(
    ("body", "nearest"),
    [
        ({"inputs": "a", "parameters": {"topk": 1}}, "top_k"),
        ({"inputs": "a", "paramters": {}}, "parameters"),
        ({"inputs": "a", SECRET: 1}, None),
        ({"inputs": "a", "parameters": {"top_k" * 8: 1}}, None),
    ],
)
def test_unknown_field_names_the_most_similar_one(body, nearest, client):
    problem = assert_problem(client.post("/classify", json=body), 422, "validation_failed")

    (error,) = problem["errors"]
    assert (error["code"], error.get("nearest")) == ("extra_forbidden", nearest)
    assert problem["detail"].endswith(f"Did you mean {nearest}?") == (nearest is not None)


def test_many_unknown_fields_are_compared_once(client, monkeypatch):
    compared = []
    monkeypatch.setattr(
        "swiftlet_serve.http.endpoints.bodies.get_close_matches", lambda *names: compared.append(names) or []
    )
    body = {"inputs": "a", **{f"topk{i}": 1 for i in range(50)}}

    assert_problem(client.post("/classify", json=body), 422, "validation_failed")
    assert len(compared) == 1
