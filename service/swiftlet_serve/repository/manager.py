"""Makes the server serve the versions that the model repository names.

A new version is fetched, verified and loaded beside the old one, and replays its golden answers. Then it takes over in
one step. The old version finishes its requests and is released. If a step fails, the old version serves on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final, NamedTuple

from swiftlet_models.artifact import ArtifactError
from swiftlet_serve import tasks
from swiftlet_serve.errors import NotFound, SetupError, SwiftletError, Unavailable, log_exception
from swiftlet_serve.inference.catalog import DEFAULT, ModelLoading, ServedVersions, unknown_name
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.repository import desired
from swiftlet_serve.repository.cache import Cache
from swiftlet_serve.repository.desired import Wanted
from swiftlet_serve.repository.shadow import Shadows
from swiftlet_serve.repository.store import RepositoryError, Store
from swiftlet_serve.repository.threads import in_thread
from swiftlet_serve.repository.version import Version
from swiftlet_serve.telemetry.snapshot import RepositoryState, VersionState
from swiftlet_serve.types import Deadline

log = logging.getLogger(__name__)

RETRY_S: Final = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0)  # until a version that failed so often is loaded again
USUAL_LOAD_S: Final = 2.0  # predicted for the first version
LOOK_S: Final = 60.0  # a repository that does not respond for this time is unreachable

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
        self, runtime: LocalRuntime, store: Store, cache: Cache, *, max_bytes: int | None = None, poll_s: float = 5.0
    ) -> None:
        """Creates a manager.

        Args:
            runtime: serves the models. Its catalog belongs to the manager.
            store: the repository.
            cache: makes local copies.
            max_bytes: limit of all models in memory, by the size of their files. None: no limit.
            poll_s: seconds between two looks at the repository.
        """
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
        self._readable = True  # whether the last look at the repository succeeded
        self._valid = True  # whether the latest desired state is valid
        self._looking: asyncio.Future[Seen] | None = None  # a look that may have stalled
        self._stopping = asyncio.Event()
        self._changing = asyncio.Lock()
        self._requested: dict[tuple[str, int], asyncio.Task[None]] = {}  # loads that requests wait for
        self._watcher: asyncio.Task[None] | None = None
        self._load_s = USUAL_LOAD_S  # of the latest load
        runtime.use_repository(self)

    # The life of the manager

    async def start(self) -> None:
        """Loads the models, and starts to follow the repository.

        Raises:
            SetupError: the repository cannot be read, or a model cannot be served.
        """
        try:
            self._seen = await self._read()
            models = None if self._seen.content is None else desired.parse(self._seen.content)
            wanted = desired.resolve(models, self._seen.present)
        except RepositoryError as error:
            raise SetupError(str(error)) from error
        if not wanted:
            raise SetupError("The model repository has no models. Add one with: swiftlet push.")
        for name, target in wanted.items():
            follows = models is None or models[name].fixed is None
            older = [number for number in reversed(self._seen.present[name]) if number < target.default]
            async with self._changing:
                failure = await self._change({name: target})
                while failure and follows and older:  # the latest version is broken, and must not stop the server
                    failure = await self._change({name: target.model_copy(update={"default": older.pop(0)})})
                    self._failed_looks = 1  # so that it is tried again later
            if failure:
                raise SetupError(failure[0])
        self._cache.keep_only(self.versions.keys())
        self._watcher = asyncio.create_task(self._watch())

    def stop(self) -> None:
        """Stops following the repository. Models that requests wait for are still loaded."""
        self._stopping.set()

    async def close(self) -> None:
        """Ends the loads that are in progress, and removes a temporary cache. All requests must have ended."""
        self._stopping.set()
        tasks = [task for task in (self._watcher, *self._requested.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._shadows.close()
        self._cache.close()

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._poll_s)
            if self._stopping.is_set():
                return
            try:
                await self.look()
            except Exception as error:  # must not end the watcher
                log_exception(log, "The model repository could not be followed", error)

    async def look(self) -> None:
        """Reads the repository, and serves its desired versions if they have changed."""
        try:
            seen = await self._read()
        except RepositoryError as error:
            if self._readable:
                log.error("%s The served models stay.", error)  # noqa: TRY400  # the message suffices
            self._readable = False
            return
        self._readable = True
        changed = seen != self._seen
        if not changed and (not self._failed_looks or time.monotonic() < self._retry_at):
            return
        if seen.content != self._seen.content:
            self._explicit.clear()
        self._seen = seen
        try:
            models = None if seen.content is None else desired.parse(seen.content)
            wanted = desired.resolve(models, seen.present)
        except RepositoryError as error:
            self._valid, failures = False, [str(error)]
            if changed:
                log.error("%s The served models stay.", error)  # noqa: TRY400  # as above
        else:
            self._valid = True
            async with self._changing:
                failures = await self._change(wanted | self._explicit, others=False)
            self._forget_failed()
        self._failed_looks = self._failed_looks + 1 if failures else 0
        self._retry_at = time.monotonic() + _retry_s(self._failed_looks + 1)

    @property
    def reachable(self) -> bool:
        """Whether the last look at the repository succeeded, and its desired state is valid."""
        return self._readable and self._valid

    async def _read(self) -> Seen:
        """Reads the repository, for a limited time.

        Raises:
            RepositoryError: as `_look`, or it does not respond.
        """
        self._looking = looking = self._looking or in_thread(self._look)
        await asyncio.wait([looking], timeout=LOOK_S)
        if not looking.done():
            raise RepositoryError("The model repository does not respond.")
        self._looking = None
        return looking.result()

    def _look(self) -> Seen:
        """Reads the repository.

        Raises:
            RepositoryError: it cannot be read, or is empty though models are served from it.
        """
        seen = Seen(self._store.desired(), self._store.versions())
        if self._serving and not any(seen.present.values()):
            raise RepositoryError("The model repository is empty.")
        return seen

    # Control

    async def load(self, name: str, number: int | None = None, alias: str | None = None) -> None:
        """Serves a version from now on. Returns once it serves.

        Args:
            name: the name of the model.
            number: the version. None: the latest.
            alias: the alias that names the version. None or `default`: it becomes the default version, and ends a
                split.

        Raises:
            NotFound: the repository has no such version.
            LoadFailed: the version cannot be loaded.
        """
        try:
            present = (await in_thread(self._store.versions)).get(name, [])
        except RepositoryError as error:
            raise LoadFailed(str(error)) from error
        version = number or next(reversed(present), None)
        if version is None or version not in present:
            raise NotFound("unknown_model", "The model repository has no such version.")
        async with self._changing:
            before = self._serving.get(name) or Wanted(default=version)
            if alias in (None, DEFAULT):
                update = {"default": version, "split": (), "shadow": None}
            else:
                update = {"aliases": {**before.aliases, alias: version}}
            wanted = before.model_copy(update=update)
            if failures := await self._change({name: wanted}):
                raise LoadFailed(failures[0])
            self._explicit[name] = wanted

    async def unload(self, name: str) -> None:
        """Stops serving a model. Returns once its requests have ended.

        Raises:
            NotFound: the model is not served.
        """
        async with self._changing:
            if name not in self._serving:
                raise unknown_name()
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
            task.add_done_callback(partial(self._on_requested, key))
        loading = self._requested[key]
        await asyncio.wait([loading], timeout=max(0.0, deadline - time.monotonic()))
        if not loading.done():
            raise ModelLoading(*key, max(1.0, self._load_s))
        if loading.cancelled() or loading.exception() is not None:
            raise _unavailable(max(1.0, version.retry_at - time.monotonic()))

    def _on_requested(self, key: tuple[str, int], task: asyncio.Task[None]) -> None:
        del self._requested[key]
        if not task.cancelled():
            task.exception()  # was logged, and may have no reader: each request waits until its deadline only

    def state(self) -> RepositoryState:
        """Returns the state of the repository and of its versions, for /models and /metrics."""
        versions = []
        for version in self.versions.values():
            wanted = self._serving.get(version.name) or Wanted(default=0)
            aliases = {DEFAULT: wanted.default, **wanted.aliases}
            names = [name for name, number in aliases.items() if number == version.number]
            share = dict(wanted.split).get(version.number, 0.0) / (sum(part for _, part in wanted.split) or 1.0)
            state = VersionState(version.name, version.number, version.state, version.reason, names, share)
            versions.append(state)
        return RepositoryState(self.reachable, self.loads.copy(), self._used, versions, self._shadows.stats())

    # Changes

    async def _change(self, wanted: Mapping[str, Wanted | None], *, others: bool = True) -> list[str]:
        """Serves these models, and `others` that are served already. None ends a model.

        A model that cannot be changed stays as it is. Returns the reasons. The caller holds `_changing`.
        """
        failures = []
        serving: dict[str, Wanted] = {}
        before = self._serving
        for name, target in {**(self._serving if others else {}), **wanted}.items():
            try:
                if target is not None and target != self._serving.get(name):
                    await self._prepare(name, target)
            except FAULTS as error:
                failures.append(f"{name} cannot be served: {error}")
                log.error("%s It stays as it was.", failures[-1])  # noqa: TRY400  # the message suffices
                target = self._serving.get(name)
            if target is not None:
                serving[name] = target
        self._serving = serving
        self._publish()
        _log_changes(before, serving)
        await self._release_unused()
        return failures

    async def _prepare(self, name: str, wanted: Wanted) -> None:
        """Loads the versions that a model needs. At start, versions beyond the memory are left for later."""
        versions = [await self._describe(name, number) for number in wanted.versions]
        before = self._serving.get(name)
        task = versions[0].task if before is None else self.versions[name, before.default].task
        for version in versions:
            with self._attempt(version):
                if version.task != task:
                    raise RepositoryError(f"The task of version {version.number} is {version.task}, and not {task}.")
                if self._max_bytes is not None and version.size > self._max_bytes:
                    raise RepositoryError(f"{version} does not fit into the memory for models, max_models_mb.")
        is_new = before is None
        for version in versions:
            if version.state == "ready":
                continue
            if is_new and not wanted.pinned and self._max_bytes and self._used + version.size > self._max_bytes:
                continue
            await self._load(version, keep=versions)

    async def _describe(self, name: str, number: int) -> Version:
        version = self.versions.setdefault((name, number), Version(name, number))
        if not version.task or version.state == "failed":  # it may have been repaired
            with self._attempt(version):
                content = await in_thread(self._store.manifest, name, number)
                try:
                    manifest = json.loads(content)
                    version.size = sum(int(file["size"]) for file in manifest["files"].values())
                    task = str(manifest["task"])
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                    raise RepositoryError(f"The manifest of version {number} is invalid.") from None
                tasks.load(task)  # raises SetupError for a task of a newer server
                version.task = task
        return version

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
        with self._attempt(version):
            artifact = await in_thread(self._cache.fetch, version.name, version.number)
            version.path = artifact.path
            await self._make_room(version, keep)
            version.pipeline = await self._runtime.add_version(artifact.path, version.number)
        version.state, version.reason, version.failures, version.retry_at = "ready", "", 0, 0.0
        self.loads[version.name, "loaded"] += 1
        self._load_s = time.monotonic() - started
        self._runtime.log_served(version.pipeline)

    @contextmanager
    def _attempt(self, version: Version) -> Iterator[None]:
        """Notes why a version cannot be served, for the log, /models and the metrics. Raises one of FAULTS."""
        try:
            yield
        except FAULTS as error:
            self._note_failure(version, str(error))
            raise
        except Exception as error:  # no check covers this fault of the files, which must not end the watcher
            log_exception(log, f"{version} could not be loaded", error)
            reason = f"The load failed unexpectedly: {type(error).__name__}. See the log."
            self._note_failure(version, reason)
            raise RepositoryError(reason) from error
        except asyncio.CancelledError:
            self._note_failure(version, "The load was interrupted.")
            raise

    def _note_failure(self, version: Version, reason: str) -> None:
        version.state, version.reason, version.failures = "failed", reason, version.failures + 1
        version.retry_at = time.monotonic() + _retry_s(version.failures)
        self.loads[version.name, "failed"] += 1
        log.error("%s could not be loaded: %s", version, reason)

    @property
    def _used(self) -> int:
        return sum(version.size for version in self.versions.values() if version.pipeline is not None)

    async def _make_room(self, version: Version, keep: Sequence[Version]) -> None:
        """Releases the versions that were used least recently, until another one fits.

        The version that it replaces leaves last, because it serves on if the load fails.

        Raises:
            RepositoryError: it does not fit beside the versions that must stay. Then no version is released.
        """
        if self._max_bytes is None:
            return
        present = [loaded for loaded in self.versions.values() if loaded.pipeline is not None]
        candidates = [loaded for loaded in present if loaded not in keep and not self._is_pinned(loaded)]
        if self._used - sum(candidate.size for candidate in candidates) + version.size > self._max_bytes:
            raise RepositoryError(f"{version} does not fit into the memory for models, max_models_mb.")

        def order(candidate: Version) -> tuple[bool, float]:
            return candidate.name == version.name, candidate.pipeline.last_used if candidate.pipeline else 0.0

        for oldest in sorted(candidates, key=order):
            if self._used + version.size <= self._max_bytes:
                return
            log.info("%s leaves the memory, to make room for %s", oldest, version)
            await self._release(oldest)

    def _is_pinned(self, version: Version) -> bool:
        wanted = self._serving.get(version.name)
        return wanted is not None and wanted.pinned

    def _publish(self) -> None:
        """Makes the current state apply to all requests from now on."""
        served = {}
        for name, wanted in self._serving.items():
            versions = [self.versions[name, number] for number in wanted.versions]
            pipelines = {version.number: version.pipeline for version in versions}
            aliases = {**wanted.aliases, DEFAULT: wanted.default}
            served[name] = ServedVersions(versions[0].task, pipelines, aliases, wanted.split)
        self._runtime.catalog.update(served)
        self._shadows.update(self._serving, self.versions)

    def _forget_failed(self) -> None:
        """Forgets failed versions that are neither wanted nor in the repository any more."""
        for key, version in list(self.versions.items()):
            wanted, present = self._serving.get(version.name), self._seen.present.get(version.name, ())
            unwanted = wanted is None or version.number not in wanted.versions
            if version.state == "failed" and unwanted and version.number not in present:
                del self.versions[key]

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


def _retry_s(failures: int) -> float:
    return RETRY_S[min(failures, len(RETRY_S)) - 1]


def _log_changes(before: Mapping[str, Wanted], now: Mapping[str, Wanted]) -> None:
    for name in before.keys() | now.keys():
        if name not in now:
            log.info("%s is no longer served", name)
        elif name in before and now[name].default != before[name].default:
            log.info("%s %d replaces %s %d", name, now[name].default, name, before[name].default)


def _unavailable(wait_s: float) -> Unavailable:
    detail = "The model cannot be loaded. The server's log has the reason. Retry after the time in Retry-After."
    return Unavailable("model_unavailable", detail, retry_after=wait_s)
