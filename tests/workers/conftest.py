"""Fixtures of the worker tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.artifacts import make_artifact


@pytest.fixture
def directory(tmp_path) -> Path:
    """Directory with one artifact. Tests add the files that switch the faulty engine's faults."""
    make_artifact(tmp_path, "qa")
    return tmp_path
