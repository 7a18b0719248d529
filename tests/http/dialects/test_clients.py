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

from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT
from tests.support.processes import Process, serving

TEXTS = ["Clara lives in 서울 🎬.", "e\u0301 and no more"]
EMPTY = "The text is empty. Send a text that is not blank."


@pytest.fixture(scope="module")
def server(artifact_dir: Path) -> Iterator[Process]:
    models = ",".join(str(artifact_dir / f"tiny-{task}") for task in ("classify", "qa", "fill-mask"))
    with serving(artifact_dir, "--models", models) as process:
        yield process


def run(program: str, server: Process) -> Any:
    """Returns what a program of `tests/http/clients` prints."""
    uv = shutil.which("uv", path=str(ROOT / ".venv-dev/bin")) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "run", "--quiet", "--no-project", f"tests/http/clients/{program}.py", server.url, json.dumps(TEXTS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20 * PATIENCE_S)
    if "error sending request" in done.stderr:
        pytest.skip("the client's packages cannot be downloaded")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def post(server: Process, path: str, body: object) -> Any:
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
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
        "unknown model": ["404", "No model has this name. See /models for the served models."],
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
