"""The directory of a run belongs to one run, and one process at a time writes to it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swiftlet_train.loop.run_directory import claim_directory, locked
from swiftlet_train.recipe import RecipeError

HOLD = """
import sys
from pathlib import Path
from swiftlet_train.loop.run_directory import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_directory_keeps_the_settings_of_its_run(tmp_path):
    claim_directory(tmp_path / "run", {"epochs": 1})
    claim_directory(tmp_path / "run", {"epochs": 1})
    claim_directory(tmp_path / "run", {"examples": "a"}, "examples.json")

    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        claim_directory(tmp_path / "run", {"epochs": 2})
    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        claim_directory(tmp_path / "run", {"examples": "b"}, "examples.json")


def test_other_process_is_refused_until_the_run_has_ended(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RecipeError, match=r"is in use by another run\. Wait until it ends\."), locked(tmp_path):
            pytest.fail("the directory has two writers")
        other.communicate("\n")
    with locked(tmp_path):
        pass


def test_run_may_lock_its_directory_again(tmp_path):
    with locked(tmp_path), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
