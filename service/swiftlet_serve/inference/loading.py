"""Opens artifacts: verifies their files, loads them into engines and replays their golden answers."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import swiftlet_models
from swiftlet_models import sources
from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.artifact import TOKENIZER, Artifact, ArtifactError, Manifest, find_artifacts, open_artifact
from swiftlet_models.parameters import token_types
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.telemetry.snapshot import ModelInfo
from swiftlet_serve.types import Engine, Task, TimedCall
from swiftlet_serve.workers.hosted_model import host_model

BUNDLED: Final = Path(swiftlet_models.__file__).resolve().parent / "bundled"


@dataclass(frozen=True)
class OpenModel:
    """A verified artifact, with one of the tasks that it answers."""

    artifact: Artifact
    tokenizer: Tokenizer
    task: Task[Any, Any]
    task_name: str
    engine_name: str

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def task_names(self) -> Sequence[str]:
        """The tasks that the model answers. The task of its manifest comes first."""
        return tasks.answered_by(self.manifest.task)

    def for_task(self, name: str) -> Self:
        """Returns the model with another of its tasks.

        Raises:
            SetupError: the model does not answer this task, or cannot.
        """
        if name == self.task_name:
            return self
        if name not in self.task_names:
            known = " or ".join(self.task_names)
            raise SetupError(f"The model {self.manifest.name} is for the task {known}, not {name}.")
        try:
            task = tasks.load(name).create(self.tokenizer, self.manifest)
        except ValueError as error:
            raise SetupError(f"The model {self.manifest.name} cannot serve the task {name}: {error}") from None
        return replace(self, task=task, task_name=name)

    @property
    def info(self) -> ModelInfo:
        manifest = self.manifest
        return ModelInfo(
            manifest.name, manifest.task, manifest.architecture, manifest.precision, self.engine_name, manifest.version
        )


@dataclass(frozen=True)
class LoadedModel(OpenModel):
    """A model in an engine of this process that has reproduced its golden answers."""

    engine: Engine
    deviation: float | None  # largest |output - golden answer|; None for an engine that runs no network
    timed_calls: Sequence[TimedCall]  # calls with the golden inputs
    seconds: float  # duration of loading


def load_model(
    path: Path,
    engine_name: str,
    tokenizers: MutableMapping[str, Tokenizer] | None = None,
    *,
    task: str | None = None,
) -> LoadedModel:
    """Verifies an artifact, loads it into an engine and replays its golden answers.

    Args:
        path: the artifact directory.
        engine_name: the name of the engine.
        tokenizers: as in `open_model`.
        task: one of the tasks that the model answers. None: the task of its manifest.

    Raises:
        ArtifactError: the directory is not a valid artifact, or its answers differ from the golden ones.
        SetupError: the engine or task does not exist, or needs a package that is not installed.
    """
    started = time.monotonic()
    model = open_model(path, engine_name, tokenizers)
    model = model.for_task(task or model.task_name)
    hosted, deviation = host_model(model.artifact, engine_name)
    seconds = time.monotonic() - started
    return LoadedModel(
        **vars(model), engine=hosted.engine, deviation=deviation, timed_calls=hosted.timed_calls, seconds=seconds
    )


def open_model(path: Path, engine_name: str, tokenizers: MutableMapping[str, Tokenizer] | None = None) -> OpenModel:
    """Verifies an artifact and creates its task.

    Args:
        path: the artifact directory.
        engine_name: the name of the engine that will run it.
        tokenizers: tokenizers of other models by their SHA-256 and reading. Models share an equal tokenizer, which
            saves 15 MB and 0.1 s for each.

    Raises:
        ArtifactError: the directory is not a valid artifact.
        SetupError: the task does not exist.
    """
    artifact = open_artifact(path)
    manifest, name = artifact.manifest, artifact.path.name
    digest = f"{manifest.files[TOKENIZER].sha256} {manifest.reading}"
    known: MutableMapping[str, Tokenizer] = {} if tokenizers is None else tokenizers
    try:
        if (tokenizer := known.get(digest)) is None:
            known[digest] = tokenizer = Tokenizer.load(artifact.file(TOKENIZER), manifest.reading)
        task: Task[Any, Any] = tasks.load(manifest.task).create(tokenizer, manifest)
    except (TokenizerError, ValueError) as error:
        raise ArtifactError(f"{name}: {error}") from error
    if tokenizer.vocab_size > manifest.vocab_size:
        raise ArtifactError(f"{name}: the tokenizer has more tokens than the network, so it belongs to another model.")
    if max(tokenizer.special_count(pair=pair) for pair in (False, True)) >= manifest.max_tokens:
        raise ArtifactError(f"{name}: the tokenizer's special tokens leave no room for a text.")
    types = token_types(manifest)
    if types and tokenizer.token_types > types:
        raise ArtifactError(f"{name}: the tokenizer has more token types than the network.")
    return OpenModel(artifact, tokenizer, task, manifest.task, engine_name)


def locate(names: Sequence[str]) -> list[Path]:
    """Returns the directories of models, each given by its path or the name of a bundled model.

    Without names, returns the directories of all bundled models.

    Raises:
        SetupError: there are no models to serve, or no such model.
    """
    bundled = {path.name: path for path in find_artifacts(BUNDLED)}
    paths = [bundled.get(name, Path(name)) for name in names] or list(bundled.values())
    if not paths:
        raise SetupError(
            "There are no models to serve. Name one with --models: this installation has no bundled models."
        )
    for name, path in zip(names, paths, strict=False):
        source = sources.identify(str(bundled.get(name, name)))
        if source.next_step:
            raise SetupError(f"{name} is {source.what}. {source.next_step}")
        if not path.is_dir():
            known = ", ".join(bundled) or "none"
            raise SetupError(f"There is no model {name!r}. Give a directory, or one of the bundled models: {known}.")
    return paths
