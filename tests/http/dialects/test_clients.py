"""Unmodified clients of other servers, each in a process and an environment of its own.

`tests/http/clients/shown.json` tells what they did, and the documentation shows it. To write it again:

    SWIFTLET_WRITE_CLIENTS=1 pytest tests/http/dialects/test_clients.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from swiftlet_models.artifact import Decisions
from swiftlet_serve.http.gate.api_keys import make_key
from tests.support.artifacts import make_artifact, reseal
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import Process, serving

TEXTS = ["Clara lives in 서울 🎬.", "e\u0301 and no more"]
MASKED = ["the [MASK] .", "서울 [MASK] 🎬"]
STATEMENT = "The text is positive."
TASKS = ("classify", "qa", "fill-mask", "embed", "rerank", "entities", "zero-shot")
MODELS = [f"tiny-{task}" for task in TASKS]

EMPTY = "The text is empty. Send a text that is not blank."
UNKNOWN = "No model has this name. See /models for the served models."
LATE = "The deadline passed before the response was ready."
REFUSED = "This client exceeds its rate limit."
FULL = "The queue is too long to meet the deadline of this request."

PROGRAMS = ROOT / "tests/http/clients"
SHOWN = PROGRAMS / "shown.json"
WRITE = "SWIFTLET_WRITE_CLIENTS" in os.environ

NEVER = """
import asyncio
from swiftlet_serve.scheduling.dispatcher import Dispatcher
Dispatcher.submit = lambda _, __, sequences, *___: [asyncio.get_running_loop().create_future() for _ in sequences]
"""
"""No sequence is ever computed, so that every deadline passes."""

ALTERNATELY = """
from itertools import cycle
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.rate_limit import RateLimiter
waits, full, decide = cycle((0.25, 0.0, 0.0, 0.0)), cycle((False, True, False)), AdmissionController._decide
def check(self, *arguments):
    if next(full):
        raise self._overloaded(0.0)
    decide(self, *arguments)
RateLimiter.take = lambda *_: next(waits)
AdmissionController._decide = check
"""
"""Of four requests, the rate limit refuses the first, and admission control the third."""

CLIENTS = {
    "triton": ["tritonclient, HTTP", "tritonclient, gRPC"],
    "kserve_python": ["kserve, REST v1", "kserve, REST v2", "kserve, gRPC"],
    "openai_python": ["langchain-openai", "openai", "openai, asyncio"],
    "llama_index_python": ["LlamaIndex, OpenAI", "LlamaIndex, TEI"],
    "hugging_face": ["huggingface_hub"],
    "hugging_face.mjs": ["@huggingface/inference"],
    "cohere_python": ["cohere, v1", "cohere, v2"],
    "system_one_python": ["typesafe-sdk", "typesafe-sdk, asyncio"],
}
"""The clients of each program."""

QUESTIONS = [
    {"type": "predicate", "name": "positive", "instructions": STATEMENT},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]},
    {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model of every task. The classifier answers predicates."""
    directory = tmp_path_factory.mktemp("tasks")
    known = Decisions(predicates={STATEMENT: "good"}, scores={"How?": ("bad", "good")})
    classifier = reseal(make_artifact(directory, "classify"), decisions=known)
    return ",".join(map(str, (classifier, *(make_artifact(directory, task).path for task in TASKS[1:]))))


@pytest.fixture(scope="module")
def servers(models: str, artifact_dir: Path) -> Iterator[dict[str, Process]]:
    """A server, one that never answers, and one that refuses every other request."""
    with ExitStack() as stack:
        options, limit = ("--models", models, "--grpc-port", "0"), ("--client-rate-limit", "1")
        yield {
            "": stack.enter_context(serving(artifact_dir, *options)),
            "slow_": stack.enter_context(serving(artifact_dir, *options, code=NEVER)),
            "limited_": stack.enter_context(serving(artifact_dir, *options, *limit, code=ALTERNATELY)),
        }


@pytest.fixture(scope="module")
def server(servers: dict[str, Process]) -> Process:
    return servers[""]


def arguments(servers: Mapping[str, Process], **more: str) -> list[str]:
    addresses = {f"{name}url": one.url for name, one in servers.items()}
    addresses |= {f"{name}grpc": str(one.grpc_address) for name, one in servers.items()}
    return [json.dumps(addresses | more), json.dumps(TEXTS)]


