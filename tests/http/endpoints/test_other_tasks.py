"""An embedding model also ranks texts and chooses among labels, on every route and from one engine."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.apps import assert_problem
from tests.support.artifacts import make_artifact

QUERY, TEXTS = "How do bees dance?", ["Rain is wet.", "꿀벌은 춤춘다 🐝", "Bees waggle."]
RANKING = {"inputs": {"query": QUERY, "texts": TEXTS}}
CHOICE = {"inputs": QUERY, "parameters": {"candidate_labels": TEXTS}}


def serve(directory: Path, *tasks: str) -> TestClient:
    models = tuple(str(make_artifact(directory, task).path) for task in tasks)
    runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=2))
    return TestClient(create_app(runtime), raise_server_exceptions=False)


@pytest.fixture
def client(tmp_path):
    """A client of a server with an embedding model and a classifier, over the echo engine."""
    with serve(tmp_path, "classify", "embed") as client:
        yield client


def vectors(client, texts, **parameters):
    """Returns the normalised vectors of texts, (N, D)."""
    found = np.array(client.post("/embed", json={"inputs": texts, "parameters": parameters}).json())
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture
def cosines(client):
    """The cosines of the query's vector with those of the texts."""
    query, *others = vectors(client, [QUERY, *TEXTS])
    return [float(query @ other) for other in others]


def test_embedding_model_ranks_texts_by_the_cosine(client):
    ranked = client.post("/rerank", json=RANKING).json()

    (query,) = vectors(client, [QUERY], prompt_name="query")
    expected = [float(query @ text) for text in vectors(client, TEXTS)]
    assert [one["score"] for one in ranked] == pytest.approx(sorted(expected, reverse=True), abs=1e-6)
    assert [expected[one["index"]] for one in ranked] == sorted(expected, reverse=True)


def test_query_of_an_embedding_model_counts_as_a_truncated_text_of_its_own(client):
    body = {"inputs": {"query": "a " * 100, "texts": ["b", "a " * 100]}, "details": True}
    response = client.post("/rerank", json=body)

    assert response.json()["details"]["truncated"] == ["/inputs/query", "/inputs/texts/1"]
    assert response.headers["x-truncated"] == "2"


def test_embedding_model_chooses_among_labels(client, cosines):
    labels = client.post("/zero-shot", json=CHOICE).json()

    odds = [math.exp(20 * (cosine - 0.3)) for cosine in cosines]
    probabilities = dict(zip(TEXTS, [one / sum(odds) for one in odds], strict=True))
    assert {one["label"]: one["score"] for one in labels} == pytest.approx(probabilities, abs=1e-6)


def test_dialects_rank_and_decide_with_an_embedding_model(client, cosines):
    ranked = client.post("/rerank", json=RANKING).json()
    cohere = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    tei = client.post("/rerank", json={"query": QUERY, "texts": TEXTS}).json()
    question = {"type": "predicate", "instructions": TEXTS[0]}
    body = {"model": "tiny-embed", "input": QUERY, "questions": [question]}
    (decision,) = client.post("/v1/decisions", json=body).json()["answers"]

    assert [one["relevance_score"] for one in cohere["results"]] == [one["score"] for one in ranked]
    assert cohere["model"] == "tiny-embed"
    assert [one["score"] for one in tei] == [one["score"] for one in ranked]
    assert decision["probability"] == pytest.approx(1 / (1 + math.exp(-20 * (cosines[0] - 0.3))))


def test_model_of_the_task_goes_before_an_embedding_model(tmp_path):
    with serve(tmp_path, "embed", "rerank") as client:
        default = client.post("/v2/rerank", json={"query": QUERY, "documents": TEXTS}).json()
        plain = client.post("/rerank", json=RANKING).json()
        named = client.post("/rerank", json=RANKING | {"model": "tiny-embed"}).json()
        models = {one["name"]: one for one in client.get("/models").json()}

    assert default["model"] == "tiny-rerank"
    assert [one["relevance_score"] for one in default["results"]] == [one["score"] for one in plain]
    assert named != plain
    assert models["tiny-embed"]["other_tasks"] == ["rerank", "zero-shot"]
    assert models["tiny-rerank"]["other_tasks"] == []
    assert models["tiny-embed"]["default"] is models["tiny-rerank"]["default"] is True


def test_other_tasks_are_described_and_others_refused(client):
    paths = client.get("/openapi.json").json()["paths"]

    assert {"/classify", "/embed", "/rerank", "/zero-shot"} <= paths.keys()
    assert_problem(client.post("/qa", json={}), 404, "unknown_route")
    assert_problem(client.post("/rerank", json=RANKING | {"model": "tiny-classify"}), 404, "unknown_model")
    assert_problem(client.post("/classify", json={"inputs": "x", "model": "tiny-embed"}), 404, "unknown_model")


def test_requests_of_all_tasks_are_counted_for_the_one_model(client):
    client.post("/embed", json={"inputs": QUERY})
    client.post("/rerank", json=RANKING)
    client.post("/zero-shot", json=CHOICE)

    (embed,) = [one for one in client.get("/status").json()["models"] if one["name"] == "tiny-embed"]
    assert embed["answered"] == 3
