"""What many tests need."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.artifacts import make_artifact

# The same examples in every run, and no limit on how long one takes: the machine may be busy.
settings.register_profile("swiftlet", derandomize=True, deadline=None, database=None)
settings.load_profile("swiftlet")


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one small artifact for each task. Do not write into it."""
    directory = tmp_path_factory.mktemp("shelf")
    for task in ("classify", "qa", "fill-mask"):
        make_artifact(directory, task)
    return directory
