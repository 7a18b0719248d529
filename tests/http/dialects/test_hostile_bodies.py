"""Damaged bodies in every dialect: each gets a status of the client's, in the form of the dialect, without its text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.models.artifact import Decisions
from swiftlet_serve.service.http import dialects
from swiftlet_serve.service.http.app import create_app
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from tests.support.apps import SECRET
from tests.support.artifacts import LABELS, make_artifact, reseal

DAMAGES = 150  # of each body
TEXTS = [SECRET, f"{SECRET} 서울 🎬"]
QUESTION = {"type": "predicate", "name": SECRET, "instructions": SECRET}
CHOICE = {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]}
SCORE = {"type": "score", "instructions": SECRET, "levels": [{"label": "low"}, {"label": SECRET}]}


def tensor(name: str, *texts: str) -> dict[str, Any]:
    return {"name": name, "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}


BODIES: dict[str, Any] = {
    "/v1/embeddings": {"model": "embed", "input": TEXTS, "dimensions": 3, "encoding_format": "float"},
    "/v1/decisions": {"model": "classify", "input": SECRET, "questions": [CHOICE]},
    "/v1/decisions ": {
        "model": "zero-shot",
        "input": [{"role": "user", "content": SECRET}],
        "questions": [QUESTION, SCORE],
    },
    "/v1/systemone": {
        "model": "zero-shot",
        "state": {"a": SECRET},
        "questions": {SECRET: {"type": "noul", "instructions": SECRET, "criteria": {"true": "a", "false": "b"}}},
    },
    "/v1/classify": {"model": "classify", "input": TEXTS},
    "/classify": {"input": TEXTS},
    "/predict": {"inputs": [[SECRET], TEXTS], "truncate": True, "raw_scores": False},
    "/embed": {"inputs": TEXTS, "truncate": True, "normalize": False, "prompt_name": "query"},
    "/similarity": {"inputs": {"source_sentence": SECRET, "sentences": TEXTS}},
    "/rerank": {"query": SECRET, "texts": TEXTS, "raw_scores": True, "return_text": False},
    "/rerank ": {"query": SECRET, "documents": TEXTS, "top_n": 1},
    "/v2/rerank": {"model": "rerank", "query": SECRET, "documents": [TEXTS[0], {"text": TEXTS[1]}], "top_n": 1},
    "/v1/rerank": {"model": "rerank", "query": SECRET, "documents": TEXTS, "max_tokens_per_doc": 4096},
    "/v1/models/classify:predict": {"instances": TEXTS, "parameters": {"top_k": 1}},
    "/models/zero-shot": {"inputs": SECRET, "parameters": {"candidate_labels": TEXTS, "multi_label": True}},
    "/v2/models/qa/infer": {
        "id": SECRET,
        "inputs": [tensor("question", *TEXTS), tensor("context", SECRET)],
        "parameters": {"top_k": 2},
        "outputs": [{"name": "answer", "parameters": {"binary_data": True}}],
    },
    "/v2/models/rerank/versions/1/infer": {"inputs": [tensor("query", SECRET), tensor("texts", *TEXTS)]},
    "/v2/models/entities/infer": {"inputs": [tensor("text", *TEXTS)], "parameters": {"stride": 2}},
}
"""A valid body for each route. A space after a path makes another key."""

VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    2**70,
    1.5,
    1e308,
    "",
    " ",
    "\x00",
    "[",
    '["',
    "{}",
    SECRET,
    SECRET * 99,
    [],
    {},
    [[]],
    [None],
    [SECRET] * 70,
    [SECRET] * 1100,
    {"text": SECRET},
    {SECRET: SECRET},
    [[[[[[[[SECRET]]]]]]]],
    [tensor("text", SECRET)],
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of every task, over the echo engine."""
    directory: Path = tmp_path_factory.mktemp("every")
    artifacts = [make_artifact(directory, task) for task in LABELS]
    models = [reseal(one, decisions=Decisions(predicates={SECRET: "good"})) for one in artifacts[:1]]
    models += [one.path for one in artifacts[1:]]
    runtime = Runtime.load(Settings(models=tuple(map(str, models)), engine="echo", cores=2))
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Returns the path of every value inside a body."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def damage(body: Any, pick: random.Random) -> Any:
    """Returns a body of which one to three values are replaced, removed or doubled."""
    damaged = copy.deepcopy(body)
    for _ in range(pick.randint(1, 3)):
        every = list(places(damaged))
        if not every:
            return pick.choice(VALUES)
        *path, key = pick.choice(every)
        parent = damaged
        for step in path:
            parent = parent[step]
        if pick.random() < 0.2:
            del parent[key]
        elif pick.random() < 0.1 and isinstance(parent, list):
            parent.append(parent[key])
        elif pick.random() < 0.1 and isinstance(parent, dict):
            parent[pick.choice(("extra", SECRET))] = pick.choice(VALUES)
        else:
            parent[key] = copy.deepcopy(pick.choice(VALUES))
    return damaged


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
