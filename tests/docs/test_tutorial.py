"""The tutorial works: its commands train a model, serve it and load it. Takes minutes: `make tutorial-test`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.fakes import PATIENCE_S
from tests.support.markdown import BASE_URL, code, examples, text_of
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif("SWIFTLET_TUTORIAL_TEST" not in os.environ, reason="takes minutes: make tutorial-test")

TUTORIAL = text_of(ROOT / "docs/tutorial.md")
PROGRAMS = {"swiftlet": ["-m", "swiftlet_serve"], "python": []}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that stands in for the clone, so that what the tutorial writes does not land there."""
    for name in ("docs", "loadtest", "models", "service"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def command(start: str, url: str = BASE_URL) -> list[str]:
    """Returns the command of the tutorial that starts so, for this Python and another address."""
    (line,) = [line for line in code(TUTORIAL) if line.startswith(start) and line != start]
    program, *arguments = shlex.split(line.replace(BASE_URL, url))
    return [sys.executable, *PROGRAMS[program], *arguments]


def test_tutorial_commands_train_serve_and_load_a_model(folder):
    for start in ("swiftlet train", "swiftlet check"):
        subprocess.run(command(start), cwd=folder, check=True)
    told = subprocess.run(command("swiftlet evaluate"), cwd=folder, check=True, capture_output=True, text=True).stdout
    (example,) = [one for one in examples(TUTORIAL) if one.route == "classify"]
    ((shown,),) = json.loads(example.response)
    (accuracy,) = re.findall(r"^tickets  accuracy ([\d.]+) %", told, re.MULTILINE)

    assert float(accuracy) > 95
    # A server refuses unknown variables, and this test's own is one.
    environment = {name: value for name, value in os.environ.items() if name != "SWIFTLET_TUTORIAL_TEST"}
    environment["SWIFTLET_PORT"] = "0"
    with subprocess.Popen(
        command("swiftlet serve"), cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            (url,) = re.findall(r"https?://[^,\s]+", server.stdout.readline())
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/{example.route}", example.body.encode(), headers)
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                ((answer,),) = json.load(response)
            load = subprocess.run(command("python -m loadtest.slo", url), cwd=folder, capture_output=True, text=True)
        finally:
            server.kill()

    assert answer["label"] == shown["label"]
    assert answer["score"] == pytest.approx(shown["score"], abs=0.1)
    assert "SLO: " in load.stdout, load.stderr  # whether it holds depends on the machine
    assert (folder / "mine.html").exists()
