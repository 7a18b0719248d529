"""The examples of the page of clients run as they are, in the versions that the page names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S
from tests.support.markdown import blocks, table, text_of
from tests.support.paths import ROOT
from tests.support.processes import Process, serving

PAGE = text_of(ROOT / "docs/how-to/clients.md")
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
PACKAGES = {
    re.findall(r"\[(.*)\]\(", name)[0]: re.findall(r"`([^`]+)` ([\d.]+)", packages)
    for name, packages, _ in table(PAGE, "Client", "Packages", "Protocol")
}
HERE = ("Requests", "Hugging Face")  # in the development environment
TASKS = ("classify", "qa", "embed", "rerank")


@pytest.fixture(scope="module")
def server(artifact_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    directory = tmp_path_factory.mktemp("tasks")
    models = ",".join(str(make_artifact(directory, task).path) for task in TASKS)
    with serving(artifact_dir, "--models", models) as server:
        yield server


def run(client: str, server: Process, *command: str) -> str:
    (code,) = blocks(SECTIONS[client], "python")
    code = code.replace("127.0.0.1:8000", server.url.removeprefix("http://"))
    done = subprocess.run([*command, "-c", code], capture_output=True, text=True, timeout=20 * PATIENCE_S)
    if "error sending request" in done.stderr:
        pytest.skip("the client's packages cannot be downloaded")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_page_has_an_example_for_each_client():
    assert len(PACKAGES) == 11
    assert [name for name, section in SECTIONS.items() if blocks(section, "python")] == list(PACKAGES)
    assert all(len(section.splitlines()) < 20 for section in SECTIONS.values())


@pytest.mark.parametrize("client", HERE)
def test_example_runs(client, server):
    assert run(client, server, sys.executable)


@pytest.mark.exhaustive  # tests/http/dialects/test_clients.py runs most of these clients, too
@pytest.mark.parametrize("client", [name for name in PACKAGES if name not in HERE])
def test_example_runs_in_the_version_of_the_page(client, server):
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    packages = [word for name, version in PACKAGES[client] for word in ("--with", f"{name}=={version}")]

    assert run(client, server, uv, "run", "--quiet", "--no-project", *packages, "python")


def test_versions_are_those_of_the_other_tests_of_clients():
    programs = "".join(map(text_of, (ROOT / "tests/http/clients").glob("*.py")))
    tested = dict(re.findall(r'"([\w-]+)(?:\[[\w,]+\])?==([\d.]+)"', programs))
    named = {
        name.partition("[")[0].replace("_", "-"): version
        for packages in PACKAGES.values()
        for name, version in packages
    }

    shared = named.keys() & tested.keys()
    assert len(shared) == 7
    assert {name: named[name] for name in shared} == {name: tested[name] for name in shared}
    assert named["requests"] == requests.__version__


def test_body_of_elasticsearch_is_answered(server):
    """As its service openai sends it."""
    (endpoint,) = [json.loads(block) for block in blocks(PAGE, "json")]
    settings = endpoint["service_settings"]
    path = settings["url"].removeprefix("http://swiftlet:8000")
    body = {"input": ["a", "서울"], "model": settings["model_id"]}
    answer = requests.post(
        server.url + path, json=body, headers={"Authorization": f"Bearer {settings['api_key']}"}, timeout=PATIENCE_S
    )

    assert [len(one["embedding"]) for one in answer.json()["data"]] == 2 * [len(answer.json()["data"][0]["embedding"])]


def test_bodies_of_elasticsearch_s_service_of_hugging_face_are_answered(server):
    """As its source has them (HuggingFaceRerankRequestEntity). It reads no other fields of a ranked text."""
    texts = ["a", "서울"]
    vectors = requests.post(f"{server.url}/embed", json={"inputs": texts}, timeout=PATIENCE_S).json()
    body = {"texts": texts, "query": "a", "return_text": True, "top_n": 1}
    ranked = requests.post(f"{server.url}/rerank", json=body, timeout=PATIENCE_S).json()

    assert [{type(number) for number in vector} for vector in vectors] == 2 * [{float}]
    assert {one["index"]: one["text"] for one in ranked} == dict(enumerate(texts))
    assert all(one.keys() == {"index", "score", "text"} for one in ranked)
