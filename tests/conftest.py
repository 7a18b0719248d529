"""Settings and fixtures that many tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.artifacts import make_artifact

# Without a GPU, Triton's kernels run in its interpreter. Triton reads the variable when it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Every run uses the same examples. There is no time limit for an example, because the machine may be busy.
settings.register_profile("swiftlet", derandomize=True, deadline=None, database=None)
settings.load_profile("swiftlet")


# Files with tests of half a minute or more. They run first, so that no process is alone with one of them at the end.
SLOW = (
    "test_alerts.py",
    "test_import_families.py",
    "test_native.py",
    "test_server.py",
    "test_server_with_fronts.py",
    "test_shipped_recipes.py",
    "test_torture.py",
    "test_train_recipe.py",
    "test_without_teacher.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests of slow files first. The others stay in their order."""
    items.sort(key=lambda item: item.path.name not in SLOW)


@pytest.fixture(scope="session", autouse=True)
def shared_graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Traces each structure of a network once in a run. All processes share the graphs."""
    if "torch" not in sys.modules:  # no collected test exports a network, and the import takes seconds
        yield
        return
    from swiftlet_models.graphs import export
    from tests.support.graph_cache import cached

    directory = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        directory = directory.parent
    directory = directory / "graphs"
    directory.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_trace", cached(export._trace, directory))
        yield


@pytest.fixture(scope="session")
def artifact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with one small artifact per task. Shared by all tests: do not write into it."""
    directory = tmp_path_factory.mktemp("artifacts")
    for task in ("classify", "qa", "fill-mask"):
        make_artifact(directory, task)
    return directory
