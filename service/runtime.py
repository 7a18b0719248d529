"""From settings to answers: artifacts are opened, engines started and proved, and a lane made for each model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from pydantic import BaseModel

import models
from models.artifact import TOKENIZER, Artifact, ArtifactError, Manifest, find_artifacts, open_artifact
from models.tokenizer import Encoding, Tokenizer
from models.vocabulary import TokenizerError
from service import partial, plugins, records, tasks
from service.batching import Batcher, Pool, Queue
from service.books import Books
from service.crew import Hosted, InProcess, host
from service.errors import Fault, Internal, NotFound, SetupError, Unprocessable, draining, no_engine, too_late
from service.ranking import Ranked
from service.settings import Settings
from service.types import Crew, Deadline, Engine, Priority, Row, Submit, Task, Timed
from service.workers import Workers

BUNDLED: Final = Path(models.__file__).parent / "bundled"
SHORT: Final = 300  # characters: to encode so few takes as long as to ask a thread for it (0.15 ms)
LIGHT: Final = 256  # numbers or tokens: to decode so few takes no longer than to ask a thread for it (0.1 ms)
MAX_ROWS: Final = 256  # of one request: what comes back of them is held until the last is there
CLOSE_S: Final = 2.0  # requests have ended before the runtime closes: what runs then, nobody waits for

P = ParamSpec("P")
T = TypeVar("T")
M = TypeVar("M", bound="Model")


@dataclass(frozen=True)
class Model:
    """An artifact that was verified, with what its answers mean."""

    artifact: Artifact
    task: Task[Any, Any]
    engine_name: str

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest


@dataclass(frozen=True)
class LoadedModel(Model):
    """A model in an engine of this process, which reproduces its golden answers."""

    engine: Engine
    deviation: float | None  # largest |output - golden|; None where the engine runs no network
    timed: Sequence[Timed]  # what the golden calls took
    seconds: float  # that all this took


def load_model(path: Path, engine_name: str, tokenizers: dict[str, Tokenizer] | None = None) -> LoadedModel:
    """Verifies, loads and replays one artifact; `tokenizers` as in `open_model`.

    Raises:
        ArtifactError: the directory is not an artifact that works.
        SetupError: there is no such engine or task, or something it needs is not installed.
    """
    started = time.monotonic()
    model = open_model(path, engine_name, tokenizers)
    hosted, deviation = host(model.artifact, engine_name)
    seconds = time.monotonic() - started
    return LoadedModel(**vars(model), engine=hosted.engine, deviation=deviation, timed=hosted.timed, seconds=seconds)


def open_model(path: Path, engine_name: str, tokenizers: dict[str, Tokenizer] | None = None) -> Model:
    """Verifies an artifact and makes its task.

    `tokenizers`, by their SHA-256, are those of the models opened before: one that is equal is shared, which saves
    15 MB and 0.1 s a model.

    Raises:
        ArtifactError: the directory is not an artifact, or not a consistent one.
        SetupError: there is no such task.
    """
    artifact = open_artifact(path)
    return Model(artifact, _make_task(artifact, {} if tokenizers is None else tokenizers), engine_name)


def _make_task(artifact: Artifact, tokenizers: dict[str, Tokenizer]) -> Task[Any, Any]:
    manifest, name = artifact.manifest, artifact.path.name
    digest = manifest.files[TOKENIZER].sha256
    try:
        if digest not in tokenizers:
            tokenizers[digest] = Tokenizer.load(artifact.file(TOKENIZER))
        tokenizer = tokenizers[digest]
        task: Task[Any, Any] = plugins.load(tasks, manifest.task.replace("-", "_")).create(tokenizer, manifest)
    except (TokenizerError, ValueError) as error:
        raise ArtifactError(f"{name}: {error}") from error
    if tokenizer.vocab_size > manifest.vocab_size:
        raise ArtifactError(f"{name}: the tokenizer knows more tokens than the network, so it belongs to another.")
    return task


def locate(names: Sequence[str]) -> list[Path]:
    """The directories of the models named, each an embedded one or a path; without names, all embedded ones.

    Raises:
        SetupError: there is nothing to serve, or no such model.
    """
    embedded = {path.name: path for path in find_artifacts(BUNDLED)}
    paths = [embedded.get(name, Path(name)) for name in names] or list(embedded.values())
    if not paths:
        raise SetupError("There is no model to serve: none is embedded and none was named.")
    for name, path in zip(names, paths, strict=False):
        if not path.is_dir():
            known = ", ".join(embedded) or "none"
            raise SetupError(f"There is no model {name!r}: it is no directory, and the embedded ones are: {known}.")
    return paths


def _measured(model: Model) -> float:
    """The score, in percent, that the model's card tells first; 0 where it tells none."""
    scores = model.artifact.card().get("scores", {}).get(model.manifest.precision, {})
    return float(next((score["value"] for score in scores.values()), 0.0))


