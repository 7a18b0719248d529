"""Null means the default, in every route of every dialect and for every optional field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from swiftlet_serve import tasks
from swiftlet_serve.http import dialects
from swiftlet_serve.http.endpoints import repository_control
from tests.support.hostile_dialects import BODIES

CHANGING = ("id", "created")  # fields of answers that differ from one to the next


def nested(kind: Any) -> Iterator[type[BaseModel]]:
    """Returns the models that a type is made of, and those in their fields."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from nested(field.annotation)
    for one in get_args(kind):
        yield from nested(one)


OPERATIONS = {one.path: one for name in dialects.names() for one in dialects.load(name).OPERATIONS}
BODY_MODELS = [
    *(tasks.load(name).TASK.Request for name in tasks.names()),
    *(operation.body for operation in OPERATIONS.values()),
    repository_control.LoadRequest,
    repository_control.IndexRequest,
]
MODELS = sorted(
    {model for body in BODY_MODELS for model in nested(body)}, key=lambda model: (model.__module__, model.__qualname__)
)
FIELDS = [(model, name) for model in MODELS for name in model.model_fields]


@pytest.mark.parametrize(("model", "name"), FIELDS, ids=[f"{model.__name__}.{name}" for model, name in FIELDS])
def test_null_is_accepted_by_fields_with_a_default_and_by_no_other(model: type[BaseModel], name: str) -> None:
    faults: set[Any] = set()
    try:
        model.model_validate_json(json.dumps({name: None}))
    except ValidationError as error:
        faults = {one["loc"][0] for one in error.errors()}
    field = model.model_fields[name]
    takes_any = field.annotation is Any

    assert (name in faults) == (field.is_required() and not takes_any)


def with_nulls(model: Any, body: Any) -> Any:
    """Returns a body in which all optional fields that it lacks are null, also those of nested models."""
    if isinstance(body, list):
        return [with_nulls(model, one) for one in body]
    if not isinstance(body, dict):
        return body
    shape = next((one for one in nested(model) if body.keys() <= one.model_fields.keys()), None)
    if shape is None:
        return {key: with_nulls(model, value) for key, value in body.items()}
    optional = {name: None for name, field in shape.model_fields.items() if not field.is_required()}
    return optional | {key: with_nulls(shape.model_fields[key].annotation, value) for key, value in body.items()}


def answer(client: Any, path: str, body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    return {key: each for key, each in found.items() if key not in CHANGING} if isinstance(found, dict) else found


@pytest.mark.parametrize("path", [path for path in BODIES if "models" not in path])
def test_null_gives_the_answer_of_a_body_without_the_field(path: str, every_client: Any) -> None:
    body, model = BODIES[path], OPERATIONS[path.strip()].body
    if "documents" in body:
        model = OPERATIONS["/v2/rerank"].body

    assert answer(every_client, path.strip(), with_nulls(model, body)) == answer(every_client, path.strip(), body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/classify", {"inputs": [{"text": "a"}, "b"], "parameters": {"top_k": 1}}),
        ("/qa", {"inputs": {"question": "Who?", "context": "Clara."}, "parameters": {"top_k": 2}}),
        ("/fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": 2}}),
        ("/entities", {"inputs": "Clara in Bern.", "parameters": {"stride": 2}}),
        ("/embed", {"inputs": ["a"], "parameters": {"dimensions": 3}}),
        ("/rerank", {"inputs": {"query": "a", "texts": ["b", "c"]}, "parameters": {"top_n": 1}}),
        ("/score", {"inputs": ["a warm film"], "parameters": {"return_tokens": True}}),
        ("/zero-shot", {"inputs": "a", "parameters": {"candidate_labels": ["b", "c"]}}),
        ("/models/qa", {"inputs": {"question": "Who?", "context": "Clara."}, "parameters": {"top_k": 2}}),
    ],
)
def test_null_gives_the_answer_of_our_own_body_without_the_field(path: str, body: Any, every_client: Any) -> None:
    model = tasks.load(path.removeprefix("/models").strip("/")).TASK.Request

    assert answer(every_client, path, with_nulls(model, body)) == answer(every_client, path, body)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/v1/models/classify:predict", {"top_k": None, "truncation": None}),
        ("/v2/models/classify/infer", {"top_k": None, "truncation": None, "timeout": None, "binary_data_output": None}),
    ],
)
def test_null_parameters_of_tensors_and_instances_are_defaults(path: str, parameters: Any, every_client: Any) -> None:
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"], "parameters": None}
    body = {"instances": ["a"]} if "predict" in path else {"inputs": [tensor], "outputs": None, "id": None}

    expected = answer(every_client, path, body)
    assert answer(every_client, path, body | {"parameters": parameters}) == expected
    assert answer(every_client, path, body | {"parameters": None}) == expected


def test_null_template_is_that_of_a_request_without_one(search_client: Any) -> None:
    """An embedding model reads a label alone unless the request has a template."""
    body = {"inputs": "a", "parameters": {"candidate_labels": ["b", "c"]}}
    with_null = {"inputs": "a", "parameters": {"candidate_labels": ["b", "c"], "hypothesis_template": None}}
    with_own = {"inputs": "a", "parameters": {"candidate_labels": ["b", "c"], "hypothesis_template": "is {}"}}

    expected = answer(search_client, "/zero-shot", body)
    assert answer(search_client, "/zero-shot", with_null) == expected != answer(search_client, "/zero-shot", with_own)
