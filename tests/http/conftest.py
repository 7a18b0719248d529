"""Fixtures of the HTTP tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from tests.support.app_client import AppClient
from tests.support.apps import make_runtime


@pytest.fixture(scope="module")
def runtime(artifact_dir: Path) -> LocalRuntime:
    """A runtime with one small model per task, over the echo engine."""
    return make_runtime(artifact_dir)


@pytest.fixture(scope="module")
def client(runtime: LocalRuntime) -> Iterator[TestClient]:
    """A client of the application over `runtime`."""
    with AppClient(create_app(runtime), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def clean_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Asserts that the test logs no traceback, and one line at most."""
    caplog.set_level(logging.INFO)
    yield
    assert [
        record.getMessage() for record in caplog.records if record.exc_info or record.levelno > logging.WARNING
    ] == []
    assert len(caplog.records) <= 1
