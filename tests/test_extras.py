"""The packages of an extra are checked before a command begins its work."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata

import pytest
from click.testing import CliRunner

from loadtest import compare, overload, slo
from swiftlet_serve.service import extras
from swiftlet_serve.service.cli import main
from swiftlet_serve.service.errors import SetupError
from tests.support.paths import ROOT

DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


@pytest.fixture
def uninstall(monkeypatch):
    """Returns a function that hides a package."""
    version = metadata.version

    def hide(package: str) -> None:
        def hidden(name: str) -> str:
            if name == package:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(metadata, "version", hidden)

    return hide


@pytest.mark.parametrize("extra", ["plot", "torch", "openvino"])
def test_packages_are_those_of_pyproject(extra):
    assert extras.packages(extra) == [re.split("==", line)[0] for line in DECLARED[extra]]


def test_unknown_extra_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="no extra 'plots'"):
        extras.packages("plots")


def test_installed_extras_pass():
    extras.require("models", "plot")


def test_missing_package_is_named_with_all_extras(uninstall):
    uninstall("matplotlib")

    with pytest.raises(SetupError, match=r"'matplotlib' is not installed\. Run: .*'swiftlet-serve\[models,plot\]'$"):
        extras.require("models", "plot")


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["import", "a/b", "--task", "classify"], "onnxscript", "models"),
        (["bench"], "onnx", "models"),
        (["bench", "--out", "charts"], "matplotlib", "models,plot"),
        (["train", "no_such_recipe"], "sentencepiece", "models"),
        (["study", "no_such_study"], "matplotlib", "models,plot"),
        (["plot", "."], "matplotlib", "plot"),
    ],
)
def test_command_names_the_extra_before_its_work(uninstall, command, package, extra):
    uninstall(package)

    done = CliRunner().invoke(main, command)

    assert done.exit_code == 1
    assert done.output == (
        f"Error: The package '{package}' is not installed. Run: pip install 'swiftlet-serve[{extra}]'\n"
    )


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (slo, ["--p99-ms", "1", "--rate", "1", "--url", "http://nowhere.invalid", "--out", "mine"]),
        (compare, []),
        (overload, []),
    ],
)
def test_load_test_names_the_extra_before_its_work(uninstall, monkeypatch, command, arguments):
    uninstall("matplotlib")
    monkeypatch.setattr("sys.argv", ["command", *arguments])

    with pytest.raises(SystemExit, match=r"'swiftlet-serve\[plot\]'"):
        command.main()
