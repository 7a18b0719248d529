"""The models that a server is asked for: what a word such as `./my-model:task=qa,name=mine` names.

A word is the name of a bundled model, the directory of an artifact or of a checkpoint, or a repository on the Hugging
Face hub, `org/name` or `org/name@revision`. A file `.toml` lists several, with the same options.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from swiftlet_models.artifact import MAX_NAME, NAME, NAME_RULE, AdapterForm, PoolingOption, Precision
from swiftlet_models.regular_file import check_regular
from swiftlet_models.sources import HUB_NAME
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError

OPTIONS: Final = ("task", "name", "pooling", "precision", "adapter")
CHOICES: Final = {
    "pooling": get_args(PoolingOption),
    "precision": get_args(Precision),
    "adapter": get_args(AdapterForm),
}
WORD: Final = re.compile(r"(?P<source>.+?)(?::(?P<options>[a-z_]+=[^=,]*(?:,[a-z_]+=[^=,]*)*))?", re.DOTALL)


@dataclass(frozen=True)
class ModelSource:
    """A model to serve, and how to import it if it is a checkpoint."""

    source: str
    revision: str | None = None  # of a repository on the hub
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the model, if it is imported."""
        return self.options.get("name") or model_name(self.source)


def model_name(source: str) -> str:
    """Returns the name of a model that is imported from a directory or a repository on the hub."""
    path = Path(source).resolve() if Path(source).is_dir() else Path(source)
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):  # in the cache of the hub
        path = Path(path.parents[1].name.rpartition("--")[2])
    last = path.name
    return re.sub(r"[^a-z0-9._-]+", "-", last.lower()).strip("-._")[:MAX_NAME].rstrip("-._") or "model"


def parse_one(word: str) -> ModelSource:
    """Returns the model that a word names.

    Raises:
        SetupError: as `parse`, and if it is a file that lists several models.
    """
    models = parse([word])
    if len(models) != 1:
        raise SetupError(f"{word} lists {len(models)} models, but the command takes one. Name one of them.")
    return models[0]


def parse(words: Sequence[str]) -> list[ModelSource]:
    """Returns the models that words and files name.

    Raises:
        SetupError: a word or a file is not valid.
    """
    return [source for word in words for source in _parse(word)]


def _parse(word: str) -> Iterator[ModelSource]:
    if word.endswith(".toml") and not Path(word).is_dir():
        yield from _read(Path(word))
        return
    match = WORD.fullmatch(word)
    if match is None or _exists(word):  # a name may contain what looks like options
        yield _source(word, {})
        return
    pairs = [pair.split("=", 1) for pair in (match["options"] or "").split(",") if pair]
    options = dict(pairs)
    if len(options) < len(pairs):
        raise SetupError(f"{word} has an option twice. Leave one of them out.")
    yield _source(match["source"], options)


def _read(file: Path) -> Iterator[ModelSource]:
    """Yields the models of a file. A path in it begins at the file's directory."""
    try:
        check_regular(file)
        document = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise SetupError(f"{file} is not valid TOML: {error}.") from None
    models = document.get("models")
    if models and set(document) != {"models"}:
        raise SetupError(f"{file} holds other keys or tables than [[models]]. Remove them.")
    if not isinstance(models, list) or not models:
        raise SetupError(f'{file} must hold tables [[models]], each with a source, such as source = "./my-model".')
    for number, model in enumerate(models, 1):
        if not isinstance(model, dict):
            raise SetupError(f"{file}: the model {number} is not a table.")
        if key := next((key for key, value in model.items() if not isinstance(value, str)), None):
            raise SetupError(f'{file}: {key} of the model {number} is not a text. Write it in quotes: {key} = "...".')
        options: dict[str, Any] = dict(model)
        source = options.pop("source", "")
        if not source:
            raise SetupError(f"{file}: the model {number} has no source.")
        beside = file.parent / source
        if not _exists(beside) and (match := WORD.fullmatch(source)) and match["options"]:
            raise SetupError(f"{file}: the source of the model {number} has options. Write them as keys of the table.")
        yield _source(str(beside) if _exists(beside) else source, options)


def _source(source: str, options: Mapping[str, str]) -> ModelSource:
    if not source:
        raise SetupError("The name of a model is empty. Name a bundled model, a directory or a repository of the hub.")
    for key, value in options.items():
        if key not in OPTIONS:
            raise SetupError(f"{key!r} is not an option of a model. The options are {', '.join(OPTIONS)}.")
        if not value:
            raise SetupError(f"The option {key} of a model has no value.")
    if (task := options.get("task")) and task not in tasks.names():
        raise SetupError(f"There is no task {task!r}. The tasks are {', '.join(tasks.names())}.")
    for key, known in CHOICES.items():
        if (chosen := options.get(key)) and chosen not in known:
            one_of = "one of " if len(known) > 1 else ""
            raise SetupError(f"The option {key} of a model is {one_of}{', '.join(known)}, not {chosen!r}.")
    if (name := options.get("name")) and not NAME.fullmatch(name):
        raise SetupError(f"{name!r} is not a valid name, which has {NAME_RULE}.")
    base, _, revision = source.partition("@")
    if revision and HUB_NAME.fullmatch(base) and not _exists(source):
        return ModelSource(base, revision, options)
    return ModelSource(source, None, options)


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # its name is too long
        return False
