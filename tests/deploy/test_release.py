"""What a release needs: one version, one address of the documentation, and platforms that Swiftlet runs on."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import build_kernels
from tests.support.markdown import text_of
from tests.support.paths import ROOT

CHANGELOG = "## [Unreleased]\n\n## [0.1.0]\n\n- Added.\n"
FILES = ("pyproject.toml", "models/pyproject.toml", "k8s/helm/swiftlet/Chart.yaml", ".ci/release")
TEXTS = {".cpp", ".h", ".js", ".json", ".md", ".py", ".sh", ".toml", ".yaml", ".yml", ""}
FOLDERS = (".ci", ".github", "docker", "docs", "k8s", "loadtest", "models", "service")
RULES = ("docker/prometheus/rules.yml", "k8s/monitoring/rules.yaml")


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A repository of the files that a release reads, which can be released."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    change(tmp_path / "pyproject.toml", "swiftlet.example", "swiftlet.test")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(checkout: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.test")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=checkout, check=True, capture_output=True, text=True
    ).stdout


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "Change")


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def release(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([checkout / ".ci/release", *arguments], capture_output=True, text=True)


def test_release_is_tried_without_an_effect(checkout):
    done = release(checkout)

    assert (done.returncode, done.stdout) == (0, "Version 0.1.0 can be released: make release PUSH=1\n")
    assert git(checkout, "tag") == ""


def test_release_pushes_the_tag(checkout, tmp_path_factory, monkeypatch):
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b.test")
    origin = tmp_path_factory.mktemp("origin")
    git(origin, "init", "--quiet", "--bare")
    git(checkout, "remote", "add", "origin", str(origin))

    assert release(checkout, "--push").returncode == 0
    assert git(origin, "tag") == "v0.1.0\n"
    assert "exists already" in release(checkout).stderr


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "models/pyproject.toml",
            'version = "0.1.0"',
            'version = "0.2.0"',
            "models/pyproject.toml has another version",
        ),
        ("k8s/helm/swiftlet/Chart.yaml", "\nversion: 0.1.0", "\nversion: 0.2.0", "Chart.yaml has another version"),
        ("k8s/helm/swiftlet/Chart.yaml", "appVersion: 0.1.0", "appVersion: 0.2.0", "another appVersion"),
        ("CHANGELOG.md", "## [0.1.0]", "## 0.1.0", "no section [0.1.0]"),
        ("CHANGELOG.md", "## [0.1.0]", "### Added\n\n- New.\n\n## [0.1.0]", "unreleased changes"),
        ("pyproject.toml", "https://swiftlet.test", "https://swiftlet.example", "not a real address"),
        ("pyproject.toml", "security@swiftlet.test", "security@swiftlet.example", "not a real address"),
    ],
)
def test_release_is_refused(name, old, new, message, checkout):
    change(checkout / name, old, new)
    commit(checkout)

    done = release(checkout, "--push")
    assert done.returncode == 1
    assert message in done.stderr
    assert git(checkout, "tag") == ""


def test_release_of_a_tree_with_changes_is_refused(checkout):
    (checkout / "new").touch()

    assert "not committed" in release(checkout).stderr


def test_addresses_of_the_publication_are_settings():
    """`make docs` writes them into the rules and SECURITY.md."""
    addresses = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["urls"]
    paths = [*ROOT.glob("*.*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))]
    files = [path for path in paths if path.suffix in TEXTS and path.is_file() and not path.is_symlink()]
    named = [path.relative_to(ROOT) for path in files if "swiftlet.example" in text_of(path)]
    placeholders = [path for path in files if re.search(r"\bOWNER\b", text_of(path))]

    assert placeholders == []
    assert {str(path) for path in named} <= {"pyproject.toml", "SECURITY.md", *RULES}
    for name in RULES:
        assert set(re.findall(r"runbook_url: (\S+)/how-to", text_of(ROOT / name))) == {addresses["Documentation"]}
    assert f"]({addresses['Security']})" in text_of(ROOT / "SECURITY.md")


@pytest.mark.parametrize(
    ("system", "machine", "libc", "word"),
    [
        ("linux", "x86_64", "glibc", None),
        ("linux", "aarch64", "glibc", None),
        ("linux", "x86_64", "", "musl"),
        ("linux", "aarch64", "libc", "musl"),
        ("linux", "riscv64", "glibc", "x86_64 and aarch64. This machine is riscv64"),
        ("linux", "", "glibc", "unknown"),
        ("win32", "AMD64", "", "Windows"),
        ("darwin", "arm64", "", None),
        ("darwin", "x86_64", "", "Apple silicon"),
    ],
)
def test_platform_that_cannot_serve_is_refused_at_the_installation(system, machine, libc, word):
    reason = build_kernels.refusal(system, machine, libc)

    assert reason is None if word is None else word in reason


def test_wheels_are_tried_on_every_python_that_they_name():
    classifiers = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["classifiers"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    jobs = yaml.safe_load(text_of(ROOT / ".github/workflows/wheels.yml"))["jobs"]

    assert jobs["install"]["strategy"]["matrix"]["python"] == named == ["3.11", "3.12", "3.13", "3.14"]
    assert jobs["publish"]["needs"] == ["sdist", "install"]
