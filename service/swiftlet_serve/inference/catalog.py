"""The served models: which version of a model answers a request.

A model has one version, or several from a model repository. Names with a version are `name@3`, and those with an alias
`name@canary`. A request that names a model alone gets its default version, or one of a split: a share of the requests
for each of several versions. The server's settings give models further names, for clients of other services.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple, TypeVar

from swiftlet_serve import tasks
from swiftlet_serve.errors import NotFound, SetupError, Unavailable
from swiftlet_serve.inference.loading import OpenModel
from swiftlet_serve.inference.pipeline import Pipeline, wrong_task

ModelT = TypeVar("ModelT", bound=OpenModel)
DEFAULT: Final = "default"
NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
USUAL_NAMES: Final[Mapping[str, str]] = {"jev-latest": "zero-shot"}
"""The model that clients of System One name unless they are told another, and the task whose model answers them."""
RANDOM: Final = random.Random()  # noqa: S311  # spreads requests, and is not a secret


class VersionChoice(NamedTuple):
    """The version that the head of a request asks for."""

    version: int | None = None  # that must answer; None if the request leaves it to the server
    key: str = ""  # requests with an equal key get the same version of a split; empty: a random one


ANY: Final = VersionChoice()
"""The server decides."""


class ModelLoading(Unavailable):
    """Raised for a version that is served but not in memory."""

    def __init__(self, name: str, version: int, retry_after: float = 1.0) -> None:
        """`name` and `version` are those to load. `retry_after` is the predicted time of loading, in seconds."""
        detail = "The model is being loaded. Retry after the time in Retry-After, or with a longer timeout."
        super().__init__("model_loading", detail, retry_after=retry_after)
        self.name, self.version = name, version


@dataclass(frozen=True)
class ServedVersions:
    """The versions of one model."""

    task: str
    pipelines: Mapping[int, Pipeline | None]  # by version; None if the version is not in memory
    aliases: Mapping[str, int] = field(default_factory=dict)  # versions by alias; `DEFAULT` at least
    split: Sequence[tuple[int, float]] = ()  # versions with their shares, for requests that name no version

    def choose(self, name: str, suffix: str, choice: VersionChoice) -> int:
        """Returns the version that answers a request.

        Args:
            name: the name of the model.
            suffix: the version or alias after the @ in the request's model; empty without one.
            choice: the version that the request's head asks for. The suffix takes precedence.

        Raises:
            NotFound: the version or alias does not exist.
        """
        if suffix:
            version = int(suffix) if NUMBER.fullmatch(suffix) else self.aliases.get(suffix)
        elif choice.version is not None:
            version = choice.version
        elif self.split:
            version = version_for_key(self.split, name, choice.key)
        else:
            version = self.aliases[DEFAULT]
        if version is None or version not in self.pipelines:
            raise NotFound("unknown_model", "The model has no such version. See /models for the served versions.")
        return version


def version_for_key(split: Sequence[tuple[int, float]], name: str, key: str) -> int:
    """Returns the version of a split that a key belongs to; a random one without a key.

    The choice depends only on the key, the name of the model and the split: all servers choose alike.
    """
    total = sum(share for _, share in split)
    digest = blake2b(f"{name}\0{key}".encode(), digest_size=8).digest()
    point = (int.from_bytes(digest, "big") / 2**64 if key else RANDOM.random()) * total
    for version, share in split:
        point -= share
        if point < 0:
            return version
    return split[-1][0]


def unknown_name() -> NotFound:
    """Returns the error for the name of a model that is not served."""
    return NotFound("unknown_model", "No model has this name. See /models for the served models.")


def best_first(models: Iterable[ModelT]) -> list[ModelT]:
    """Returns the bundled models in the order in which they answer requests that name no model."""
    return sorted(models, key=_score, reverse=True)


def _score(model: OpenModel) -> float:
    """Returns the first score on the model's card, in percent, or 0 if the card has none."""
    scores = model.card.get("scores", {}).get(model.manifest.precision, {})
    return float(next((score["value"] for score in scores.values()), 0.0))


