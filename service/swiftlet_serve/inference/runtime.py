"""The service as the ports see it: its models as pipelines, its admission and its state."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar

from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError, draining, engine_unavailable
from swiftlet_serve.inference import text_threads
from swiftlet_serve.inference.catalog import DEFAULT, Catalog, ModelLoading, ServedVersions
from swiftlet_serve.inference.ensemble import combine
from swiftlet_serve.inference.loading import OpenModel
from swiftlet_serve.inference.pipeline import Pipeline, Scheduler
from swiftlet_serve.scheduling.admission import AdmissionController
from swiftlet_serve.scheduling.rate_limit import ClientRateLimiter
from swiftlet_serve.settings import Settings
from swiftlet_serve.telemetry.event_loop_lag import EventLoopLag
from swiftlet_serve.telemetry.request_stats import RequestStats
from swiftlet_serve.telemetry.snapshot import RepositoryState, Snapshot
from swiftlet_serve.types import Deadline

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Place(NamedTuple):
    """Where the dispatcher finds a version of a model."""

    key: str
    version: int | None = None  # None: it is from no repository
    head: int = 0  # among those of the models that share a trunk


class Runtime(ABC):
    """All pipelines of the process. A subclass says where their requests are admitted and run."""

    def __init__(
        self,
        settings: Settings,
        served: Sequence[OpenModel],
        stats: RequestStats,
        admission: AdmissionController,
        rate_limiter: ClientRateLimiter | None,
    ) -> None:
        """Creates a pipeline for each model, with the schedulers of the subclass, which needs its own attributes first.

        Args:
            settings: the settings of the server.
            served: the open models of the settings.
            stats: counts the requests.
            admission: admits the requests.
            rate_limiter: limits the requests of each client on all ports; None without a limit.

        Raises:
            SetupError: two models have the same name, one of the settings' `ensembles` is invalid, or one of their
                `model_names` means no model.
        """
        self.settings = settings
        self.stats = stats
        self.admission = admission
        self.rate_limiter = rate_limiter
        self.catalog = Catalog(settings.model_names)
        self.leaving = False  # whether the server is about to stop: it still answers, but is not ready
        self.on_close: list[Callable[[], None]] = []  # what ends with the runtime
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lag = EventLoopLag()
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        fixed: dict[str, Pipeline] = {}
        for model in served:
            name = model.manifest.name
            _check_unique(name, fixed)
            fixed[name] = self._make_pipeline(model, self._place_of(name))
        ensembles: dict[str, Pipeline] = {}
        for name, words in settings.ensembles.items():
            _check_unique(name, fixed)
            combined, scheduler = combine(name, words, fixed)
            stats.add_model(name, combined.task_name)
            key = fixed[combined.member_names[0]].key  # of the engine whose title stands for all
            ensembles[name] = Pipeline(combined, scheduler, self._threads, settings, key)
        # Ensembles come first, and so answer requests that name no model.
        versions = {
            name: ServedVersions(pipeline.model.manifest.task, {1: pipeline}, {DEFAULT: 1})
            for name, pipeline in (ensembles | fixed).items()
        }
        self.catalog.update(versions)
        if settings.repository is None:  # whose models change
            self.catalog.check_names(settings.model_names)

    def _make_pipeline(self, model: OpenModel, place: Place) -> Pipeline:
        name = model.manifest.name
        self.stats.add_model(name, model.manifest.task, place.version)
        scheduler = self._make_scheduler(name, place.key)
        return Pipeline(model, scheduler, self._threads, self.settings, *place, keeps_rows=True)

    @abstractmethod
    def _make_scheduler(self, name: str, key: str) -> Scheduler:
        """Returns the scheduler of a model or of a version, which has a separate key."""

    @abstractmethod
    def _place_of(self, name: str) -> Place:
        """Returns where the dispatcher finds a model of the settings."""

    @property
    @abstractmethod
    def has_engine(self) -> bool:
        """Whether an engine is ready."""

    @abstractmethod
    def engine_title(self, pipeline: Pipeline) -> str:
        """Returns the title of the engine that serves a model now: the runtime that it chose."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Returns the current state of the server. Must be awaited on `loop`."""

    async def run_in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on a thread. Long texts must not block the event loop."""
        return await text_threads.run_in_thread(self._threads, function, *args, **kwargs)

    @property
    def is_open(self) -> bool:
        """Whether the runtime was opened."""
        return self._loop is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that answers requests. The runtime must be open."""
        assert self._loop is not None  # noqa: S101  # a programming error
        return self._loop

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

    async def wait_for_model(self, missing: ModelLoading, deadline: Deadline) -> None:  # noqa: ARG002
        """Waits for a version that is not in memory.

        Raises:
            ModelLoading, Unavailable: it is not there by the deadline.
        """
        raise missing

    def repository_state(self) -> RepositoryState | None:
        """Returns the state of the model repository; None without one."""
        return None

    def leave(self) -> None:
        """Notes that the server is about to stop."""
        self.leaving = True

    @property
    def draining(self) -> bool:
        """Whether every request is refused."""
        return self.admission.closed

    def check_ready(self) -> None:
        """Raises Unavailable if new clients should use another server."""
        if self.leaving or self.draining:
            raise draining()
        if not self.has_engine:
            raise engine_unavailable()

    async def open(self) -> None:
        """Starts on the running event loop, which answers requests."""
        self._loop = asyncio.get_running_loop()
        self._lag.start(self._loop)

    async def close(self) -> None:
        """Admits no more requests."""
        for close in self.on_close:
            close()
        self._lag.stop()
        self.admission.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def log_served(self, pipeline: Pipeline) -> None:
        """Logs that a model is served, and on what."""
        manifest, runtime = pipeline.model.manifest, self.engine_title(pipeline)
        log.info("model %s %s (%s) runs on %s", manifest.name, pipeline.version_name, manifest.task, runtime)


def _check_unique(name: str, known: Mapping[str, Pipeline]) -> None:
    """Raises SetupError if a model of this name is served already."""
    if name in known:
        raise SetupError(
            f"Two of the models to serve have the name {name!r}. Serve a checkpoint as SOURCE:name=other, or "
            "import it with another --name."
        )
