"""Settings and fixtures that many tests share."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S
from tests.support.selection import module_name, needs, store

# Without a GPU, Triton's kernels run in its interpreter. Triton reads the variable when it is imported.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Threads that wait for each other in loops take the cores from other processes of the tests. The commands and workers
# that tests start inherit these as well. An engine that is told its number of threads has as many.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Until the tests are collected, there is hardly any garbage to find among a million objects.
gc.disable()

# Every run uses the same examples. There is no time limit for an example, because the machine may be busy.
settings.register_profile("swiftlet", derandomize=True, deadline=None, database=None, max_examples=30)
settings.register_profile("exhaustive", settings.get_profile("swiftlet"), max_examples=500)
settings.load_profile("swiftlet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by what they need. Those that need something run first, of these the large files.

    At the end of a run, no process is then alone with a long file.
    """
    marks = {path: needs(module_name(path) or "") for path in {item.path for item in items}}
    store()
    if "torch" in sys.modules and not any("torch" in found for found in marks.values()):
        raise pytest.UsageError("A test imports torch and has no mark for it: see NEEDS in tests/support/selection.py.")
    for item in items:
        for mark in marks[item.path]:
            item.add_marker(mark)
    items.sort(key=lambda item: (not marks[item.path], -item.path.stat().st_size))


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from searching the objects that are there before the first test.

    They are a million, of modules and of the tests themselves, and stay until the end. To search them takes half a
    second, as often as a test collects garbage itself or makes many objects.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an asynchronous test in an event loop of its own, which is uvloop's, as in the server."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    uvloop.run(asyncio.wait_for(test(**arguments), 3 * PATIENCE_S))
    return True


@pytest.fixture(scope="session", autouse=True)
def shared_graphs() -> Iterator[None]:
    """Traces each structure of a network once. All processes and runs share the graphs."""
    if "torch" not in sys.modules:  # no collected test exports a network, and the import takes seconds
        yield
        return
    from swiftlet_models.graphs import export
    from tests.support.graph_cache import cached, directory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_trace", cached(export._trace, directory()))
        yield


@pytest.fixture(scope="session")
def artifact_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with one small artifact per task. Shared by all tests: do not write into it."""
    directory = tmp_path_factory.mktemp("artifacts")
    for task in ("classify", "qa", "fill-mask"):
        make_artifact(directory, task)
    return directory
