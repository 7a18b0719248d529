"""Damaged bodies in every dialect: each gets a status of the client's, in the form of the dialect, without its text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.service.http import dialects
from swiftlet_serve.service.http.app import create_app
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from tests.support.apps import SECRET
from tests.support.hostile_dialects import BODIES, damage, models

DAMAGES = 150  # of each body


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of every task, over the echo engine."""
    runtime = Runtime.load(Settings(models=models(tmp_path_factory.mktemp("every")), engine="echo", cores=2))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


def test_bodies_cover_the_routes_of_every_dialect() -> None:
    operations = {operation.path for name in dialects.names() for operation in dialects.load(name).OPERATIONS}
    named = {"zero-shot": "{model}", "classify": "{model}", "qa": "{model}", "rerank": "{model}", "entities": "{model}"}

    def pattern(path: str) -> str:
        for name, hole in named.items():
            path = path.replace(f"/models/{name}", f"/models/{hole}")
        return path.replace("/versions/1", "/versions/{version}").strip()

    assert {pattern(path) for path in BODIES} == operations


@pytest.mark.parametrize("path", BODIES)
def test_valid_body_is_answered(path: str, client: TestClient) -> None:
    assert client.post(path.strip(), json=BODIES[path]).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_damaged_body_gets_an_error_without_its_text(path: str, client: TestClient) -> None:
    pick = random.Random(path)
    outcomes = set()
    for _ in range(DAMAGES):
        body = damage(BODIES[path], pick)
        response = client.post(path.strip(), content=json.dumps(body), headers={"content-type": "application/json"})

        assert response.status_code in (200, 400, 404, 413, 422), body
        outcomes.add(response.status_code)
        if response.status_code != 200:
            assert SECRET not in response.text, body
            assert {"code", "error", "message"} & response.json().keys()
    assert 422 in outcomes


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 3000, b"null", b'{"a":' * 900, b'"' + SECRET.encode()])
def test_body_that_is_no_object_is_refused(path: str, content: bytes, client: TestClient) -> None:
    response = client.post(path.strip(), content=content, headers={"content-type": "application/json"})

    assert response.status_code in (400, 422)
    assert SECRET not in response.text
