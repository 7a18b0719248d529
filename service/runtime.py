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
from models.tokenizer import Tokenizer
from models.vocabulary import TokenizerError
from service import engines, plugins, tasks, timings
from service.batching import Batcher, Pool
from service.crew import Hosted, InProcess
from service.errors import DeadlineExceeded, Fault, NotFound, SetupError, Unprocessable
from service.golden import replay
from service.settings import Settings
from service.types import Deadline, Engine, Priority, Row, Submit, Task

BUNDLED: Final = Path(models.__file__).parent / "bundled"
LIGHT: Final = 256  # numbers: to decode so few takes less time than to ask a thread for it (0.03 ms, 0.06 ms)
CLOSE_S: Final = 2.0  # requests have ended before the runtime closes: what runs then, nobody waits for

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """An artifact that was verified and loaded, and whose golden answers the engine reproduces."""

    artifact: Artifact
    task: Task[Any, Any]
    engine_name: str
    engine: Engine
    deviation: float | None  # largest |output - golden|; None where the engine runs no network
    seconds: float  # that all this took

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest


def load_model(path: Path, engine_name: str, tokenizers: dict[str, Tokenizer] | None = None) -> Model:
    """Verifies, loads and replays one artifact.

    `tokenizers`, by their SHA-256, are those of the models loaded before: one that is equal is shared, which saves
    15 MB and 0.1 s a model.

    Raises:
        ArtifactError: the directory is not an artifact that works.
        SetupError: there is no such engine or task, or something it needs is not installed.
    """
    started = time.monotonic()
    artifact = open_artifact(path)
    task = _make_task(artifact, {} if tokenizers is None else tokenizers)
    # One thread a call and one call a core: two calls side by side do more than two threads in one call.
    engine: Engine = plugins.load(engines, engine_name).create(artifact, threads=1)
    deviation = replay(artifact, engine) if engine.faithful else None
    return Model(artifact, task, engine_name, engine, deviation, time.monotonic() - started)


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
                with timings.measure("encode"):
                    encodings = await self._aside(task.encode, request)
                self._check_size(sum(len(encoding.input_ids) for encoding in encodings))
                rows = await _all(self._submit(encodings, deadline, priority))
                with timings.measure("decode"):
                    if sum(row.size for row in rows) <= LIGHT:
                        return task.decode(request, encodings, rows)
                    return await self._aside(task.decode, request, encodings, rows)
        except TimeoutError:
            raise DeadlineExceeded("deadline_exceeded", "The answer was not ready within the deadline.") from None

    async def _aside(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function` on a thread, so that nobody else waits for a long text."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    def _check_size(self, tokens: int) -> None:
        """A request that could never be admitted is refused for good, not asked to come again."""
        if tokens > self._max_tokens:
            limit = self._max_tokens
            fault = Fault("/inputs", "input_too_long", limit)
            detail = f"The inputs come to more than {limit} tokens, the most that one request may bring."
            raise Unprocessable("input_too_long", detail, faults=[fault])


async def _all(work: Sequence[Awaitable[Row]]) -> list[Row]:
    """All rows, in order; if one fails or the caller goes, nobody works on the rest."""
    submitted = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*submitted)
    finally:
        for one in submitted:
            one.cancel()


class Runtime:
    """All lanes of the process, over one pool of cores."""

    def __init__(self, settings: Settings, served: Sequence[Model]) -> None:
        """Raises SetupError where two models have one name."""
        self.settings = settings
        self.ready = True
        self.stuck = False  # whether closing left an engine call behind that does not end
        self._crew = InProcess(
            {model.manifest.name: Hosted(model.engine, model.manifest.width) for model in served}, settings.cores
        )
        self._pool = Pool(self._crew, settings.max_waiting_tokens)
        self._threads = ThreadPoolExecutor(settings.cores, "text")
        self.lanes: dict[str, Lane] = {}  # by the name of the model, in the order given
        for model in served:
            name = model.manifest.name
            if name in self.lanes:
                raise SetupError(f"Two of the models to serve have the name {name!r}.")
            self.lanes[name] = Lane(model, Batcher(name, self._pool).submit, self._threads, settings.max_waiting_tokens)

    @classmethod
    def load(cls, settings: Settings) -> Runtime:
        """Loads all models of the settings; blocks until they are ready.

        Raises:
            ArtifactError, SetupError: as `load_model` and `locate`.
        """
        tokenizers: dict[str, Tokenizer] = {}
        served = [load_model(path, settings.engine, tokenizers) for path in locate(settings.models)]
        if not settings.models:  # nobody chose an order: of the embedded models, the better answers first
            served.sort(key=_measured, reverse=True)
        return cls(settings, served)

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

    def check(self, left_s: float, priority: Priority) -> None:
        """Refuses a request before it is read, where none could be answered in time.

        Raises:
            Unavailable: too much waits for what is left of the deadline.
        """
        self._pool.check(left_s, priority)

    async def close(self) -> None:
        """Admits nothing more, finishes what was admitted, and frees the engines."""
        self.ready = False
        await self._pool.close(CLOSE_S)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.stuck = not await self._crew.close(CLOSE_S)
