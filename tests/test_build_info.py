"""Where the version and the revision of the source come from."""

from __future__ import annotations

import json
import subprocess
from importlib import metadata

import pytest

from swiftlet_serve import build_info


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package without a revision: no file, no metadata, no checkout."""
    package = tmp_path / "checkout/service/swiftlet_serve"
    package.mkdir(parents=True)
    monkeypatch.setattr(build_info, "PACKAGE", package)
    monkeypatch.setattr(build_info, "DISTRIBUTION", "not-installed")
    build_info.revision.cache_clear()
    yield package
    build_info.revision.cache_clear()


def test_version_and_revision_may_be_unknown(package):
    assert build_info.version() == build_info.revision() == "unknown"


def test_file_of_an_image_has_the_revision(package):
    (package / "REVISION").write_text("0123abc\n", "ascii")

    assert build_info.revision() == "0123abc"


def test_metadata_of_an_installation_from_git_has_the_revision(package, monkeypatch):
    class Installed:
        def read_text(self, name: str) -> str | None:
            return json.dumps({"vcs_info": {"commit_id": "4567def"}}) if name == "direct_url.json" else None

    monkeypatch.setattr(metadata, "distribution", lambda _: Installed())

    assert build_info.revision() == "4567def"


def test_checkout_has_the_revision(package):
    git = ["git", "-C", str(package.parents[1]), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert build_info.revision() == "unknown", "no commit"
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message", "first"], check=True)
    build_info.revision.cache_clear()

    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert build_info.revision() == head.stdout.strip()
