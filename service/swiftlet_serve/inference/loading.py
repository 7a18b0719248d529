"""Opens artifacts: verifies their files, loads them into engines and replays their golden answers."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import swiftlet_models
from swiftlet_models import sources
from swiftlet_models.artifact import TOKENIZER, Artifact, ArtifactError, Manifest, find_artifacts
from swiftlet_models.errors import ModelError
from swiftlet_models.parameters import token_types
from swiftlet_models.tensors import HeadWeights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_models.weights import read_head
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference import model_source
from swiftlet_serve.inference.model_cache import ModelCache
from swiftlet_serve.telemetry.snapshot import ModelInfo
from swiftlet_serve.types import Engine, Task, TimedCall
from swiftlet_serve.workers.hosted_model import host_model
from swiftlet_serve.workers.signature import open_signed

BUNDLED: Final = Path(swiftlet_models.__file__).resolve().parent / "bundled"


@dataclass(frozen=True)
class OpenModel:
    """A verified artifact, with one of the tasks that it answers."""

    artifact: Artifact
    tokenizer: Tokenizer
    task: Task[Any, Any]
    task_name: str
    head: HeadWeights | None  # the parameters behind the network; read when the model is opened, as the card
    label_tokenizer: Tokenizer | None  # of an encoder of labels
    engine_name: str
    card: dict[str, Any]  # for clients; read when the model is opened, since its directory may go
    certificate: dict[str, Any] | None

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def task_names(self) -> Sequence[str]:
        """The tasks that the model answers. The task of its manifest comes first."""
        about, names = self.manifest.embedding, tasks.answered_by(self.manifest.task)
        has_vector = about is None or about.vector
        return [name for name in names if has_vector or not getattr(tasks.load(name), "READS_VECTOR", False)]

    @property
    def member_names(self) -> Sequence[str]:
        """The models that answer as this one, if it is an ensemble."""
        return ()

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
            task = tasks.create(name, self.tokenizer, self.manifest, self.head, self.label_tokenizer)
        except (ModelError, ValueError) as error:
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
    signer_key: Path | None = None,
) -> LoadedModel:
    """Verifies an artifact, loads it into an engine and replays its golden answers.

    Args:
        path: the artifact directory.
        engine_name: the name of the engine.
        tokenizers: as in `open_model`.
        task: one of the tasks that the model answers. None: the task of its manifest.
        signer_key: as in `open_signed`.

    Raises:
        ArtifactError: the directory is not a valid artifact, or its answers differ from the golden ones.
        SetupError: the engine or task does not exist, or needs a package that is not installed.
    """
    started = time.monotonic()
    model = open_model(path, engine_name, tokenizers, signer_key)
    model = model.for_task(task or model.task_name)
    hosted, deviation = host_model([model.artifact], engine_name)
    seconds = time.monotonic() - started
    return LoadedModel(
        **vars(model), engine=hosted.engine, deviation=deviation, timed_calls=hosted.timed_calls, seconds=seconds
    )


def open_model(
    path: Path,
    engine_name: str,
    tokenizers: MutableMapping[str, Tokenizer] | None = None,
    signer_key: Path | None = None,
) -> OpenModel:
    """Verifies an artifact and creates its task.

    Args:
        path: the artifact directory.
        engine_name: the name of the engine that will run it.
        tokenizers: tokenizers of other models by their SHA-256 and reading. Models share an equal tokenizer, which
            saves 15 MB and 0.1 s for each.
        signer_key: as in `open_signed`.

    Raises:
        ArtifactError: the directory is not a valid artifact, or not signed with the key.
        SetupError: the task does not exist, or the key cannot be read.
    """
    artifact = open_signed(path, signer_key)
    manifest, name = artifact.manifest, artifact.path.name
    known: MutableMapping[str, Tokenizer] = {} if tokenizers is None else tokenizers
    parts = [artifact, *([second] if (second := artifact.of_labels) else [])]
    try:
        own = [_tokenizer(part, known) for part in parts]
        tokenizer, label_tokenizer = own[0], own[1] if second else None
        head = read_head(artifact)
        task = tasks.create(manifest.task, tokenizer, manifest, head, label_tokenizer)
    except (ModelError, ValueError) as error:
        raise ArtifactError(f"{name}: {error}") from error
    for part, each in zip(parts, own, strict=True):
        if each.vocab_size > part.manifest.vocab_size:
            raise ArtifactError(
                f"{name}: the tokenizer has more tokens than the network, so it belongs to another model."
            )
        if max(each.special_count(pair=pair) for pair in (False, True)) >= part.manifest.max_tokens:
            raise ArtifactError(f"{name}: the tokenizer's special tokens leave no room for a text.")
        types = token_types(part.manifest)
        if types and each.token_types > types:
            raise ArtifactError(f"{name}: the tokenizer has more token types than the network.")
    card, certificate = artifact.public_card(), artifact.certificate()
    return OpenModel(artifact, tokenizer, task, manifest.task, head, label_tokenizer, engine_name, card, certificate)


def _tokenizer(artifact: Artifact, known: MutableMapping[str, Tokenizer]) -> Tokenizer:
    """Returns the tokenizer of an artifact: a known one with the same content and settings, or that of its file."""
    manifest = artifact.manifest
    digest = f"{manifest.files[TOKENIZER].sha256} {manifest.reading}"
    if (tokenizer := known.get(digest)) is None:
        known[digest] = tokenizer = Tokenizer.load(artifact.file(TOKENIZER), manifest.reading)
    return tokenizer


def locate_one(word: str, cache: str = "") -> Path:
    """Returns the artifact of one model, as `locate` does.

    Raises:
        SetupError: also if it is a file that lists several models.
    """
    model_source.parse_one(word)
    return locate([word], cache)[0]


def locate(words: Sequence[str], cache: str = "") -> list[Path]:
    """Returns the artifacts of models, and imports those that are checkpoints.

    Args:
        words: names of bundled models, directories, names of the hub, and files that list them, as in
            `swiftlet_serve/inference/model_source.py`. Empty: all bundled models.
        cache: the directory of imported models, as in the setting `model_cache`.

    Raises:
        SetupError, ModelError: there are no models to serve, or no such model, or one cannot be imported.
    """
    bundled = {path.name: path for path in find_artifacts(BUNDLED)}
    if not words and not bundled:
        raise SetupError("There are no models to serve. Name one: this installation has no bundled models.")
    paths, imported = [], set[str]()
    for model in model_source.parse(words):
        source = sources.identify(model.source)
        if source.kind in ("checkpoint", "name"):
            if model.name in imported:  # before an import, which takes a while
                raise SetupError(f"Two models have the name {model.name}. Name one of them: {model.source}:name=other")
            imported.add(model.name)
        if model.source in bundled or source.kind == "artifact":
            if model.options:
                step = "Leave them out, or import its checkpoint with the options."
                raise SetupError(f"{model.source} is an artifact, so it has no options. {step}")
            paths.append(bundled.get(model.source, Path(model.source)))
        elif source.kind in ("checkpoint", "name"):
            paths.append(ModelCache(cache).fetch(model))
        elif source.kind == "other":
            raise SetupError(f"{model.source} is {source.what}. {source.next_step}")
        elif Path(model.source).is_dir():
            raise SetupError(
                f"{model.source} is {source.what}: it has neither manifest.json nor config.json. Give the directory "
                "that save_pretrained wrote."
            )
        else:
            known = ", ".join(bundled) or "none"
            raise SetupError(
                f"There is no model {model.source!r}. Give a directory, a name of the hub such as org/name, or one of "
                f"the bundled models: {known}."
            )
    return paths or list(bundled.values())
