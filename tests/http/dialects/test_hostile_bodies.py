"""Damaged bodies in every dialect: each gets a status of the client's, in the form of the dialect, without its text."""

from __future__ import annotations

import json
import random

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http import dialects
from tests.support.apps import SECRET
from tests.support.hostile_dialects import BODIES, damage
from tests.support.tiers import first


def test_bodies_cover_the_routes_of_every_dialect() -> None:
    operations = {operation.path for name in dialects.names() for operation in dialects.load(name).OPERATIONS}
    named = {"zero-shot": "{model}", "classify": "{model}", "qa": "{model}", "rerank": "{model}", "entities": "{model}"}

    def pattern(path: str) -> str:
        for name, hole in named.items():
            path = path.replace(f"/models/{name}", f"/models/{hole}")
        return path.replace("/versions/1", "/versions/{version}").strip()

    assert {pattern(path) for path in BODIES} == operations


@pytest.mark.parametrize("path", BODIES)
def test_valid_body_is_answered(path: str, every_client: TestClient) -> None:
    assert every_client.post(path.strip(), json=BODIES[path]).status_code == 200


@pytest.mark.parametrize("damages", first([50, 150], 50))
@pytest.mark.parametrize("path", BODIES)
def test_damaged_body_gets_an_error_without_its_text(path: str, damages: int, every_client: TestClient) -> None:
    pick = random.Random(path)
    outcomes = set()
    for _ in range(damages):
        body = damage(BODIES[path], pick)
        content, headers = json.dumps(body), {"content-type": "application/json"}
        response = every_client.post(path.strip(), content=content, headers=headers)

        assert response.status_code in (200, 400, 404, 413, 422), body
        outcomes.add(response.status_code)
        if response.status_code != 200:
            assert SECRET not in response.text, body
            assert {"code", "error", "message", "detail"} & response.json().keys()
    assert 422 in outcomes


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 3000, b"null", b'{"a":' * 900, b'"' + SECRET.encode()])
def test_body_that_is_no_object_is_refused(path: str, content: bytes, every_client: TestClient) -> None:
    response = every_client.post(path.strip(), content=content, headers={"content-type": "application/json"})

    assert response.status_code in (400, 422)
    assert SECRET not in response.text