class Lane:
    """One served model: a request in, its answer out."""

    def __init__(self, model: Model, submit: Submit, threads: ThreadPoolExecutor, max_tokens: int) -> None:
        """`threads` read and write text; `max_tokens` is the most work one request may bring."""
        self.model = model
        self._submit = submit
        self._threads = threads
        self._max_tokens = max_tokens

    async def answer(self, request: BaseModel, deadline: Deadline, priority: Priority = "interactive") -> Any:
        """The response to a request of this lane's task, as JSON-serialisable values.

        Raises:
            SwiftletError: as the task, the batcher or the engine says; DeadlineExceeded in any case by the deadline.
        """
        task = self.model.task
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                with records.measure("encode"):
                    short = tasks.characters(request) <= SHORT
                    parts = await self._run(short, partial.encode, task, request)
                encodings = [encoding for part in parts for encoding in part.encodings]
                self._check_size(encodings)
                work = self._submit(encodings, deadline, priority) if encodings else []
                records.accept(len(encodings), sum(len(encoding.input_ids) for encoding in encodings))
                outcomes = await _all(work if len(parts) == 1 else [_spared(one) for one in work])
                with records.measure("decode"):
                    light = sum(map(_weight, encodings, outcomes)) <= LIGHT
                    return await self._run(light, partial.decode, task, parts, outcomes)
        except TimeoutError:
            raise too_late() from None

    async def _run(self, light: bool, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function`; on a thread unless it is light, so that nobody else waits for a long text."""
        if light:
            return function(*args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def _check_size(self, encodings: Sequence[Encoding]) -> None:
        """A request that could never be admitted is refused for good, not asked to come again."""
        for count, limit, unit in (
            (len(encodings), MAX_ROWS, "rows"),
            (sum(len(encoding.input_ids) for encoding in encodings), self._max_tokens, "tokens"),
        ):
            if count > limit:
                fault = Fault("/inputs", "input_too_long", limit)
                detail = f"The inputs come to more than {limit} {unit}, the most that one request may bring."
                raise Unprocessable("input_too_long", detail, faults=[fault])


def _weight(encoding: Encoding, outcome: Row | Internal) -> int:
    """How many numbers there are to read. One that is ranked is written with its text, and counts for its tokens."""
    if isinstance(outcome, Internal):
        return 0
    return outcome.size * len(encoding.input_ids) if isinstance(encoding, Ranked) else outcome.size


async def _spared(work: Awaitable[Row]) -> Row | Internal:
    """A row that cannot be had is no reason to give up the others."""
    try:
        return await work
    except Internal as error:
        return error


async def _all(work: Sequence[Awaitable[Row | Internal]]) -> list[Row | Internal]:
    """All outcomes, in order; if one fails or the caller goes, nobody works on the rest."""
    submitted = [asyncio.ensure_future(one) for one in work]
    try:
        if len(submitted) == 1:
            return [await submitted[0]]
        return await asyncio.gather(*submitted)
    finally:
        for one in submitted:
            one.cancel()


@dataclass(frozen=True)
class Look:
    """How things are at one moment."""

    books: Books
    queue: Queue
    cores: int
    ready: bool  # whether there is an engine that works
    restarts: int  # of engines


class Runtime:
    """All lanes of the process, over one crew."""

    def __init__(self, settings: Settings, served: Sequence[Model], crew: Crew) -> None:
        """Raises SetupError where two models have one name."""
        self.settings = settings
        self.leaving = False  # whether the server is about to stop: it still answers, but wants no new clients
        self.books = Books({model.manifest.name: model.manifest.task for model in served})
        self._crew = crew
        self._pool = Pool(crew, settings.max_waiting_tokens, scheduler=settings.scheduler, books=self.books)
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        self.lanes: dict[str, Lane] = {}  # by the name of the model, in the order given
        for model in served:
            name = model.manifest.name
            if name in self.lanes:
                raise SetupError(f"Two of the models to serve have the name {name!r}.")
            self.lanes[name] = Lane(model, Batcher(name, self._pool).submit, self._threads, settings.max_waiting_tokens)

    @classmethod
    def of(cls, settings: Settings, served: Sequence[LoadedModel]) -> Runtime:
        """Over engines of this process."""
        hosted = {model.manifest.name: Hosted(model.engine, model.manifest.width, model.timed) for model in served}
        return cls(settings, served, InProcess(hosted, settings.cores))

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
        crew = Workers(
            settings.engine,
            paths,
            settings.cores,
            spare=settings.spare_engine,
            log_level=settings.log_level,
            log_format=settings.log_format,
        )
        try:
            served = [open_model(path, settings.engine, tokenizers) for path in paths]
            runtime = cls(settings, _in_order(settings, served), crew)
            crew.load()
        except BaseException:
            crew.abandon()
            raise
        return runtime

    async def open(self) -> None:
        """Begins to watch over the engines, on the event loop that requests will come on."""
        self.loop = asyncio.get_running_loop()
        await self._crew.open()

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
        if not self._crew.ready:
            raise no_engine()

    @property
    def tasks(self) -> dict[str, Lane]:
        """The tasks served, each with the lane that answers where no model is named."""
        defaults: dict[str, Lane] = {}
        for lane in self.lanes.values():
            defaults.setdefault(lane.model.manifest.task, lane)
        return defaults

    def lane(self, task: str, name: str | None) -> Lane:
        """Who answers a request.

        Raises:
            NotFound: no model of that name serves this task.
        """
        lane = self.tasks[task] if name is None else self.lanes.get(name)
        if lane is None or lane.model.manifest.task != task:
            raise NotFound("unknown_model", "No model of that name serves this task; /models lists those there are.")
        return lane

    async def look(self) -> Look:
        """How things are at this moment; to be awaited on `loop`."""
        queue = self._pool.queue()
        return Look(self.books.copy(), queue, self._crew.size, self._crew.ready, self._crew.restarts)

    def expect(self, request: object, left_s: float, priority: Priority, *, whole: bool) -> None:
        """As `Pool.expect`."""
        self._pool.expect(request, left_s, priority, whole=whole)

    def meet(self, request: object) -> None:
        """As `Pool.meet`."""
        self._pool.meet(request)

    async def close(self) -> None:
        """Admits nothing more, finishes what was admitted, and frees the engines."""
        await self._pool.close(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._crew.close(CLOSE_S)


def _in_order(settings: Settings, served: list[M]) -> list[M]:
    """Where nobody chose an order: of the embedded models, the better answers first."""
    return served if settings.models else sorted(served, key=_measured, reverse=True)
