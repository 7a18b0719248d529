"""A plug-in is a file; it is imported when it is chosen, and what is wrong with it is said plainly."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from swiftlet_serve.service import plugins
from swiftlet_serve.service.errors import SetupError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    directory = tmp_path / "tools"
    directory.mkdir()
    (directory / "__init__.py").write_text("")
    (directory / "hammer.py").write_text("weight = 3")
    (directory / "drill.py").write_text("import electricity_that_nobody_installed")
    (directory / "saw.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tools")
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]


def test_the_names_are_the_files_and_none_is_imported(package):
    assert plugins.names(package) == ["drill", "hammer", "saw"]
    assert not [name for name in sys.modules if name.startswith("tools.")]


def test_the_one_chosen_is_imported(package):
    assert plugins.load(package, "hammer").weight == 3
    assert "tools.saw" not in sys.modules


def test_one_that_is_not_there_is_refused_with_those_that_are(package):
    with pytest.raises(SetupError, match="no 'spoon' in tools: choose one of drill, hammer, saw"):
        plugins.load(package, "spoon")


def test_a_missing_dependency_is_named(package):
    with pytest.raises(SetupError, match="'drill' of tools needs the package 'electricity_that_nobody_installed'"):
        plugins.load(package, "drill")


def test_any_other_failure_surfaces_as_itself(package):
    with pytest.raises(ZeroDivisionError):
        plugins.load(package, "saw")
