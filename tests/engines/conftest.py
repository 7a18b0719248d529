"""Artifacts of small networks, which several engines load."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def released(tmp_path_factory) -> Callable[[str, str, str], Path]:
    """Returns the artifact of a network in int8, in fp32, or in int8 with fp32 weights. Tests must not change it.

    All processes of a test run share the artifacts, because to release one takes half a second.
    """
    from tests.support.networks import draft, make

    root = tmp_path_factory.getbasetemp()
    root = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "released"
    root.mkdir(exist_ok=True)

    def get(architecture: str, task: str, kind: str) -> Path:
        path = root / kind / f"{architecture}-{task}"
        with (root / f"{kind}-{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                precision = "fp32" if kind == "fp32" else "int8"
                make(root / kind, draft(architecture, task, precision), keep_fp32=kind == "both")
        return path

    return get