class Catalog:
    """All served models. A change takes effect at once: each request looks its pipeline up once."""

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        """`names` are further names, each with that of a model or a task, which may have a version. None: none."""
        self._other_names = {**USUAL_NAMES, **(names or {})}
        self.pipelines: dict[str, Pipeline] = {}  # the default version of each model that is in memory, by name
        self.tasks: dict[str, Pipeline] = {}  # the first of them for each task
        # The models, and the name of the first one of each task. Other threads read them: both change at once.
        self._served: tuple[Mapping[str, ServedVersions], Mapping[str, str]] = {}, {}

    @property
    def models(self) -> Mapping[str, ServedVersions]:
        """The models by name."""
        return self._served[0]

    @property
    def names(self) -> Mapping[str, Pipeline]:
        """The default version of each model that is in memory, by the name of the model and by its further names."""
        found = dict(self.pipelines)
        for name in self._other_names:
            with suppress(NotFound, ModelLoading):
                found.setdefault(name, self.find(name))
        return found

    def check_names(self, names: Iterable[str]) -> None:
        """Checks that further names mean served models.

        Raises:
            SetupError: a name is that of a model or a task, or means none that is served.
        """
        for name in names:
            meant = self._other_names[name]
            if name in self.models or name in tasks.names():
                raise SetupError(f"The further name {name!r} in model_names is already that of a model or a task.")
            try:
                self.find(name)
            except NotFound:
                known = ", ".join([*self.models, *self._served[1]])
                raise SetupError(f"model_names: {name}={meant} means no served model. Use one of {known}.") from None

    def update(self, models: Mapping[str, ServedVersions]) -> None:
        """Replaces the served models. The first model of a task answers requests that name no model.

        If no model was made for a task, the first model that can answer it does so.
        """
        answered = [(served.task, name) for name, served in models.items()]
        own = {task for task, _ in answered}
        answered += [
            (answered_task, name)
            for task, name in answered
            for answered_task in tasks.answered_by(task)
            if answered_task not in own
        ]
        first_names: dict[str, str] = {}
        # Other objects hold these two dictionaries, which therefore stay the same objects.
        self.pipelines.clear()
        self.tasks.clear()
        for task, name in answered:
            served = models[name]
            pipeline = served.pipelines[served.aliases[DEFAULT]]
            if pipeline is not None and task not in pipeline.model.task_names:
                continue
            first_names.setdefault(task, name)
            if pipeline is not None:
                self.pipelines.setdefault(name, pipeline)
                self.tasks.setdefault(task, pipeline.for_task(task))
        self._served = dict(models), first_names

    def pipeline(self, task: str, name: str | None, choice: VersionChoice = ANY) -> Pipeline:
        """Returns the pipeline for a task and the name of a model. The name of the task means its first model, as None.

        Raises:
            NotFound: no model of this name serves the task, or it has no such version.
            ModelLoading: the version is not in memory.
        """
        name = None if name is None else self._meant(name)
        served = None if name is None else self._find(name)
        if served is None and name in (None, task):
            served = self._first(task)
        if served is None and name is not None:
            raise unknown_name()
        if served is None or task not in tasks.answered_by(served[2].task):
            raise wrong_task()
        return self._choose(*served, choice).for_task(task)

    def find(self, name: str | None, choice: VersionChoice = ANY) -> Pipeline:
        """Returns the pipeline of a model, given its name, or its task to mean the task's first model.

        None means the first served model, for requests that name neither a model nor a task.

        Raises:
            NotFound: the model or its version does not exist.
            ModelLoading: the version is not in memory.
        """
        name = next(iter(self.models), "") if name is None else self._meant(name)
        if (served := self._find(name)) is not None:
            return self._choose(*served, choice)
        if (served := self._first(name)) is not None:
            return self._choose(*served, choice).for_task(name)
        raise unknown_name()

    def _meant(self, name: str) -> str:
        """Returns the name of the model or task that a further name means, and any other name as it is."""
        base, at, suffix = name.partition("@")
        meant = None if base in self.models else self._other_names.get(base)
        return name if meant is None else meant + at + suffix

    def _find(self, name: str) -> tuple[str, str, ServedVersions] | None:
        base, _, suffix = name.partition("@")
        served = self.models.get(base)
        return None if served is None or (suffix == "" and base != name) else (base, suffix, served)

    def _first(self, task: str) -> tuple[str, str, ServedVersions] | None:
        models, first_names = self._served
        name = first_names.get(task)
        return None if name is None else (name, "", models[name])

    @staticmethod
    def _choose(name: str, suffix: str, served: ServedVersions, choice: VersionChoice) -> Pipeline:
        version = served.choose(name, suffix, choice)
        pipeline = served.pipelines[version]
        if pipeline is None:
            raise ModelLoading(name, version)
        return pipeline
