"""The packages of an extra are checked before a command begins its work."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import metadata

import pytest
from click.testing import CliRunner

from loadtest import compare, overload, slo
from swiftlet_serve import extras
from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
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


@pytest.mark.parametrize("extra", ["plot", "torch", "openvino", "sign"])
def test_packages_are_those_of_pyproject(extra):
    assert extras.packages(extra) == {re.split("==", line)[0]: line for line in DECLARED[extra]}


def test_installation_names_the_packages_that_are_missing(uninstall):
    """The name of Swiftlet itself is claimed in no index, so that anybody could publish code under it."""
    everything = extras.installation("grpc", "ray")
    command, packages = shlex.split(everything)[:2], shlex.split(everything)[2:]
    assert command == ["pip", "install"]
    assert sorted(packages) == sorted([*DECLARED["grpc"], *DECLARED["ray"]])
    assert "'ray[data,serve]==" in everything
    uninstall("protobuf")
    (wanted,) = [line for line in DECLARED["grpc"] if line.startswith("protobuf")]
    assert extras.installation("grpc", "ray") == f"pip install {wanted}"


def test_no_text_suggests_to_install_swiftlet_from_an_index():
    files = [
        file
        for folder in ("service", "models", "loadtest", "docs", "docker", "k8s")
        for suffix in ("py", "md", "yaml", "toml")
        for file in (ROOT / folder).rglob(f"*.{suffix}")
    ]
    assert len(files) > 300
    for file in [*files, ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "Makefile"]:
        assert not re.search(r"pip install[^\n`]*(?<!dist/)swiftlet[-_]serve", file.read_text("utf-8")), file


def test_unknown_extra_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="no extra 'plots'"):
        extras.packages("plots")


def test_installed_extras_pass():
    extras.require("models", "plot")


def test_missing_package_is_named_with_all_extras(uninstall):
    uninstall("matplotlib")

    with pytest.raises(SetupError, match=r"'matplotlib' is not installed\. Run: pip install matplotlib==[\d.]+$"):
        extras.require("models", "plot")


@pytest.mark.parametrize(
    ("command", "package"),
    [
        (["bench"], "onnx"),
        (["bench", "--out", "charts"], "matplotlib"),
        (["train", "no_such_recipe"], "sentencepiece"),
        (["study", "no_such_study"], "matplotlib"),
        (["plot", "."], "matplotlib"),
    ],
)
def test_command_names_the_package_before_its_work(uninstall, command, package):
    uninstall(package)

    done = CliRunner().invoke(main, command)

    assert done.exit_code == 1
    assert re.fullmatch(
        rf"Error: The package '{package}' is not installed\. Run: pip install {package}==[\d.]+\n", done.output
    )


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (slo, ["--p99-ms", "1", "--rate", "1", "--url", "http://nowhere.invalid", "--out", "mine"]),
        (compare, []),
        (overload, []),
    ],
)
def test_load_test_names_the_package_before_its_work(uninstall, monkeypatch, command, arguments):
    uninstall("matplotlib")
    monkeypatch.setattr("sys.argv", ["command", *arguments])

    with pytest.raises(SystemExit, match=r"Run: pip install matplotlib=="):
        command.main()
