"""Composes the service: opens the artifacts, starts the engines, and makes one pipeline for each model."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError, draining, engine_unavailable
from swiftlet_serve.inference.catalog import DEFAULT, Catalog, ModelLoading, ServedVersions
from swiftlet_serve.inference.loading import LoadedModel, ServedModel, load_model, locate, open_model
from swiftlet_serve.inference.pipeline import Pipeline, Scheduler
from swiftlet_serve.machine.devices import CUDA_VISIBLE_DEVICES, find_devices
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.dispatcher import Dispatcher
from swiftlet_serve.scheduling.model_scheduler import ModelScheduler
from swiftlet_serve.scheduling.rate_limit import ClientRateLimiter
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.event_loop_lag import EventLoopLag
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import RepositoryState, Snapshot
from swiftlet_serve.types import Deadline, Executor
from swiftlet_serve.workers.device_executor import DeviceExecutor
from swiftlet_serve.workers.hosted_model import HostedModel
from swiftlet_serve.workers.process_executor import ProcessExecutor
from swiftlet_serve.workers.thread_executor import ThreadExecutor

log = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=ServedModel)

CALLS_OF_DEVICE: Final = 2  # at least: the ids of one are copied while the other one computes
CLOSE_S: Final = 2.0  # all requests have ended before the runtime closes, so nothing waits for the calls that still run


class Runtime:
    """All pipelines of the process, over one executor."""

    def __init__(self, settings: Settings, served: Sequence[ServedModel], executor: Executor) -> None:
        """Creates a pipeline for each model.

        Raises:
            SetupError: two models have the same name.
        """
        self.settings = settings
        self.leaving = False  # whether the server is about to stop: it still answers, but is not ready
        self.stats = RequestStats({})
        self.dispatcher = Dispatcher(executor, stats=self.stats)
        self.admission = AdmissionController(self.dispatcher.load, settings.max_queued_tokens)
        rates = settings.client_rate_limit, settings.client_token_rate_limit
        self.rate_limiter = ClientRateLimiter(*rates) if any(rates) else None  # of the requests on all ports
        self.catalog = Catalog()
        self.count_connections: Callable[[], int] = lambda: 0  # of clients; a server sets it
        # Adds what other processes know. A server with fronts sets it.
        self.extend_snapshot: Callable[[Snapshot], Awaitable[Snapshot]] = _unchanged
        # Waits for a version that is not in memory. Raises Unavailable if it is late. Set with a repository.
        self.wait_for_model: Callable[[ModelLoading, Deadline], Awaitable[None]] = raise_missing
        self.repository_state: Callable[[], RepositoryState | None] = lambda: None  # set with a repository
        # By hash, of the versions of a repository. Those of versions that have gone go as well.
        self._tokenizers: MutableMapping[str, Tokenizer] = WeakValueDictionary()
        self._lag = EventLoopLag()
        self._executor = executor
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        fixed: dict[str, ServedVersions] = {}
        for model in served:
            name = model.manifest.name
            if name in fixed:
                raise SetupError(f"Two of the models to serve have the name {name!r}. Names must be unique.")
            fixed[name] = ServedVersions(model.manifest.task, {1: self._make_pipeline(model, name)}, {DEFAULT: 1})
        self.catalog.update(fixed)

    def _make_pipeline(self, model: ServedModel, key: str, version: int | None = None) -> Pipeline:
        manifest = model.manifest
        self.dispatcher.add_model(key, manifest.name)
        self.stats.add_model(manifest.name, manifest.task, version)
        scheduler = ModelScheduler(key, self.admission, self.dispatcher, self.stats, self.rate_limiter)
        return Pipeline(model, scheduler, self._threads, self.settings.max_queued_tokens, key, version)

    @property
    def pipelines(self) -> Mapping[str, Pipeline]:
        """The default pipeline of each model that is in memory, by its name."""
        return self.catalog.pipelines

    @property
    def tasks(self) -> Mapping[str, Pipeline]:
        """The default pipeline of each task, for requests that name no model."""
        return self.catalog.tasks

    @property
    def task_names(self) -> Sequence[str]:
        """The tasks that have a route. Models of a repository may bring any task."""
        return list(self.tasks) if self.settings.repository is None else tasks.names()

    async def add_version(self, path: Path, version: int) -> Pipeline:
        """Loads a version of a model while requests are served. The caller puts its pipeline into the catalog.

        Raises:
            ArtifactError, SetupError: the artifact cannot be served.
            Unavailable: there is no engine, and none is starting.
        """
        model = await asyncio.to_thread(open_model, path, self.settings.engine, self._tokenizers)
        key = f"{model.manifest.name}@{version}"
        await self._executor.add_model(key, path)
        return self._make_pipeline(model, key, version)

    def copy_pipeline(self, pipeline: Pipeline, scheduler: Scheduler) -> Pipeline:
        """Returns a pipeline for the same model with another scheduler."""
        return Pipeline(pipeline.model, scheduler, self._threads, self.settings.max_queued_tokens, pipeline.key)

    def has_idle_core(self) -> bool:
        """Returns whether nothing is queued, and a core stays idle when another call starts, if there are several."""
        load = self.dispatcher.load()
        return not load.queued_tokens and len(load.calls) + 1 < max(2, load.cores)

    async def remove_version(self, pipeline: Pipeline) -> None:
        """Releases a version that is no longer in the catalog, once its requests have ended."""
        await pipeline.wait_until_idle()
        await self.dispatcher.remove_model(pipeline.key)
        await self._executor.remove_model(pipeline.key)
        self.stats.remove_version(pipeline.model.manifest.name, pipeline.version or 0)

    @classmethod
    def of(cls, settings: Settings, served: Sequence[LoadedModel]) -> Runtime:
        """Returns a runtime over engines in this process."""
        hosted = {
            model.manifest.name: HostedModel(model.engine, model.manifest.width, model.timed_calls) for model in served
        }
        return cls(settings, served, ThreadExecutor(hosted, settings.cores, settings.engine))

    @classmethod
    def load(cls, settings: Settings) -> Runtime:
        """Loads the models of the settings into engines in this process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        tokenizers: dict[str, Tokenizer] = {}
        served = [load_model(path, settings.engine, tokenizers) for path in _locate(settings)]
        return cls.of(settings, _in_order(settings, served))

    @classmethod
    def start(cls, settings: Settings) -> Runtime:
        """Loads the models of the settings into engines in a worker process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        paths, tokenizers = _locate(settings), dict[str, Tokenizer]()
        executor = _make_executor(settings, paths)
        try:
            served = [open_model(path, settings.engine, tokenizers) for path in paths]
            runtime = cls(settings, _in_order(settings, served), executor)
            executor.load()
        except BaseException:
            executor.abandon()
            raise
        return runtime

    async def open(self) -> None:
        """Starts to supervise the engines, on the event loop that answers requests."""
        self.loop = asyncio.get_running_loop()
        self._lag.start(self.loop)
        await self._executor.open()
        for pipeline in self.pipelines.values():
            self.log_served(pipeline)

    def log_served(self, pipeline: Pipeline) -> None:
        """Logs that a model is served, and on what."""
        manifest, runtime = pipeline.model.manifest, self.engine_title(pipeline)
        log.info("model %s %s (%s) runs on %s", manifest.name, pipeline.version_name, manifest.task, runtime)

    def engine_title(self, pipeline: Pipeline) -> str:
        """Returns the title of the engine that serves a model now: the runtime that it chose."""
        return self._executor.runtime(pipeline.key)

    @property
    def draining(self) -> bool:
        """Whether every request is refused."""
        return self.admission.closed

    def check_open(self) -> None:
        """Raises Unavailable if every request is refused."""
        if self.draining:
            raise draining()

    def check_ready(self) -> None:
        """Raises Unavailable if new clients should use another server."""
        if self.leaving or self.draining:
            raise draining()
        if not self._executor.ready:
            raise engine_unavailable()

    async def snapshot(self) -> Snapshot:
        """Returns the current state of the server. Must be awaited on `loop`."""
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
            self.count_connections(),
            self._lag.largest_s,
            repository=self.repository_state(),
        )
        return await self.extend_snapshot(own)

    async def close(self) -> None:
        """Admits no more requests, finishes those that were admitted, and releases the engines."""
        self._lag.stop()
        self.admission.close()
        await self.dispatcher.close(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._executor.close(CLOSE_S)


async def _unchanged(snapshot: Snapshot) -> Snapshot:
    return snapshot


async def raise_missing(missing: ModelLoading, _: Deadline) -> None:
    """Waits for no model: the `wait_for_model` of a runtime without a repository."""
    raise missing


def _locate(settings: Settings) -> list[Path]:
    """Returns the directories of the models to load at start. Those of a model repository are loaded later."""
    return locate(settings.models) if settings.repository is None else []


def _make_executor(settings: Settings, paths: Sequence[Path]) -> ProcessExecutor | DeviceExecutor:
    """Starts the worker processes: one, or one for each device.

    Raises:
        SetupError: a device of the settings is invalid, or a process cannot be started.
    """
    devices = find_devices(settings.engine, settings.devices, os.environ)
    size = max(CALLS_OF_DEVICE, settings.cores // len(devices)) if devices else settings.cores
    make = partial(
        ProcessExecutor,
        settings.engine,
        paths,
        size,
        spare=settings.spare_engine,
        log_level=settings.log_level,
        log_format=settings.log_format,
    )
    if not devices:
        return make()
    executors = [make(environment={CUDA_VISIBLE_DEVICES: device}) for device in devices]
    return executors[0] if len(executors) == 1 else DeviceExecutor(executors)


def _in_order(settings: Settings, served: list[ModelT]) -> list[ModelT]:
    """Returns the models in the order of the settings, or the bundled models with the best score first."""
    return served if settings.models else sorted(served, key=_score, reverse=True)


def _score(model: ServedModel) -> float:
    """Returns the first score on the model's card, in percent, or 0 without one."""
    scores = model.artifact.card().get("scores", {}).get(model.manifest.precision, {})
    return float(next((score["value"] for score in scores.values()), 0.0))
