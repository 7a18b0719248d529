"""From settings to answers: artifacts are opened, engines started and proved, and a pipeline made for each model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.errors import (
    NotFound,
    SetupError,
    draining,
    engine_unavailable,
)
from swiftlet_serve.service.loading import LoadedModel, ServedModel, load_model, locate, open_model
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.scheduling.batcher import Batcher, Dispatcher
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from swiftlet_serve.service.telemetry.snapshot import Snapshot
from swiftlet_serve.service.types import Executor, Priority
from swiftlet_serve.service.workers.hosted_model import HostedModel
from swiftlet_serve.service.workers.process_executor import ProcessExecutor
from swiftlet_serve.service.workers.thread_executor import ThreadExecutor

M = TypeVar("M", bound=ServedModel)

CLOSE_S: Final = 2.0  # requests have ended before the runtime closes: what runs then, nobody waits for


def _measured(model: ServedModel) -> float:
    """The score, in percent, that the model's card tells first; 0 where it tells none."""
    scores = model.artifact.card().get("scores", {}).get(model.manifest.precision, {})
    return float(next((score["value"] for score in scores.values()), 0.0))


class Runtime:
    """All pipelines of the process, over one executor."""

    def __init__(self, settings: Settings, served: Sequence[ServedModel], executor: Executor) -> None:
        """Raises SetupError where two models have one name."""
        self.settings = settings
        self.leaving = False  # whether the server is about to stop: it still answers, but wants no new clients
        self.stats = RequestStats({model.manifest.name: model.manifest.task for model in served})
        self._executor = executor
        self._pool = Dispatcher(executor, settings.max_waiting_tokens, scheduler=settings.scheduler, stats=self.stats)
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        self.pipelines: dict[str, Pipeline] = {}  # by the name of the model, in the order given
        for model in served:
            name = model.manifest.name
            if name in self.pipelines:
                raise SetupError(f"Two of the models to serve have the name {name!r}.")
            self.pipelines[name] = Pipeline(
                model, Batcher(name, self._pool).submit, self._threads, settings.max_waiting_tokens
            )

    @classmethod
    def of(cls, settings: Settings, served: Sequence[LoadedModel]) -> Runtime:
        """Over engines of this process."""
        hosted = {
            model.manifest.name: HostedModel(model.engine, model.manifest.width, model.timed_calls) for model in served
        }
        return cls(settings, served, ThreadExecutor(hosted, settings.cores))

    @classmethod
    def load(cls, settings: Settings) -> Runtime:
        """Loads all models of the settings into engines of this process; blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        tokenizers: dict[str, Tokenizer] = {}
        served = [load_model(path, settings.engine, tokenizers) for path in locate(settings.models)]
        return cls.of(settings, _in_order(settings, served))

    @classmethod
    def start(cls, settings: Settings) -> Runtime:
        """As `load`, but the engines are in a process of their own."""
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
        """Begins to watch over the engines, on the event loop that requests will come on."""
        self.loop = asyncio.get_running_loop()
        await self._executor.open()

    @property
    def draining(self) -> bool:
        """Whether no request is taken any more."""
        return self._pool.closing

    def check_open(self) -> None:
        """Raises Unavailable where no request is taken any more."""
        if self.draining:
            raise draining()

    def check_ready(self) -> None:
        """Raises Unavailable where no new clients are wanted, or a request could not be answered at once."""
        if self.leaving or self.draining:
            raise draining()
        if not self._executor.ready:
            raise engine_unavailable()

    @property
    def tasks(self) -> dict[str, Pipeline]:
        """The tasks served, each with the pipeline that answers where no model is named."""
        defaults: dict[str, Pipeline] = {}
        for pipeline in self.pipelines.values():
            defaults.setdefault(pipeline.model.manifest.task, pipeline)
        return defaults

    def pipeline(self, task: str, name: str | None) -> Pipeline:
        """Who answers a request.

        Raises:
            NotFound: no model of that name serves this task.
        """
        pipeline = self.tasks[task] if name is None else self.pipelines.get(name)
        if pipeline is None or pipeline.model.manifest.task != task:
            raise NotFound("unknown_model", "No model of that name serves this task; /models lists those there are.")
        return pipeline

    async def snapshot(self) -> Snapshot:
        """How things are at this moment; to be awaited on `loop`."""
        queue = self._pool.queue()
        return Snapshot(
            [pipeline.model.info for pipeline in self.pipelines.values()],
            self.stats.copy(),
            queue,
            self._executor.size,
            self._executor.ready,
            self._executor.restarts,
        )

    def expect(self, request: object, left_s: float, priority: Priority, *, whole: bool) -> None:
        """As `Dispatcher.expect`."""
        self._pool.expect(request, left_s, priority, whole=whole)

    def meet(self, request: object) -> None:
        """As `Dispatcher.meet`."""
        self._pool.meet(request)

    async def close(self) -> None:
        """Admits nothing more, finishes what was admitted, and frees the engines."""
        await self._pool.close(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._executor.close(CLOSE_S)


def _in_order(settings: Settings, served: list[M]) -> list[M]:
    """Where nobody chose an order: of the embedded models, the better answers first."""
    return served if settings.models else sorted(served, key=_measured, reverse=True)
