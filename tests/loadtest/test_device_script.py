"""The script for a machine that is available for minutes, as far as no measurement is needed to try it."""

import os
import subprocess
import sys
import tarfile
import venv

from tests.support.paths import ROOT

STAND_IN = """#!/bin/sh
# Python, but modules tell their arguments only.
[ "$1" != -m ] || exec echo "$@"
exec "{python}" "$@"
"""


def run(*steps, python, **settings):
    """Runs steps with a stand-in for Python."""
    stand_in = python.parent / "stand-in"
    stand_in.write_text(STAND_IN.format(python=python))
    stand_in.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stand_in), **settings}
    command = ["bash", "loadtest/device.sh", *steps]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_what_was_packed_and_this_checkout_are_installed(tmp_path):
    (tmp_path / "carried_module.py").write_text("")
    (tmp_path / "carried-1.0-py3-none-any.whl").write_text("")
    with tarfile.open(tmp_path / "packages.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "carried_module.py", "carried_module.py")
    venv.create(tmp_path / "environment")
    python = tmp_path / "environment/bin/python"

    done = run("install", python=python, DEVICE="cpu", CARRIED=str(tmp_path))

    assert done.stdout == f"-m pip install --quiet --no-index --no-deps {tmp_path}/carried-1.0-py3-none-any.whl\n"
    imports = "import carried_module, swiftlet_models, swiftlet_serve, swiftlet_train"
    isolated = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([python, "-c", imports], cwd=tmp_path, env=isolated, check=True)


def test_tests_for_a_gpu_exist(tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)

    done = run("tests", python=tmp_path / "python", DEVICE="cuda", OUT=str(tmp_path))

    found = [ROOT / word for word in done.stdout.split() if word.startswith("tests/")]
    assert len(found) > 2
    assert [path for path in found if not path.exists()] == []


def test_step_without_time_is_told(tmp_path):
    done = run("lone", "train", python=tmp_path / "python", DEVICE="cpu", TOTAL_S="0")

    assert done.returncode == 1
    assert done.stderr.splitlines() == ["These steps failed: lone (no time left) train (no time left)"]
