"""Fixtures of the dialects' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support import hostile_dialects
from tests.support.app_client import AppClient
from tests.support.artifacts import make_artifact


@pytest.fixture(scope="module")
def search_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of vectors and ranks, over the echo engine."""
    directory: Path = tmp_path_factory.mktemp("search")
    models = tuple(str(make_artifact(directory, task).path) for task in ("embed", "rerank"))
    runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=2))
    with AppClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def every_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a server of every task, over the echo engine."""
    models = hostile_dialects.models(tmp_path_factory.mktemp("every"))
    runtime = LocalRuntime.load(Settings(models=models, engine="echo", cores=2))
    with AppClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client
