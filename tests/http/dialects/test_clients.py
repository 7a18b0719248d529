"""Unmodified clients of other servers, each in a process and an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftlet_serve.models.artifact import Decisions
from tests.support.artifacts import make_artifact, reseal
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import Process, serving

TEXTS = ["Clara lives in 서울 🎬.", "e\u0301 and no more"]
STATEMENT = "The text is positive."
EMPTY = "The text is empty. Send a text that is not blank."
UNKNOWN = "No model has this name. See /models for the served models."


@pytest.fixture(scope="module")
def server(artifact_dir: Path) -> Iterator[Process]:
    models = ",".join(str(artifact_dir / f"tiny-{task}") for task in ("classify", "qa", "fill-mask"))
    with serving(artifact_dir, "--models", models) as process:
        yield process


@pytest.fixture(scope="module")
def other_tasks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The artifacts of more tasks, and of a classifier that answers predicates."""
    directory = tmp_path_factory.mktemp("tasks")
    made = [make_artifact(directory, task).path for task in ("embed", "rerank", "entities", "zero-shot")]
    known = Decisions(predicates={STATEMENT: "good"}, scores={"How?": ("bad", "good")})
    return [str(reseal(make_artifact(directory, "classify"), decisions=known)), *map(str, made)]


@pytest.fixture(scope="module")
def full_server(artifact_dir: Path, other_tasks: list[str]) -> Iterator[Process]:
    models = [*other_tasks, *(str(artifact_dir / f"tiny-{task}") for task in ("qa", "fill-mask"))]
    with serving(artifact_dir, "--models", ",".join(models)) as process:
        yield process


def run(program: str, server: Process, *arguments: str) -> Any:
    """Returns what a program of `tests/http/clients` prints."""
    uv = shutil.which("uv", path=str(ROOT / ".venv-dev/bin")) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "run", "--quiet", "--no-project", f"tests/http/clients/{program}.py", server.url, json.dumps(TEXTS)]
    command += arguments
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    if "error sending request" in done.stderr:
        pytest.skip("the client's packages cannot be downloaded")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def post(server: Process, path: str, body: object) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


def get(server: Process, path: str) -> Any:
    with urllib.request.urlopen(server.url + path, timeout=PATIENCE_S) as response:
        return json.load(response)


def test_triton_http(server):
    own = post(server, "/classify", {"inputs": TEXTS})
    labels = [[one["label"] for one in row] for row in own]
    sample = {"question": "Who lives there?", "context": TEXTS[0]}
    masked = post(server, "/fill-mask", {"inputs": "the [MASK] ."})
    found = run("triton_http", server)

    assert found.pop("deadline")[0] in ("503", "504")
    assert np.allclose(found.pop("scores"), [[row[0]["score"]] for row in own], rtol=1e-6)
    assert found == {
        "live": True,
        "ready": True,
        "models": ["tiny-classify", "tiny-qa", "tiny-fill-mask"],
        "inputs": ["question", "context"],
        "id": "7",
        "labels": [row[:1] for row in labels],
        "labels in JSON": labels,
        "texts in JSON": labels,
        "compressed": labels,
        "answer": [[post(server, "/qa", {"inputs": sample})["answer"]]],
        "masked": [[one["token_str"] for one in masked]],
        "unknown model": ["404", UNKNOWN],
        "invalid": ["422", "The model's task has no such parameter."],
    }


def test_kserve_rest(server):
    own = post(server, "/classify", {"inputs": TEXTS})
    columns = {name: [one[name] for row in own for one in row] for name in ("label", "score")}
    found = run("kserve_rest", server)

    for form in (found.pop("json"), found.pop("binary")):
        assert form["label"] == columns["label"]
        assert np.allclose(form["score"], columns["score"], rtol=1e-6)
    for version in ("v1", "v2"):
        kind, message = found.pop(f"empty {version}")
        assert (kind, message[: len(EMPTY)]) == ("HTTPStatusError", EMPTY)
    assert found == {"live": True, "ready": True, "ready v1": True, "predictions": {"predictions": own}}


