"""Models for jobs of bulk scoring."""

from __future__ import annotations

from pathlib import Path

import pytest

from swiftlet_serve import tasks
from tests.support.artifacts import make_artifact


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with one small artifact for each task."""
    directory = tmp_path_factory.mktemp("models")
    for task in tasks.names():
        make_artifact(directory, task)
    return directory


@pytest.fixture
def model(models: Path) -> tuple[str, ...]:
    """The options of a job with a classifier that computes nothing."""
    return ("--model", str(models / "tiny-classify"), "--engine", "echo")
