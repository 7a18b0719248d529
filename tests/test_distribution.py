"""The distributions that `python -m build` makes, and a server that is installed from the wheel.

Building and installing takes minutes and needs a package index, so `make test` skips these tests: `make dist-test`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif("SWIFTLET_DISTRIBUTION_TEST" not in os.environ, reason="takes minutes: make dist-test")

PACKAGE = "swiftlet_serve"
SOURCES = ("LICENSE", "MANIFEST.in", "NOTICE", "README.md", "models", "pyproject.toml", "service", "src")
BUILT = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
DATA = (
    "models/bundled/*/*",
    "models/training/recipes/*.toml",
    "models/training/studies/*.toml",
    "service/http/playground/*.*",
    "models/**/*.py",
    "service/**/*.py",
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distribution and with the wheel that was built from it."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=BUILT)
        else:
            shutil.copy2(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", source], check=True, capture_output=True)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheel and its dependencies only."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=True)
    pip = [environment / "bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", wheel], check=True)
    return environment / "bin"


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sdist_leaves_out_tests_and_compiled_kernels(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]

    assert "pyproject.toml" in names
    assert [name for name in names if name.startswith(("tests", "docs", "loadtest")) or name.endswith(".so")] == []


def test_wheel_has_one_top_level_package(wheel):
    assert {name.partition("/")[0].partition("-")[0] for name in names_in(wheel)} == {PACKAGE}


def test_wheel_holds_every_module_model_recipe_and_page_file(wheel):
    expected = {f"{PACKAGE}/{path.relative_to(ROOT)}" for pattern in DATA for path in ROOT.glob(pattern)}

    assert expected
    assert sorted((expected | {f"{PACKAGE}/py.typed"}) - names_in(wheel)) == []


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_wheel_holds_the_kernels_of_its_architecture_and_suits_later_pythons(wheel):
    kernels = {Path(name).name.partition(".")[0] for name in names_in(wheel) if name.endswith(".abi3.so")}

    assert "-cp311-abi3-linux_" in wheel.name
    assert kernels in ({"avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx"}, {"neon", "neon_i8mm"})


def test_installed_wheel_serves_the_bundled_models_from_another_folder(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SWIFTLET_", "PYTHON"))}
    with subprocess.Popen(
        [installed / "swiftlet", "serve", "--port", "0"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            (url,) = re.findall(r"https?://[^,\s]+", server.stdout.readline())
            body = json.dumps({"inputs": "A warm, funny and clever film."}).encode()
            request = urllib.request.Request(f"{url}/classify", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                answer = json.load(response)
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
                page = response.read()
        finally:
            server.kill()

    assert answer[0][0]["label"] == "POSITIVE"
    assert b"<html" in page


def test_installed_wheel_brings_no_package_named_models_or_service(installed, tmp_path):
    for name in ("models", "service"):
        found = subprocess.run([installed / "python", "-c", f"import {name}"], cwd=tmp_path, capture_output=True)

        assert b"ModuleNotFoundError" in found.stderr