def test_openai(full_server):
    own = np.array(post(full_server, "/embed", {"inputs": TEXTS}))
    questions = [
        {"type": "predicate", "name": "positive", "instructions": STATEMENT},
        {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]},
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
    ]
    decisions = post(full_server, "/v1/decisions", {"model": "classify", "input": TEXTS[0], "questions": questions})
    body = {
        "model": "zero-shot",
        "input": TEXTS[0],
        "questions": [
            {"type": "predicate", "instructions": "It is a film."},
            {
                "type": "choice",
                "instructions": "Which?",
                "choices": [{"value": "film", "description": "A film."}, {"value": "book", "description": "A book."}],
            },
        ],
    }
    film, which = post(full_server, "/v1/decisions", body)["answers"]
    found = run("openai_python", full_server)

    for name in ("floats", "packed", "langchain"):
        assert np.allclose(found.pop(name), own, atol=1e-6)
    assert found == {
        "models": [
            "tiny-classify",
            "tiny-embed",
            "tiny-rerank",
            "tiny-entities",
            "tiny-zero-shot",
            "tiny-qa",
            "tiny-fill-mask",
        ],
        "dimensions": [3, 3],
        "decisions": decisions,
        "decisions again": decisions,
        "langchain decisions": [film["probability"], which["choice"]],
        "empty": ["UnprocessableEntityError", "empty_input", "/inputs/0", EMPTY],
        "unknown": [
            "NotFoundError",
            "unknown_model",
            None,
            "No model has this name. See /models for the served models.",
        ],
        "unanswerable": [
            "UnprocessableEntityError",
            "validation_failed",
            "/questions/0",
            "The model's manifest maps no label to this predicate. Ask a zero-shot model.",
        ],
    }


def test_openai_retries_when_it_is_refused(artifact_dir, other_tasks):
    with serving(artifact_dir, "--models", ",".join(other_tasks), "--client-rate-limit", "1") as server:
        assert run("openai_python", server, "retry") is True


def test_hugging_face(full_server):
    def own(path: str, inputs: object, **parameters: object) -> Any:
        body = {"inputs": inputs} | ({"parameters": parameters} if parameters else {})
        return post(full_server, path, body)

    found = run("hugging_face", full_server)

    kind, status, message = found.pop("empty")
    assert (kind, status) == ("HfHubHTTPError", 422)
    assert EMPTY in message
    (classified,) = own("/classify", TEXTS[0])
    assert found.pop("classify") == found.pop("by model") == classified
    question = {"question": "Who?", "context": TEXTS[0]}
    vectors = np.array(own("/embed", TEXTS))
    assert np.allclose(found.pop("similar"), vectors @ vectors[0])
    assert np.allclose(found.pop("embed"), vectors)
    assert np.allclose(found.pop("raw"), own("/embed", [TEXTS[0]], normalize=False))
    expected = {
        "qa": own("/qa", question),
        "fill-mask": own("/fill-mask", "the [MASK] ."),
        "entities": own("/entities", TEXTS[0]),
        "zero-shot": own("/zero-shot", TEXTS[0], candidate_labels=["film", "서울"]),
    }
    assert set(found) == set(expected)
    for name, answers in expected.items():  # the client adds fields of other tasks
        assert _contains(found[name], answers)


def test_hugging_face_in_javascript(full_server, tmp_path):
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("node is not installed")
    shutil.copy(ROOT / "tests/http/clients/hugging_face.mjs", tmp_path)
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path)]
    if subprocess.run([*install, "@huggingface/inference@4.13.30"], capture_output=True, check=False).returncode:
        pytest.skip("the client's packages cannot be downloaded")
    command = [node, str(tmp_path / "hugging_face.mjs"), full_server.url, json.dumps(TEXTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    (classified,) = post(full_server, "/classify", {"inputs": TEXTS[0]})
    vectors = np.array(post(full_server, "/embed", {"inputs": TEXTS}))
    zero_shot = {"inputs": TEXTS[0], "parameters": {"candidate_labels": ["film", "서울"]}}
    assert np.allclose(found.pop("embed"), vectors)
    assert np.allclose(found.pop("similar"), vectors @ vectors[0])
    assert found == {
        "classify": classified,
        "qa": post(full_server, "/qa", {"inputs": {"question": "Who?", "context": TEXTS[0]}}),
        "fill-mask": post(full_server, "/fill-mask", {"inputs": "the [MASK] ."}),
        "entities": post(full_server, "/entities", {"inputs": TEXTS[0]}),
        "zero-shot": post(full_server, "/zero-shot", zero_shot),
        "empty": ["ProviderApiError", 422, f"Failed to perform inference: {EMPTY}"],
    }


def _contains(found: Any, answers: Any) -> bool:
    if isinstance(answers, list):
        return len(found) == len(answers) and all(map(_contains, found, answers))
    return all(found[key] == value for key, value in answers.items())


def test_cohere(full_server):
    own = post(full_server, "/rerank", {"inputs": {"query": "Who?", "texts": TEXTS}})

    assert run("cohere_python", full_server) == {
        "v1": [[one["index"], one["score"], TEXTS[one["index"]]] for one in own],
        "v2": [[one["index"], one["score"]] for one in own],
        "best": 1,
        "empty": ["UnprocessableEntityError", 422, EMPTY],
        "unknown": ["NotFoundError", 404, UNKNOWN],
    }
