"""Plug-ins are found by their files and imported when they are chosen."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from swiftlet_serve import plugins
from swiftlet_serve.errors import SetupError


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    directory = tmp_path / "tools"
    directory.mkdir()
    (directory / "__init__.py").write_text("")
    (directory / "hammer.py").write_text("weight = 3")
    (directory / "drill.py").write_text("import a_missing_package")
    (directory / "saw.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("tools")
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]


def test_names_lists_the_files_without_importing_them(package):
    assert plugins.names(package) == ["drill", "hammer", "saw"]
    assert not [name for name in sys.modules if name.startswith("tools.")]


def test_load_imports_only_the_chosen_plugin(package):
    assert plugins.load(package, "hammer").weight == 3
    assert "tools.saw" not in sys.modules


def test_load_lists_the_plugins_if_the_name_is_unknown(package):
    with pytest.raises(SetupError, match=r"no 'spoon' in tools\. Choose one of drill, hammer, saw"):
        plugins.load(package, "spoon")


def test_load_names_a_missing_dependency(package):
    with pytest.raises(SetupError, match="'drill' in tools needs the package 'a_missing_package'"):
        plugins.load(package, "drill")


def test_load_raises_other_errors_unchanged(package):
    with pytest.raises(ZeroDivisionError):
        plugins.load(package, "saw")
