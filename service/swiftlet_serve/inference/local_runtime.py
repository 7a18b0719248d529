"""The runtime with queues and engines in its process: opens artifacts, starts the engines, and loads later versions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

from swiftlet_models import trunks
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.catalog import ModelLoading, best_first
from swiftlet_serve.inference.loading import LoadedModel, OpenModel, load_model, locate, open_model
from swiftlet_serve.inference.pipeline import Pipeline, Scheduler
from swiftlet_serve.inference.runtime import Place, Runtime
from swiftlet_serve.machine.devices import CUDA_VISIBLE_DEVICES, find_devices
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.model_scheduler import ModelScheduler
from swiftlet_serve.scheduling.rate_limit import ClientRateLimiter
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import RepositoryState, Snapshot
from swiftlet_serve.types import Deadline, Executor
from swiftlet_serve.workers.device_executor import DeviceExecutor
from swiftlet_serve.workers.hosted_model import EngineModel
from swiftlet_serve.workers.process_executor import ProcessExecutor
from swiftlet_serve.workers.thread_executor import ThreadExecutor

CALLS_OF_DEVICE: Final = 2  # at least: the ids of one are copied while the other one computes
CLOSE_S: Final = 2.0  # requests have ended before the runtime closes: nothing waits for the calls that still run


class Repository(Protocol):
    """The model repository, which loads and releases versions."""

    async def wait_for_model(self, missing: ModelLoading, deadline: Deadline, /) -> None:
        """Loads a version that a request needs, and waits for it.

        Raises:
            ModelLoading, Unavailable: it is not there by the deadline.
        """

    def state(self) -> RepositoryState:
        """Returns the state of the repository and of its versions."""
        ...


class PublicPort(Protocol):
    """The port of the clients, in this process or in others."""

    async def extend(self, snapshot: Snapshot, /) -> Snapshot:
        """Adds the connections of the clients, and what else only the port knows, to a snapshot of this process."""
        ...


class LocalRuntime(Runtime):
    """A runtime whose requests are admitted and queued in this process, over one executor."""

    def __init__(
        self,
        settings: Settings,
        served: Sequence[OpenModel],
        executor: Executor,
        groups: Sequence[Sequence[str]] = (),
    ) -> None:
        """Creates a pipeline for each model.

        Args:
            settings: the settings of the server.
            served: the models.
            executor: runs them. It knows models that share a trunk by the name of the first.
            groups: the names of models that share a trunk, in the order of the heads.

        Raises:
            SetupError: two models have the same name.
        """
        self._trunks = {names[0]: names for names in groups}
        stats = RequestStats()
        self.dispatcher = Dispatcher(executor, settings.call_timeout_s, stats=stats)
        self._executor = executor
        self._repository: Repository | None = None
        self._public: PublicPort | None = None
        self._wait: Callable[[], None] = _ready
        # By hash, of the versions of a repository. Those of versions that have gone go as well.
        self._tokenizers: MutableMapping[str, Tokenizer] = WeakValueDictionary()
        admission = AdmissionController(self.dispatcher.load, settings.max_queued_tokens)
        rates = settings.client_rate_limit, settings.client_token_rate_limit
        super().__init__(settings, served, stats, admission, ClientRateLimiter(*rates) if any(rates) else None)

    def _place_of(self, name: str) -> Place:
        for first, names in self._trunks.items():
            if name in names:
                return Place(first, head=names.index(name))
        return Place(name)

    def _make_scheduler(self, name: str, key: str) -> Scheduler:
        if key not in self.dispatcher.models:
            self.dispatcher.add_model(key, self._trunks.get(key, [name]))
        return ModelScheduler(key, self.admission, self.dispatcher, self.stats, self.rate_limiter)

    def use_repository(self, repository: Repository) -> None:
        """Has a repository load the versions that requests wait for."""
        self._repository = repository

    def use_public_port(self, port: PublicPort) -> None:
        """Has a port extend the snapshots."""
        self._public = port

    async def add_version(self, path: Path, version: int) -> Pipeline:
        """Loads a version of a model while requests are served. The caller puts its pipeline into the catalog.

        Raises:
            ArtifactError, SetupError: the artifact cannot be served.
            Unavailable: no engine is ready or starting.
        """
        model = await asyncio.to_thread(
            open_model, path, self.settings.engine, self._tokenizers, self.settings.signer_key
        )
        key = f"{model.manifest.name}@{version}"
        await self._executor.add_model(key, path)
        return self._make_pipeline(model, Place(key, version))

    def copy_pipeline(self, pipeline: Pipeline, scheduler: Scheduler) -> Pipeline:
        """Returns a pipeline for the same model with another scheduler."""
        return Pipeline(pipeline.model, scheduler, self._threads, self.settings, pipeline.key, head=pipeline.head)

    def has_idle_core(self) -> bool:
        """Returns whether nothing is queued, and a core stays idle when another call starts, if there are several."""
        load = self.dispatcher.load()
        return not load.queued_tokens and len(load.calls) + 1 < max(2, load.cores)

    async def remove_version(self, pipeline: Pipeline) -> None:
        """Releases a version that is no longer in the catalog, once its requests have ended."""
        await pipeline.close()
        await self.dispatcher.remove_model(pipeline.key)
        await self._executor.remove_model(pipeline.key)
        self.stats.remove_version(pipeline.model.manifest.name, pipeline.version or 0)

    @classmethod
    def of(cls, settings: Settings, served: Sequence[LoadedModel]) -> LocalRuntime:
        """Returns a runtime over engines in this process."""
        hosted = {}
        for model in served:
            about = model.manifest
            hosted[about.name] = EngineModel(model.engine, about.widths, model.timed_calls)
        return cls(settings, served, ThreadExecutor(hosted, settings.cores, settings.engine, settings.signer_key))

    @classmethod
    def load(cls, settings: Settings) -> LocalRuntime:
        """Loads the models of the settings into engines in this process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        tokenizers: dict[str, Tokenizer] = {}
        key = settings.signer_key
        served = [load_model(path, settings.engine, tokenizers, signer_key=key) for path in _locate(settings)]
        return cls.of(settings, served if settings.models else best_first(served))

    @classmethod
    def start(cls, settings: Settings) -> LocalRuntime:
        """Loads the models of the settings into engines in a worker process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        runtime = cls.begin(settings)
        runtime.wait()
        return runtime

    @classmethod
    def begin(cls, settings: Settings) -> LocalRuntime:
        """Starts what `start` does. The caller has other work until it calls `wait`.

        Raises:
            ArtifactError, SetupError: as `start`.
        """
        paths, tokenizers = _locate(settings), dict[str, Tokenizer]()
        groups = trunks.groups(paths)
        executor = _make_executor(settings, groups)
        try:
            served = [open_model(path, settings.engine, tokenizers, settings.signer_key) for path in paths]
            names = {model.artifact.path: model.manifest.name for model in served}
            heads = [[names[path] for path in group] for group in groups]
            runtime = cls(settings, served if settings.models else best_first(served), executor, heads)
        except BaseException:
            executor.abandon()
            raise
        runtime._wait = executor.load
        return runtime

    def wait(self) -> None:
        """Blocks until the engines are ready.

        Raises:
            ArtifactError, SetupError: a model cannot be served. No worker process is left then.
        """
        self._wait()

    async def open(self) -> None:
        """Starts to supervise the engines, on the event loop that answers requests."""
        await super().open()
        await self._executor.open()
        for pipeline in self.pipelines.values():
            self.log_served(pipeline)

    def engine_title(self, pipeline: Pipeline) -> str:
        return self._executor.runtime(pipeline.key)

    @property
    def has_engine(self) -> bool:
        return self._executor.ready

    async def wait_for_model(self, missing: ModelLoading, deadline: Deadline) -> None:
        if self._repository is None:
            raise missing
        await self._repository.wait_for_model(missing, deadline)

    def repository_state(self) -> RepositoryState | None:
        return None if self._repository is None else self._repository.state()

    async def snapshot(self) -> Snapshot:
        queue = self.dispatcher.queue_state()
        own = Snapshot(
            [
                pipeline.model.info._replace(version=pipeline.version_name)
                for served in self.catalog.models.values()
                for pipeline in served.pipelines.values()
                if pipeline is not None
            ],
            self.stats.copy(),
            queue,
            self._executor.size,
            self._executor.ready,
            self._executor.restarts,
            self._executor.kernel_faults,
            self._executor.workers,
            connections=0,
            loop_lag_s=self._lag.largest_s,
            repository=self.repository_state(),
        )
        return own if self._public is None else await self._public.extend(own)

    async def close(self) -> None:
        """Admits no more requests, finishes those that were admitted, and releases the engines."""
        self.admission.close()
        await self.dispatcher.close(CLOSE_S)
        await super().close()
        await self._executor.close(CLOSE_S)


def _ready() -> None:
    """Stands for the wait for engines that are loaded."""


def _locate(settings: Settings) -> list[Path]:
    """Returns the directories of the models to load at start. Those of a model repository are loaded later.

    Raises:
        ArtifactError, SetupError: as `locate`.
    """
    return locate(settings.models, settings.model_cache) if settings.repository is None else []


def _make_executor(settings: Settings, groups: Sequence[Sequence[Path]]) -> ProcessExecutor | DeviceExecutor:
    """Starts the worker processes: one, or one for each device. Each group of models shares a trunk.

    Raises:
        SetupError: a device of the settings is invalid, or a process cannot be started.
    """
    devices = find_devices(settings.engine, settings.devices, os.environ)
    size = max(CALLS_OF_DEVICE, settings.cores // len(devices)) if devices else settings.cores
    make = partial(
        ProcessExecutor,
        settings.engine,
        groups,
        size,
        spare=settings.spare_engine,
        log_level=settings.log_level,
        log_format=settings.log_format,
        signer_key=settings.signer_key,
    )
    if not devices:
        return make()
    executors = [make(environment={CUDA_VISIBLE_DEVICES: device}) for device in devices]
    return executors[0] if len(executors) == 1 else DeviceExecutor(executors)