def run(program: str, servers: Mapping[str, Process], **more: str) -> dict[str, Any]:
    """Returns what the clients of a program did, by client. `more` is added to the servers' addresses."""
    uv = shutil.which("uv", path=str(ROOT / ".venv-dev/bin")) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "run", "--quiet", "--no-project", str(PROGRAMS / f"{program}.py"), *arguments(servers, **more)]
    return execute(command, CLIENTS[program])


def execute(command: list[str], clients: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    if "error sending request" in done.stderr:
        pytest.skip("the client's packages cannot be downloaded")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == clients
    return found


def post(server: Process, path: str, body: object) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return json.load(response)


@pytest.fixture(scope="module")
def own(server: Process) -> dict[str, dict[str, Any]]:
    """The answers of our own routes to one text and to several, in the form that the programs print."""

    def ask(path: str, inputs: object, **parameters: object) -> Any:
        return post(server, path, {"inputs": inputs} | ({"parameters": parameters} if parameters else {}))

    questions = [{"question": "Who?", "context": text} for text in TEXTS]
    vectors = ask("/embed", TEXTS)
    batches = {
        "classify": [[row[0]["label"], row[0]["score"]] for row in ask("/classify", TEXTS)],
        "qa": [[one["answer"], one["start"], one["end"]] for one in ask("/qa", questions)],
        "fill-mask": [[one["token_str"] for one in row] for row in ask("/fill-mask", MASKED)],
        "entities": [[[one["word"], one["start"], one["end"]] for one in row] for row in ask("/entities", TEXTS)],
        "zero-shot": [
            [one["label"] for one in row] for row in ask("/zero-shot", TEXTS, candidate_labels=["film", "서울"])
        ],
        "embed": vectors,
    }
    ranks = ask("/rerank", {"query": "Who?", "texts": TEXTS})
    decisions = {"model": "classify", "input": TEXTS[0]}
    return {task: {"one": batch[0], "batch": batch} for task, batch in batches.items()} | {
        "rerank": {"one": [[each["index"], each["score"]] for each in ranks]},
        "similarity": {"one": [sum(a * b for a, b in zip(vectors[0], one, strict=True)) for one in vectors]},
        "decisions": {
            "one": post(server, "/v1/decisions", decisions | {"questions": QUESTIONS[:1]}),
            "batch": post(server, "/v1/decisions", decisions | {"questions": QUESTIONS}),
        },
    }


def same(found: Any, expected: Any) -> bool:
    """Whether two answers are equal, but for the rounding of numbers."""
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    return found == pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else bool(found == expected)


def check(name: str, found: dict[str, Any], own: Mapping[str, Mapping[str, Any]]) -> None:
    """Asserts what all clients do: our answers, and errors with our sentences. Compares it with `SHOWN`."""
    answers = found.pop("answers")
    for task, answer in answers.items():
        for form, value in answer.items():
            assert same(value, own[task][form]), (name, task, form)
    overload = found.pop("overload")
    late = (LATE, "Deadline Exceeded") if name.endswith("gRPC") else (LATE,)  # gRPC's own client may be first to say it
    errors = {"error": (found.pop("error"), (EMPTY,)), "deadline": (found.pop("deadline"), late)}
    if overload is not None:
        errors |= {"rate limit": (overload[0], (REFUSED,)), "full queue": (overload[1], (FULL,))}
    shown = {"version": found.pop("version"), "tasks": {task: sorted(answer) for task, answer in answers.items()}}
    for kind, (error, sentences) in errors.items():
        if error is not None:
            assert any(one in error[1] for one in sentences), (name, kind, error)
            shown[kind] = error[0]
        elif overload is not None and kind in ("rate limit", "full queue"):
            shown[kind] = "retries"
    known = json.loads(SHOWN.read_text()) if SHOWN.exists() else {}
    if WRITE:
        SHOWN.write_text(json.dumps(known | {name: shown}, indent=2, sort_keys=True) + "\n")
    else:
        assert known[name] == shown


def test_the_table_has_the_clients_that_are_run_and_no_other():
    assert sorted(json.loads(SHOWN.read_text())) == sorted(chain.from_iterable(CLIENTS.values()))


def test_triton(servers, own):
    for name, found in run("triton", servers).items():
        check(name, found, own)
        assert found == {
            "live": True,
            "ready": True,
            "models": MODELS,
            "inputs": ["question", "context"],
            "compressed": True,
            "unknown": ["InferenceServerException", UNKNOWN],
        }


@pytest.mark.exhaustive  # its v2 and gRPC are those of tritonclient, and `test_kserve_v1.py` tests v1
def test_kserve(servers, own):
    for name, found in run("kserve_python", servers).items():
        check(name, found, own)
        assert found == ({"binary": True, "live": True, "ready": True} if name == "kserve, REST v2" else {})


def test_openai(server, servers, own):
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
    film, which = post(server, "/v1/decisions", body)["answers"]
    clients = run("openai_python", servers)
    langchain = clients.pop("langchain-openai")
    check("langchain-openai", langchain, own)
    assert langchain == {"decisions": [film["probability"], which["choice"]]}
    for name, found in clients.items():
        check(name, found, own)
        assert same(found.pop("floats"), own["embed"]["batch"])
        assert found == {
            "retried": True,
            "cut": True,
            "dimensions": [3, 3],
            "unknown": ["NotFoundError", ["unknown_model", None, UNKNOWN]],
            "unanswerable": [
                "UnprocessableEntityError",
                [
                    "validation_failed",
                    "/questions/0",
                    "The model's manifest maps no label to this predicate. Ask a zero-shot model. (At /questions/0.)",
                ],
            ],
        }


@pytest.mark.exhaustive  # it calls OpenAI's client, and `test_tei.py` tests TEI's protocol
def test_llama_index(servers, own):
    for name, found in run("llama_index_python", servers).items():
        check(name, found, own)
        assert found == {}


def test_hugging_face(server, servers, own):
    ((name, found),) = run("hugging_face", servers).items()
    check(name, found, own)
    raw = post(server, "/embed", {"inputs": TEXTS[:1], "parameters": {"normalize": False}})

    assert same(found.pop("raw"), raw)
    assert same(found.pop("by model"), own["classify"]["one"])
    assert found == {"cut": True}


@pytest.mark.exhaustive
def test_hugging_face_in_javascript(servers, own, tmp_path):
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("node is not installed")
    shutil.copy(PROGRAMS / "hugging_face.mjs", tmp_path)
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path)]
    if subprocess.run([*install, "@huggingface/inference@4.13.30"], capture_output=True, check=False).returncode:
        pytest.skip("the client's packages cannot be downloaded")
    command = [node, str(tmp_path / "hugging_face.mjs"), *arguments(servers)]
    ((name, found),) = execute(command, CLIENTS["hugging_face.mjs"]).items()
    check(name, found, own)

    assert found == {}


