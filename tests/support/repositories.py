"""Model repositories of small artifacts, and runtimes that serve them."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.repository.cache import Cache
from swiftlet_serve.repository.manager import ModelManager
from swiftlet_serve.repository.store import DESIRED, DirectoryStore, Store, open_store
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.shadow_stats import ShadowStats
from swiftlet_serve.telemetry.snapshot import RepositoryState, VersionState
from tests.support.artifacts import LABELS, make_artifact, reseal
from tests.support.fakes import PATIENCE_S


def make_version(root: Path, name: str, number: int, task: str = "classify", **changes: Any) -> Path:
    """Adds a version to a repository. The labels of a classifier begin with `v` and the number of the version."""
    labels = tuple(f"v{number}-{label}" for label in LABELS[task])
    with tempfile.TemporaryDirectory() as directory:
        path = reseal(make_artifact(Path(directory), task, name), **({"labels": labels} | changes))
        (root / name).mkdir(parents=True, exist_ok=True)
        return Path(shutil.copytree(path, root / name / str(number)))


def want(root: Path, **models: Mapping[str, Any]) -> None:
    """Writes desired.json, with the names of models given with _ for -."""
    named = {name.replace("_", "-"): model for name, model in models.items()}
    (root / DESIRED).write_text(json.dumps({"models": named}), "utf-8")


def example_state() -> RepositoryState:
    """Returns the state of a repository from which every metric of repositories follows."""
    version = VersionState("tiny-classify", 2, "ready", "", ["default"], 0.0)
    loads = {("tiny-classify", "loaded"): 1}
    return RepositoryState(True, loads, 0, [version], {("tiny-classify", 2): ShadowStats()})


class StallingStore(DirectoryStore):
    """A repository that does not respond, from `stall` until `goes_on` is set."""

    def __init__(self, root: Path, stalls: str) -> None:
        super().__init__(root)
        self._stalls = stalls
        self.started, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def stall(self) -> None:
        self.goes_on.clear()

    def _wait(self, method: str) -> None:
        if method == self._stalls and not self.goes_on.is_set():
            self.started.set()
            self.goes_on.wait(PATIENCE_S)

    def fetch(self, name: str, version: int, to: Path) -> None:
        self._wait("fetch")
        super().fetch(name, version, to)

    def desired(self) -> bytes | None:
        self._wait("desired")
        return super().desired()


class Served:
    """A runtime over a repository, with its application."""

    def __init__(self, runtime: LocalRuntime, manager: ModelManager) -> None:
        self.runtime, self.manager = runtime, manager
        transport = httpx2.ASGITransport(create_app(runtime))
        self.client = httpx2.AsyncClient(transport=transport, base_url="http://test")

    async def classify(self, model: str | None = None, **headers: str) -> httpx2.Response:
        """Sends a request. Headers are given with _ for -."""
        body = {"inputs": "abc"} | ({} if model is None else {"model": model})
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/classify", json=body, headers=named)

    async def version(self, model: str | None = None, **headers: str) -> int:
        """Returns the version that answers a request. All parts of its response must be those of one version."""
        response = await self.classify(model, **headers)
        assert response.status_code == 200, response.text
        version = response.headers["x-model-version"]
        assert all(one["label"].startswith(f"v{version}-") for one in response.json()[0])
        return int(version)

    async def models(self) -> dict[str, Any]:
        """Returns the served models by name."""
        return {one["name"]: one for one in (await self.client.get("/models")).json()}


@asynccontextmanager
async def served(
    root: Path, *, max_bytes: int | None = None, engine: str = "echo", store: Store | None = None, **settings: Any
) -> AsyncIterator[Served]:
    """Serves a repository on engines in this process. The manager looks at it only when the test says so."""
    runtime = LocalRuntime.load(Settings(repository=str(root), engine=engine, cores=2, **settings))
    store = store or open_store(str(root))
    manager = ModelManager(runtime, store, Cache(store, None), max_bytes=max_bytes, poll_s=1e9)
    await runtime.open()
    try:
        await manager.start()
        yield Served(runtime, manager)
    finally:
        await manager.close()
        await runtime.close()
