"""With `"partial": true`, each of several inputs has its own answer or error. Otherwise one error fails all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.loading import LoadedModel, load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks import qa
from swiftlet_serve.types import Batch, Row

TASKS = ("classify", "qa", "fill-mask")
LONG = "a " * 60  # more tokens than the tiny models read
UNTRUNCATED = {"truncation": False}


class FailingEcho(Echo):
    """Fails on every sequence with this token."""

    def __init__(self, width: int, token: int) -> None:
        super().__init__(width)
        self.token = token

    def run(self, batch: Batch) -> list[Row]:
        if self.token in batch.input_ids:
            raise RuntimeError("the sequence has the failing token")
        return list(super().run(batch))


def make_runtime(
    artifact_dir: Path, engine: Callable[[LoadedModel], Echo], cores: int = 2, **settings: Any
) -> LocalRuntime:
    loaded = [load_model(artifact_dir / f"tiny-{task}", "echo") for task in TASKS]
    served = [replace(model, engine=engine(model)) for model in loaded]
    return LocalRuntime.of(Settings(cores=cores, **settings), served)


@pytest.fixture(scope="module")
def runtime(artifact_dir):
    """Serves three models that fail on every text with a `%`."""

    def failing(model: LoadedModel) -> Echo:
        return FailingEcho(model.manifest.width, model.task.tokenizer.token_to_id("%"))

    return make_runtime(artifact_dir, failing)


@pytest.fixture(scope="module")
def client(runtime):
    with TestClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


def ask(client, task: str, inputs: Any, partial: bool | None = True, **parameters: Any) -> Any:
    body = {"inputs": inputs, "parameters": parameters} | ({} if partial is None else {"partial": partial})
    return client.post(f"/{task}", json=body)


GOOD: dict[str, Any] = {
    "classify": ["one", {"text": "two", "text_pair": "three"}, "four"],
    "qa": [{"question": f"who {i}?", "context": f"it was {i}. " * 4 * i} for i in (1, 2, 3)],
    "fill-mask": ["a [MASK]", "[MASK] b [MASK]", "c [MASK]"],
}
BAD: dict[str, list[tuple[Any, str]]] = {
    "classify": [("", "empty_input"), ({"text": " "}, "empty_input"), (LONG, "input_too_long"), ("50 %", "internal")],
    "qa": [
        ({"question": "", "context": "a"}, "empty_input"),
        ({"question": "a", "context": "\u200b"}, "empty_input"),
        ({"question": LONG, "context": "a"}, "input_too_long"),
        ({"question": "a", "context": "b c d " * 20 + "%"}, "internal"),
    ],
    "fill-mask": [
        ("no mask", "no_mask"),
        (LONG + "[MASK]", "input_too_long"),
        ("[MASK] " + LONG, "input_too_long"),
        ("[MASK] %", "internal"),
    ],
}
PARAMETERS: dict[str, dict[str, Any]] = {"classify": UNTRUNCATED, "qa": {}, "fill-mask": UNTRUNCATED}


@pytest.mark.parametrize("task", TASKS)
def test_partial_answers_each_input_as_if_it_were_alone(task, client, runtime):
    inputs = [GOOD[task][0], *(bad for bad, _ in BAD[task]), *GOOD[task][1:]]
    response = ask(client, task, inputs, **PARAMETERS[task])
    answers = response.json()

    assert response.status_code == 200
    assert [answer["code"] for answer in answers[1:-2]] == [code for _, code in BAD[task]]
    for answer in answers[1:-2]:
        assert answer.keys() == {"error", "error_type", "code"}
        assert answer["error_type"] == answer["code"]
    assert [answers[0], *answers[-2:]] == ask(client, task, GOOD[task], partial=None).json()
    TypeAdapter(runtime.tasks[task].model.task.Response).validate_python(answers)


@pytest.mark.parametrize("task", TASKS)
def test_partial_changes_nothing_without_errors(task, client):
    assert ask(client, task, GOOD[task]).content == ask(client, task, GOOD[task], partial=False).content


@pytest.mark.parametrize("task", TASKS)
def test_without_partial_one_error_fails_the_request(task, client):
    for bad, code in BAD[task]:
        response = ask(client, task, [*GOOD[task], bad], partial=None, **PARAMETERS[task])

        assert (response.status_code, response.json()["code"]) == (500 if code == "internal" else 422, code)


@pytest.mark.parametrize("task", TASKS)
def test_partial_has_no_effect_with_one_input(task, client):
    for bad, code in BAD[task]:
        for inputs in (bad, [bad]):
            assert ask(client, task, inputs, **PARAMETERS[task]).json()["code"] == code
    for inputs in (GOOD[task][0], GOOD[task][:1]):
        assert ask(client, task, inputs).content == ask(client, task, inputs, partial=None).content


@pytest.mark.parametrize("task", TASKS)
def test_partial_allows_all_inputs_to_fail(task, client):
    answers = ask(client, task, [bad for bad, _ in BAD[task]], **PARAMETERS[task]).json()

    assert [answer["code"] for answer in answers] == [code for _, code in BAD[task]]
    assert (
        len(ask(client, task, [bad for bad, _ in BAD[task][:2]], **PARAMETERS[task]).json()) == 2
    )  # without any sequence


def test_partial_supports_questions_with_a_shared_context(client):
    inputs = {"question": ["who?", " ", "when?"], "context": "it was me, in May."}
    first, second, third = ask(client, "qa", inputs).json()

    assert second["code"] == "empty_input"
    assert [first, third] == ask(client, "qa", inputs | {"question": ["who?", "when?"]}).json()


@pytest.mark.parametrize(
    ("task", "inputs", "parameters", "code"),
    [
        ("qa", {"question": ["a", "b"], "context": ["a"]}, {}, "validation_failed"),
        ("qa", GOOD["qa"], {"doc_stride": 99}, "validation_failed"),
        ("qa", {"question": ["a"] * 3, "context": "a " * (qa.MAX_CHARACTERS // 5)}, {}, "input_too_long"),
        ("qa", {"question": ["a"] * 3, "context": "b" * 100}, {"max_seq_len": 5}, "input_too_long"),
        ("classify", ["a", ""], {"top_k": 0}, "validation_failed"),
        ("fill-mask", ["[MASK]" * 40] * 2, {}, "too_many_masks"),
        ("fill-mask", ["[MASK]"] * 2, {"targets": "\x00"}, "validation_failed"),
    ],
)
def test_partial_request_fails_as_a_whole_if_it_is_invalid(task, inputs, parameters, code, client):
    response = ask(client, task, inputs, **parameters)

    assert (response.status_code, response.json()["code"]) == (422, code)


def test_partial_tokenizes_the_targets_once(client, monkeypatch):
    tokenize, found = Tokenizer.tokenize, []
    monkeypatch.setattr(Tokenizer, "tokenize", lambda own, texts: found.append(texts) or tokenize(own, texts))
    response = ask(client, "fill-mask", ["a [MASK]", "no mask", "b [MASK]"], targets=["a", "b"])

    assert [isinstance(one, list) for one in response.json()] == [True, False, True]
    assert found.count(["a", "b"]) == 1


def test_partial_request_is_refused_as_a_whole(artifact_dir):
    runtime = make_runtime(artifact_dir, lambda model: model.engine)
    with TestClient(create_app(runtime)) as client:
        runtime.admission.max_queued_tokens = 6
        response = ask(client, "classify", ["abc", "abc"])

    assert (response.status_code, response.json()["code"]) == (503, "overloaded")


def test_partial_reports_invalid_engine_output_for_its_input(artifact_dir):
    class Nan(Echo):
        def run(self, batch: Batch) -> list[Row]:
            return [np.full_like(row, np.nan) if i == 1 else row for i, row in enumerate(super().run(batch))]

    # One core, so that all three inputs form one batch.
    runtime = make_runtime(artifact_dir, lambda model: Nan(model.manifest.width), cores=1)
    with TestClient(create_app(runtime)) as client:
        answers = ask(client, "classify", ["a", "b", "c"]).json()

    assert [isinstance(answer, list) for answer in answers] == [True, False, True]
    assert answers[1]["code"] == "invalid_engine_output"


@pytest.mark.parametrize("task", TASKS)
def test_openapi_documents_the_failure(task, client):
    document = client.get("/openapi.json").json()
    response = document["paths"][f"/{task}"]["post"]["responses"]["200"]

    assert document["components"]["schemas"]["Failure"]["required"] == ["error", "error_type", "code"]
    assert "#/components/schemas/Failure" in json.dumps(response)
