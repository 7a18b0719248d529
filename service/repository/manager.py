"""Makes the server serve what the model repository wants.

A version is fetched, verified and loaded beside those that serve, replays its golden answers there, and then takes over
at once. The earlier version finishes its requests and is released. If a step fails, the earlier version serves on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from swiftlet_serve.models.artifact import ArtifactError
from swiftlet_serve.service.catalog import DEFAULT, ModelLoading, ServedVersions
from swiftlet_serve.service.errors import NotFound, SetupError, SwiftletError, Unavailable
from swiftlet_serve.service.repository import desired
from swiftlet_serve.service.repository.cache import Cache
from swiftlet_serve.service.repository.desired import Wanted
from swiftlet_serve.service.repository.shadow import Shadows
from swiftlet_serve.service.repository.store import RepositoryError, Store
from swiftlet_serve.service.repository.version import Version
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.telemetry.snapshot import RepositoryState, VersionState
from swiftlet_serve.service.types import Deadline

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # after which a version that could not be loaded is tried again, doubled each time
MAX_RETRY_S: Final = 600.0
USUAL_LOAD_S: Final = 2.0  # predicted for the first version

FAULTS: Final = (ArtifactError, SetupError, RepositoryError, SwiftletError)
"""The errors that make a version fail to load."""


class LoadFailed(Exception):
    """Raised when a version cannot be loaded. The message names it and says why."""


class Seen(NamedTuple):
    """The repository as the server has seen it."""

    content: bytes | None  # of desired.json
    present: Mapping[str, Sequence[int]]


class ModelManager:
    """Loads and releases versions, one change at a time."""

    def __init__(
        self, runtime: Runtime, store: Store, cache: Cache, *, max_bytes: int | None = None, poll_s: float = 5.0
    ) -> None:
        """Creates a manager.

        Args:
            runtime: serves the models. Its catalog belongs to the manager.
            store: the repository.
            cache: makes local copies.
            max_bytes: limit of all models in memory, by the size of their files. None: no limit.
            poll_s: seconds between two looks at the repository.
        """
        self.reachable = True  # whether the last look at the repository succeeded
        self.loads: Counter[tuple[str, str]] = Counter()  # by model and result: loaded or failed
        self.versions: dict[tuple[str, int], Version] = {}  # by name and number
        self._runtime = runtime
        self._store = store
        self._cache = cache
        self._max_bytes = max_bytes
        self._poll_s = poll_s
        self._serving: dict[str, Wanted] = {}
        self._explicit: dict[str, Wanted | None] = {}  # changes by the control endpoints, until desired.json changes
        self._shadows = Shadows(runtime)
        self._seen = Seen(None, {})
        self._retry_at = 0.0
        self._failed_looks = 0
        self._changing = asyncio.Lock()
        self._requested: dict[tuple[str, int], asyncio.Task[None]] = {}  # loads that requests wait for
        self._watcher: asyncio.Task[None] | None = None
        self._load_s = USUAL_LOAD_S  # of the latest load
        runtime.wait_for_model = self.wait_for_model
        runtime.repository_state = self.state

    # The life of the manager

    async def start(self) -> None:
        """Loads the models, and starts to follow the repository.

        Raises:
            SetupError: the repository cannot be read, or a model cannot be served.
        """
        try:
            self._seen = await asyncio.to_thread(self._look)
            models = None if self._seen.content is None else desired.parse(self._seen.content)
            wanted = desired.resolve(models, self._seen.present)
        except RepositoryError as error:
            raise SetupError(str(error)) from error
        if not wanted:
            raise SetupError("The model repository has no models. Add one with: swiftlet push.")
        for name, one in wanted.items():
            follows = models is None or models[name].version is None
            older = [number for number in reversed(self._seen.present[name]) if number < one.default]
            failure = await self._change({name: one})
            while failure and follows and older:  # the latest version is broken, and must not stop the server
                failure = await self._change({name: one.model_copy(update={"default": older.pop(0)})})
                self._failed_looks = 1  # so that it is tried again later
            if failure:
                raise SetupError(failure[0])
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stops to follow the repository."""
        tasks = [task for task in (self._watcher, *self._requested.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._shadows.close()
        self._cache.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            await self.look()

    async def look(self) -> None:
        """Looks at the repository, and serves what it wants if it has changed. Never raises."""
        try:
            seen = await asyncio.to_thread(self._look)
        except RepositoryError as error:
            if self.reachable:
                log.error("%s The served models stay.", error)  # noqa: TRY400  # the message suffices
            self.reachable = False
            return
        self.reachable = True
        changed = seen != self._seen
        if not changed and (not self._failed_looks or time.monotonic() < self._retry_at):
            return
        if seen.content != self._seen.content:
            self._explicit.clear()
        self._seen = seen
        try:
            models = None if seen.content is None else desired.parse(seen.content)
            failures = await self._change(desired.resolve(models, seen.present) | self._explicit, others=False)
        except RepositoryError as error:
            failures = [str(error)]
            if changed:
                log.error("%s The served models stay.", error)  # noqa: TRY400  # as above
        self._failed_looks = self._failed_looks + 1 if failures else 0
        self._retry_at = time.monotonic() + min(MAX_RETRY_S, RETRY_S * 2**self._failed_looks)

    def _look(self) -> Seen:
        """Reads the repository.

        Raises:
            RepositoryError: it cannot be read, or is empty though models are served from it.
        """
        seen = Seen(self._store.desired(), self._store.versions())
        if self._serving and not seen.present:
            raise RepositoryError("The model repository is empty.")
        return seen

    # Control

    async def load(self, name: str, number: int | None = None, alias: str | None = None) -> None:
        """Serves a version from now on. Returns once it serves.

        Args:
            name: the name of the model.
            number: the version. None: the latest.
            alias: the alias that names the version. None: it becomes the default version, and ends a split.

        Raises:
            NotFound: the repository has no such version.
            LoadFailed: the version cannot be loaded.
        """
        try:
            present = (await asyncio.to_thread(self._store.versions)).get(name, [])
        except RepositoryError as error:
            raise LoadFailed(str(error)) from error
        version = number or next(reversed(present), None)
        if version is None or version not in present:
            raise NotFound("unknown_model", "The model repository has no such version.")
        before = self._serving.get(name)
        if alias is None:
            wanted = (before or Wanted(default=version)).model_copy(
                update={"default": version, "split": (), "shadow": None}
            )
        else:
            before = before or Wanted(default=version)
            wanted = before.model_copy(update={"aliases": {**before.aliases, alias: version}})
        if failures := await self._change({name: wanted}):
            raise LoadFailed(failures[0])
        self._explicit[name] = wanted

    async def unload(self, name: str) -> None:
        """Stops to serve a model. Returns once its requests have ended.

        Raises:
            NotFound: the model is not served.
        """
        if name not in self._serving:
            raise NotFound("unknown_model", "No model has this name. See /models for the served models.")
        await self._change({name: None})
        self._explicit[name] = None

    async def wait_for_model(self, missing: ModelLoading, deadline: Deadline) -> None:
        """Loads a version that a request needs, and waits for it.

        Raises:
            ModelLoading: it is not there by the deadline. Loading goes on.
            Unavailable: it cannot be loaded.
        """
        key = missing.name, missing.version
        version = self.versions[key]
        if (wait_s := version.retry_at - time.monotonic()) > 0:
            raise _unavailable(wait_s)
        if key not in self._requested:
            self._requested[key] = task = asyncio.create_task(self._load_requested(version))
            task.add_done_callback(lambda _: self._requested.pop(key))
        loading = self._requested[key]
        await asyncio.wait([loading], timeout=max(0.0, deadline - time.monotonic()))
        if not loading.done():
            raise ModelLoading(*key, max(1.0, self._load_s))
        if loading.cancelled() or loading.exception() is not None:
            raise _unavailable(max(1.0, version.retry_at - time.monotonic()))

    def state(self) -> RepositoryState:
        """Returns the state of the repository and of its versions, for /models and /metrics."""
        found = []
        for version in self.versions.values():
            wanted = self._serving.get(version.name) or Wanted(default=0)
            aliases = {DEFAULT: wanted.default, **wanted.aliases}
            names = [name for name, number in aliases.items() if number == version.number]
            share = dict(wanted.split).get(version.number, 0.0) / (sum(each for _, each in wanted.split) or 1.0)
            state = VersionState(version.name, version.number, version.state, version.reason, names, share)
            found.append(state)
        return RepositoryState(self.reachable, self.loads.copy(), self._used, found, self._shadows.stats())

    # Changes

    async def _change(self, wanted: Mapping[str, Wanted | None], *, others: bool = True) -> list[str]:
        """Serves these models, and `others` that are served already. None ends a model.

        A model that cannot be changed stays as it is. Returns the reasons.
        """
        failures = []
        async with self._changing:
            serving: dict[str, Wanted] = {}
            for name, one in {**(self._serving if others else {}), **wanted}.items():
                try:
                    if one is not None and one != self._serving.get(name):
                        await self._prepare(name, one)
                except FAULTS as error:
                    failures.append(f"{name} cannot be served: {error}")
                    log.error("%s It stays as it was.", failures[-1])  # noqa: TRY400  # the message suffices
                    one = self._serving.get(name)
                if one is not None:
                    serving[name] = one
            self._serving = serving
            self._publish()
            await self._release_unused()
        return failures

    async def _prepare(self, name: str, wanted: Wanted) -> None:
        """Loads the versions that a model needs. At first, what exceeds the memory is left for the first request."""
        versions = [await self._describe(name, number) for number in wanted.versions]
        before = self._serving.get(name)
        task = versions[0].task if before is None else self.versions[name, before.default].task
        for version in versions:
            if version.task != task:
                raise RepositoryError(f"The task of version {version.number} is {version.task}, and not {task}.")
        is_new = before is None
        for version in versions:
            if version.state == "ready":
                continue
            if is_new and not wanted.pinned and self._max_bytes and self._used + version.size > self._max_bytes:
                continue
            await self._load(version, keep=versions)

    async def _describe(self, name: str, number: int) -> Version:
        if (name, number) not in self.versions:
            content = await asyncio.to_thread(self._store.manifest, name, number)
            try:
                manifest = json.loads(content)
                size = sum(int(file["size"]) for file in manifest["files"].values())
                self.versions[name, number] = Version(name, number, str(manifest["task"]), size)
            except (ValueError, KeyError, TypeError, AttributeError):
                raise RepositoryError(f"The manifest of version {number} is invalid.") from None
        return self.versions[name, number]

    async def _load_requested(self, version: Version) -> None:
        async with self._changing:
            wanted = self._serving.get(version.name)
            if version.state == "ready" or wanted is None or version.number not in wanted.versions:
                return  # it changed meanwhile
            await self._load(version, keep=[version])
            self._publish()

    async def _load(self, version: Version, keep: Sequence[Version]) -> None:
        """Loads a version.

        Raises one of FAULTS, after which the version has the state `failed`.
        """
        started = time.monotonic()
        version.state = "loading"
        try:
            artifact = await asyncio.to_thread(self._cache.fetch, version.name, version.number)
            version.path = artifact.path
            await self._make_room(version, keep)
            version.pipeline = await self._runtime.add_version(artifact.path, version.number)
        except BaseException as error:
            version.state, version.failures = "failed", version.failures + 1
            version.reason = str(error) if isinstance(error, FAULTS) else "The load was interrupted."
            version.retry_at = time.monotonic() + min(MAX_RETRY_S, RETRY_S * 2 ** (version.failures - 1))
            self.loads[version.name, "failed"] += 1
            log.error("%s could not be loaded: %s", version, version.reason)  # noqa: TRY400  # the message suffices
            raise
        version.state, version.reason, version.failures, version.retry_at = "ready", "", 0, 0.0
        self.loads[version.name, "loaded"] += 1
        self._load_s = time.monotonic() - started
        self._runtime.log_served(version.pipeline)

    @property
    def _used(self) -> int:
        return sum(version.size for version in self.versions.values() if version.pipeline is not None)

    async def _make_room(self, version: Version, keep: Sequence[Version]) -> None:
        """Releases the versions that were used least recently, until another one fits.

        Raises:
            RepositoryError: it does not fit beside those that must stay.
        """
        while self._max_bytes is not None and self._used + version.size > self._max_bytes:
            candidates = [
                other
                for other in self.versions.values()
                if other.pipeline is not None and other not in keep and not self._is_pinned(other)
            ]
            if not candidates:
                raise RepositoryError(f"{version} does not fit into the memory for models, max_models_mb.")
            oldest = min(candidates, key=lambda other: other.pipeline.last_used if other.pipeline else 0.0)
            log.info("%s leaves the memory, to make room for %s", oldest, version)
            await self._release(oldest)

    def _is_pinned(self, version: Version) -> bool:
        wanted = self._serving.get(version.name)
        return wanted is not None and wanted.pinned

    def _publish(self) -> None:
        """Makes the current state that of all requests from now on."""
        served = {}
        for name, wanted in self._serving.items():
            versions = [self.versions[name, number] for number in wanted.versions]
            pipelines = {version.number: version.pipeline for version in versions}
            aliases = {**wanted.aliases, DEFAULT: wanted.default}
            served[name] = ServedVersions(versions[0].task, pipelines, aliases, wanted.split)
        self._runtime.catalog.update(served)
        self._shadows.update(self._serving, self.versions)

    async def _release_unused(self) -> None:
        for version in list(self.versions.values()):
            wanted = self._serving.get(version.name)
            if wanted is None or version.number not in wanted.versions:
                await self._release(version)
                if version.path is not None:
                    await asyncio.to_thread(self._cache.release, version.path)
                if version.state != "failed":
                    del self.versions[version.name, version.number]

    async def _release(self, version: Version) -> None:
        """Takes a version out of the memory, once its requests have ended."""
        pipeline, version.pipeline = version.pipeline, None
        if pipeline is not None:
            version.state = "unloaded"
            self._publish()
            await self._shadows.close_ended()
            await self._runtime.remove_version(pipeline)


def _unavailable(wait_s: float) -> Unavailable:
    detail = "The model cannot be loaded. The server's log has the reason. Retry after the time in Retry-After."
    return Unavailable("model_unavailable", detail, retry_after=wait_s)