@pytest.mark.exhaustive
def test_cohere(servers, own):
    for name, found in run("cohere_python", servers).items():
        check(name, found, own)
        assert found.pop("limit", True)
        assert found == {"best": 1, "bytes": [True, len(TEXTS)], "cut": True, "unknown": ["NotFoundError", UNKNOWN]}


def test_system_one(artifact_dir, server, servers, own, tmp_path):
    key, line = make_key("suite")
    (tmp_path / "keys").write_text(line, "utf-8")
    questions = {
        "positive": {"type": "noul", "instructions": STATEMENT},
        "which": {"type": "choice", "instructions": "Which?", "criteria": {"good": None, "bad": None}},
        "how": {"type": "score", "instructions": "How?", "criteria": ["low", "high"]},
    }
    body = {"model": "classify", "state": TEXTS[0], "questions": questions}
    answers = post(server, "/v1/systemone", body)["answers"]
    decisions = {"one": {"positive": answers["positive"]}, "batch": answers}
    options = ("--models", "mobilebert-embed", "--api-keys-file", str(tmp_path / "keys"))
    with serving(artifact_dir, *options) as keyed:
        clients = run("system_one_python", {**servers, "keyed_": keyed}, key=key)
    assert clients["typesafe-sdk"].pop("suite") == ["conformant", [32, 0], [15, 0]]
    assert clients["typesafe-sdk"].pop("coherence") == [15, []]
    for name, found in clients.items():
        check(name, found, own | {"decisions": decisions})
        assert found.pop("models") == [*MODELS, "jev-latest"]
        assert found.pop("unknown")[0] == "TypeSafeNotFoundError"
        assert found == {}
