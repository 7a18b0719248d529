"""Settings and fixtures that many tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.artifacts import make_artifact

# Every run uses the same examples. There is no time limit for an example, because the machine may be busy.
settings.register_profile("swiftlet", derandomize=True, deadline=None, database=None)
settings.load_profile("swiftlet")


@pytest.fixture(scope="session")
def artifact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with one small artifact per task. Shared by all tests: do not write into it."""
    directory = tmp_path_factory.mktemp("artifacts")
    for task in ("classify", "qa", "fill-mask"):
        make_artifact(directory, task)
    return directory
