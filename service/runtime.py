"""Composes the service: opens the artifacts, starts the engines, and makes one pipeline for each model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.errors import NotFound, SetupError, draining, engine_unavailable
from swiftlet_serve.service.loading import LoadedModel, ServedModel, load_model, locate, open_model
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.scheduling.admission import AdmissionController
from swiftlet_serve.service.scheduling.dispatcher import Dispatcher
from swiftlet_serve.service.scheduling.rate_limit import RateLimiter
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry.event_loop_lag import EventLoopLag
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from swiftlet_serve.service.telemetry.snapshot import Snapshot
from swiftlet_serve.service.types import Executor
from swiftlet_serve.service.workers.hosted_model import HostedModel
from swiftlet_serve.service.workers.process_executor import ProcessExecutor
from swiftlet_serve.service.workers.thread_executor import ThreadExecutor

log = logging.getLogger(__name__)

ModelT = TypeVar("ModelT", bound=ServedModel)

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
        self.stats = RequestStats({model.manifest.name: model.manifest.task for model in served})
        self.dispatcher = Dispatcher(executor, stats=self.stats)
        self.admission = AdmissionController(self.dispatcher.load, settings.max_queued_tokens)
        rate = settings.client_rate_limit
        self.rate_limiter = None if rate is None else RateLimiter(rate)  # of the requests on all ports
        self.pipelines: dict[str, Pipeline] = {}  # by the name of the model, in the order given
        self.tasks: dict[str, Pipeline] = {}  # the default pipeline of each task, for requests that name no model
        self.count_connections: Callable[[], int] = lambda: 0  # of clients; a server sets it
        self._lag = EventLoopLag()
        self._executor = executor
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        for model in served:
            name = model.manifest.name
            if name in self.pipelines:
                raise SetupError(f"Two of the models to serve have the name {name!r}. Names must be unique.")
            self.dispatcher.add_model(name)
            self.pipelines[name] = Pipeline(
                model,
                self.admission,
                partial(self.dispatcher.submit, name),
                self.stats,
                self._threads,
                settings.max_queued_tokens,
            )
            self.tasks.setdefault(model.manifest.task, self.pipelines[name])

    @classmethod
    def of(cls, settings: Settings, served: Sequence[LoadedModel]) -> Runtime:
        """Returns a runtime over engines in this process."""
        hosted = {
            model.manifest.name: HostedModel(model.engine, model.manifest.width, model.timed_calls) for model in served
        }
        return cls(settings, served, ThreadExecutor(hosted, settings.cores))

    @classmethod
    def load(cls, settings: Settings) -> Runtime:
        """Loads the models of the settings into engines in this process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        tokenizers: dict[str, Tokenizer] = {}
        served = [load_model(path, settings.engine, tokenizers) for path in locate(settings.models)]
        return cls.of(settings, _in_order(settings, served))

    @classmethod
    def start(cls, settings: Settings) -> Runtime:
        """Loads the models of the settings into engines in a worker process. Blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        paths, tokenizers = locate(settings.models), dict[str, Tokenizer]()
        executor = ProcessExecutor(
            settings.engine,
            paths,
            settings.cores,
            spare=settings.spare_engine,
            log_level=settings.log_level,
            log_format=settings.log_format,
        )
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
        for name, pipeline in self.pipelines.items():
            manifest = pipeline.model.manifest
            log.info("model %s %s (%s) runs on %s", name, manifest.version, manifest.task, self.engine_title(name))

    def engine_title(self, name: str) -> str:
        """Returns the title of the engine that serves a model now: the runtime that it chose."""
        return self._executor.runtime(name)

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

    def pipeline(self, task: str, name: str | None) -> Pipeline:
        """Returns the pipeline for a task and the name of a model, or the task's default pipeline.

        Raises:
            NotFound: no model of this name serves the task.
        """
        pipeline = self.tasks[task] if name is None else self.pipelines.get(name)
        if pipeline is None or pipeline.model.manifest.task != task:
            raise NotFound(
                "unknown_model", "No model of this name serves this task. See /models for the served models."
            )
        return pipeline

    def find(self, name: str) -> Pipeline:
        """Returns the pipeline of a model, given its name, or its task to mean the task's default model.

        Raises:
            NotFound: there is no such model.
        """
        pipeline = self.pipelines.get(name) or self.tasks.get(name)
        if pipeline is None:
            raise NotFound("unknown_model", "No model has this name. See /models for the served models.")
        return pipeline

    async def snapshot(self) -> Snapshot:
        """Returns the current state of the server. Must be awaited on `loop`."""
        queue = self.dispatcher.queue_state()
        return Snapshot(
            [pipeline.model.info for pipeline in self.pipelines.values()],
            self.stats.copy(),
            queue,
            self._executor.size,
            self._executor.ready,
            self._executor.restarts,
            self._executor.wrong_sums,
            self._executor.workers,
            self.count_connections(),
            self._lag.largest_s,
        )

    async def close(self) -> None:
        """Admits no more requests, finishes those that were admitted, and releases the engines."""
        self._lag.stop()
        self.admission.close()
        await self.dispatcher.close(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._executor.close(CLOSE_S)


def _in_order(settings: Settings, served: list[ModelT]) -> list[ModelT]:
    """Returns the models in the order of the settings, or the bundled models with the best score first."""
    return served if settings.models else sorted(served, key=_score, reverse=True)


def _score(model: ServedModel) -> float:
    """Returns the first score on the model's card, in percent, or 0 without one."""
    scores = model.artifact.card().get("scores", {}).get(model.manifest.precision, {})
    return float(next((score["value"] for score in scores.values()), 0.0))
