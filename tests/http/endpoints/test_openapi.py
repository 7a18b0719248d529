"""The OpenAPI document, compared with the service."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from swiftlet_serve import errors
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.endpoints import openapi
from tests.support.apps import TASKS, make_runtime


def test_openapi_describes_every_error_and_every_field(client):
    document = client.get("/openapi.json").json()

    for task in TASKS:
        responses = document["paths"][f"/{task}"]["post"]["responses"]
        assert {int(status) for status in responses} == {200} | {kind.status for kind in SwiftletError.__subclasses__()}
    own = {name: one for name, one in document["components"]["schemas"].items() if "." not in name}
    for name, schema in own.items():  # other servers document the fields of their protocols
        for field, described in schema.get("properties", {}).items():
            assert described.get("description"), f"{name}.{field}"


def references(value: object) -> Iterator[str]:
    """Returns all references of a JSON document."""
    if isinstance(value, dict):
        yield from (one for key, one in value.items() if key == "$ref")
        yield from (found for one in value.values() for found in references(one))
    elif isinstance(value, list):
        yield from (found for one in value for found in references(one))


def test_openapi_has_every_schema_that_it_refers_to(client):
    document = client.get("/openapi.json").json()
    known = {f"{openapi.SCHEMAS}{name}" for name in document["components"]["schemas"]}

    assert len({one.split(".")[0] for one in known if "." in one}) > 2  # of several dialects
    assert set(references(document)) <= known
    assert "$defs" not in json.dumps(document)


def test_openapi_describes_the_codes_of_every_error():
    described = " ".join(response["description"] for response in openapi._failures().values())

    for kind in vars(errors).values():
        for code in getattr(kind, "codes", ()):
            assert code in described


@pytest.fixture(scope="module")
def operations(artifact_dir):
    async def stay_open() -> None:
        pass

    runtime = make_runtime(artifact_dir, max_body_bytes=1 << 20)
    runtime.close = stay_open  # schemathesis starts and stops the application for each call
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(runtime))
    return {operation.ok().path: operation.ok() for operation in schema.get_all_operations()}


BEYOND_A_SCHEMA = {
    "empty_input",
    "no_mask",
    "no_target",
    "too_many_masks",
    "input_too_long",
    "answer_too_large",
    "unknown_model",
}

# JSON Schema accepts 2.0 as an integer, has no bounds that depend on the model, and cannot compare two lists' lengths.
BEYOND_A_SCHEMA |= {"int_type", "less_than_equal", "version_header", "wrong_length"}


def codes(problem: dict) -> set[str]:
    """Returns the codes of an error, as specific as it is."""
    if problem["code"] != "validation_failed":
        return {problem["code"]}
    return {fault["code"] for fault in problem["errors"]}


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(
    "path", ["/classify", "/qa", "/fill-mask", "/models", "/status", "/health/live", "/health/ready"]
)
def test_service_conforms_to_its_openapi_document(path, mode, operations):
    """Requests that fit the schema or break it cause no 5xx and no undescribed response."""

    @settings(max_examples=30, suppress_health_check=list(HealthCheck))
    @given(case=operations[path].as_strategy(generation_mode=mode))
    def check(case):
        timeout = str((case.headers or {}).get("X-Request-Timeout-Ms", ""))
        if re.fullmatch("[1-9][0-9]{0,5}", timeout) and int(timeout) <= 600_000:
            case.headers["X-Request-Timeout-Ms"] = "600000"  # with a shorter timeout, a 504 would be correct
        # All checks but one: a schema cannot require a mask or visible characters in a text.
        response = case.call_and_validate(excluded_checks=[positive_data_acceptance])
        if mode is GenerationMode.POSITIVE:
            assert response.status_code == 200 or codes(response.json()) <= BEYOND_A_SCHEMA

    with contextlib.suppress(Unsatisfiable):  # a route without parameters has no invalid requests
        check()
