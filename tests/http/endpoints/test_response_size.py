"""Answers with a line for each token: they are refused before the model runs, or not at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.endpoints import model_endpoint
from swiftlet_serve.http.endpoints.model_endpoint import MARGIN_OF_TOKENS, MAX_RESPONSE_RATIO
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.scheduling.model_scheduler import ModelScheduler
from swiftlet_serve.settings import Settings
from tests.support.app_client import AppClient
from tests.support.artifacts import make_artifact, reseal

LABELS = ("OTHER-1", "B-PER", "I-PER", 'B-""')
TEXTS = ["!?" * 23] * 128  # a token for each byte
TOKENS = {"aggregation_strategy": "none", "ignore_labels": []}
TENSORS = {
    "inputs": [{"name": "text", "shape": [len(TEXTS)], "datatype": "BYTES", "data": TEXTS}],
    "parameters": {"aggregation_strategy": "none", "ignore_labels": "[]"},
}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> LocalRuntime:
    directory: Path = tmp_path_factory.mktemp("models")
    models = reseal(make_artifact(directory, "entities"), labels=LABELS), make_artifact(directory, "score").path
    return LocalRuntime.load(Settings(models=tuple(map(str, models)), engine="echo", cores=2, max_response_bytes=4096))


@pytest.fixture(scope="module")
def client(runtime: LocalRuntime) -> Iterator[AppClient]:
    with AppClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "own": ("/entities", {"inputs": TEXTS, "parameters": TOKENS}),
    "details": ("/entities", {"inputs": TEXTS, "parameters": TOKENS, "details": True}),
    "partial": ("/entities", {"inputs": [" ", *TEXTS], "parameters": TOKENS, "partial": True}),
    "batch": ("/batch", {"requests": [{"task": "entities", "inputs": TEXTS, "parameters": TOKENS}]}),
    "hugging face": ("/models/entities", {"inputs": TEXTS, "parameters": TOKENS}),
    "sagemaker": ("/invocations", {"inputs": TEXTS, "parameters": TOKENS}),
    "kserve v1": ("/v1/models/entities:predict", {"instances": TEXTS, "parameters": TOKENS}),
}


@pytest.mark.parametrize("case", LARGE)
def test_answer_with_too_many_tokens_is_refused_before_the_model_runs(
    client: AppClient, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(ModelScheduler, "submit", None)
    path, body = LARGE[case]
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["code"]) == (422, "answer_too_large"), response.text[:200]


def test_other_answers_are_never_refused(client: AppClient) -> None:
    """The number of tokens with ignored labels is known after the run. Some answers have only some outputs."""
    for path, body in (
        ("/entities", {"inputs": TEXTS, "parameters": {"aggregation_strategy": "none", "ignore_labels": ["OTHER-1"]}}),
        ("/entities", {"inputs": TEXTS, "parameters": {"ignore_labels": []}}),
        ("/score", {"inputs": TEXTS, "parameters": {"return_tokens": True}}),
        ("/v2/models/entities/infer", TENSORS | {"outputs": [{"name": "start"}]}),
    ):
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text[:200]
        assert len(response.content) <= MARGIN_OF_TOKENS * MAX_RESPONSE_RATIO * len(json.dumps(body))


def test_margin_is_larger_only_where_the_tokens_were_checked(
    client: AppClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_endpoint, "MARGIN", 2)
    ignoring = {"inputs": TEXTS, "parameters": {"aggregation_strategy": "none", "ignore_labels": ["OTHER-1"]}}
    checked = client.post("/entities", json=ignoring)
    assert checked.status_code == 200
    assert len(checked.content) > 2 * MAX_RESPONSE_RATIO * len(json.dumps(ignoring))
    assert client.post("/v2/models/entities/infer", json=TENSORS).status_code == 422


def test_least_size_of_many_texts_is_not_computed_on_the_event_loop(
    client: AppClient, runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is computed once for all inputs of a partial request."""
    task, on_loop = runtime.tasks["score"].model.task, []
    compute = task.least_encoded_bytes

    def noted(*args: Any) -> int:
        on_loop.append(asyncio._get_running_loop() is not None)
        least: int = compute(*args)
        return least

    monkeypatch.setattr(task, "least_encoded_bytes", noted)
    for partial in (False, True):
        body = {"inputs": ["ab cd", " "] * 64 if partial else ["ab cd"] * 64, "partial": partial}
        assert client.post("/score", json=body | {"parameters": {"return_tokens": True}}).status_code == 200
    assert on_loop == [False, False]


@pytest.mark.parametrize(
    ("task", "parameters"), [("entities", TOKENS), ("score", {"return_tokens": True}), ("score", {}), ("entities", {})]
)
def test_least_size_is_never_above_the_size(
    client: AppClient, runtime: LocalRuntime, task: str, parameters: dict[str, Any]
) -> None:
    by_token = "return_tokens" in parameters or parameters == TOKENS
    for texts in (["ab"], ["🐝 é", "a b " * 20, "x!"], TEXTS[:20]):
        body = {"inputs": texts, "parameters": parameters}
        size = len(client.post(f"/{task}", json=body).content)
        made = runtime.tasks[task].model.task
        request = made.Request.model_validate_json(json.dumps(body))
        least = made.least_encoded_bytes(request, made.encode(request))
        assert least <= size
        assert least >= size / 3 if by_token else least == 0
