"""Foreign checkpoints become ours: exactly, or not at all.

A source is a directory as transformers' `save_pretrained` writes it, or the name of one on the Hugging Face hub. Every
tensor of it is used or named as ignored, every shape is checked, and a setting that changes what is computed is
understood or refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from swiftlet_serve.models import architectures
from swiftlet_serve.models.artifact import Problem, Task
from swiftlet_serve.models.errors import ModelError
from swiftlet_serve.models.heads import Model, build

SAFETENSORS: Final = "model.safetensors"
PICKLE: Final = "pytorch_model.bin"
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "spiece.model",
    "special_tokens_map.json",
)
# What is fetched of a hub repository; nothing else is needed, and nothing else is opened.
HUB_FILES: Final = (
    "config.json",
    SAFETENSORS,
    f"{SAFETENSORS}.index.json",
    "model-*.safetensors",
    PICKLE,
    *TOKENIZER_FILES,
)

# Names of old TensorFlow exports.
_OLD_NAMES: Final = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))

# What a checkpoint may hold and a model lack without computing anything else: buffers that are no weights, the heads of
# other tasks, and the pre-training objective's.
_IGNORED: Final = (r"(^|\.)(position_ids|token_type_ids)$", r"^(classify|qa|fill-mask|pretraining)\.")

# Second copies that a checkpoint may hold of what a masked-LM head here has once.
_TIED: Final = {"head.decoder.weight": "encoder.embeddings.word.weight", "head.decoder.bias": "head.bias"}

_PROBLEMS: Final[Mapping[str | None, Problem]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


class ConversionError(ModelError):
    """The checkpoint is not one that can be converted exactly; the message is one sentence that names the culprit."""


@dataclass(frozen=True)
class Converted:
    """A checkpoint in our terms, with what was left out of it."""

    model: Model
    architecture: str
    config: Mapping[str, Any]
    labels: tuple[str, ...]
    problem: Problem | None
    ignored: tuple[str, ...]  # tensors of the source that the model has no place for
    source: Mapping[str, Any]  # where it came from: path or hub id and revision


def locate(source: str, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """The directory of a source, and where it came from.

    A source that is no directory is a hub id, taken from the local cache where it is there and fetched otherwise; the
    revision found is recorded, so that the same command gives the same artifact again.

    Raises:
        ConversionError: there is no such directory, and no such repository can be reached.
    """
    directory = Path(source)
    if directory.is_dir():
        return directory, {"directory": directory.resolve().name}
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    files = list(HUB_FILES)
    try:
        try:
            path = Path(snapshot_download(source, revision=revision, allow_patterns=files, local_files_only=True))
        except LocalEntryNotFoundError:
            path = Path(snapshot_download(source, revision=revision, allow_patterns=files))
    except HFValidationError:
        raise ConversionError(f"{source!r} is neither a directory nor the name of a hub repository.") from None
    except (HTTPError, OSError) as error:
        raise ConversionError(
            f"{source!r} is not in the local cache and cannot be fetched: {type(error).__name__}."
        ) from None
    return path, {"hub": source, "revision": path.name}  # a snapshot's directory is named after its commit


def convert(
    directory: Path, task: Task, source: Mapping[str, Any] | None = None, *, encoder_only: bool = False
) -> Converted:
    """Reads a transformers checkpoint as a model for `task`; with `encoder_only` the head stays untrained.

    Raises:
        ConversionError: a setting, tensor or shape is not understood, or something the task needs is missing.
    """
    settings = _read_object(directory / "config.json")
    architecture = settings.get("model_type")
    if architecture not in architectures.names():
        known = ", ".join(architectures.names())
        raise ConversionError(f"config.json: model_type {architecture!r} is not one of {known}.")
    config = _translate_config(architecture, settings)
    labels, problem = _labels(settings) if task == "classify" else ((), None)
    try:
        model = build(architecture, config, task, len(labels))
    except ValueError as error:
        raise ConversionError(f"config.json: {error}") from None
    ignored = _load(model, architecture, task, _read_tensors(directory), encoder_only=encoder_only)
    return Converted(
        model=model.eval(),
        architecture=architecture,
        config=config,
        labels=labels,
        problem=problem,
        ignored=ignored,
        source=source or {"directory": directory.resolve().name},
    )


def _read_object(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConversionError(f"{file.name} is missing.") from None
    except (OSError, ValueError, RecursionError):
        raise ConversionError(f"{file.name} is not valid JSON.") from None
    if not isinstance(document, dict):
        raise ConversionError(f"{file.name} does not hold an object.")
    return document


def _translate_config(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    module = architectures.load(architecture)
    for key, only in module.FIXED.items():
        if settings.get(key, only) != only:
            raise ConversionError(f"config.json: {key} {settings[key]!r} is not computed here, only {only!r}.")
    defaults = {field.name: field.default for field in fields(module.Config)} | dict(module.IMPLIED)
    config = {key: settings.get(key, default) for key, default in defaults.items()}
    for key, default in defaults.items():
        if not _same_kind(config[key], default):
            raise ConversionError(f"config.json: {key} has a wrong value.")
    if config["type_vocab_size"] < 2:
        raise ConversionError("config.json: type_vocab_size 1 has no number for the second text of a pair.")
    if config["hidden_act"] not in architectures.layers.ACTIVATIONS:
        raise ConversionError(f"config.json: hidden_act {config['hidden_act']!r} is not known.")
    return config


def _same_kind(value: object, default: object) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int):
        return isinstance(value, int) and value > 0
    if isinstance(default, float):
        return isinstance(value, int | float) and value >= 0
    return isinstance(value, type(default))


def _labels(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Problem]:
    """Labels in the order of the logits, and how their scores are to be read.

    transformers writes neither where there are two labels with its default names.
    """
    count = settings.get("num_labels", 2)
    if not _same_kind(count, 2):
        raise ConversionError("config.json: num_labels has a wrong value.")
    id2label = settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    try:
        labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    except (KeyError, TypeError):
        raise ConversionError("config.json: id2label does not number the labels from 0.") from None
    named = settings.get("problem_type")
    if named is None:
        return labels, "regression" if len(labels) == 1 else "single_label"
    if not isinstance(named, str) or named not in _PROBLEMS:
        raise ConversionError(f"config.json: problem_type {named!r} is not known.")
    return labels, _PROBLEMS[named]


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, from the first of its files in the order in which transformers looks for them."""
    if (directory / SAFETENSORS).is_file():
        return _read_safetensors(directory / SAFETENSORS)
    if (directory / f"{SAFETENSORS}.index.json").is_file():
        return _read_shards(directory / f"{SAFETENSORS}.index.json")
    if (directory / PICKLE).is_file():
        return _read_pickle(directory / PICKLE)
    raise ConversionError(f"there is neither {SAFETENSORS} nor {PICKLE}.")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError):
        raise ConversionError(f"{file.name} cannot be read as safetensors.") from None


def _read_shards(index: Path) -> dict[str, Tensor]:
    """The tensors of several files, each where the index places it and nowhere else."""
    places = _read_object(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
        raise ConversionError(f"{index.name}: weight_map has a wrong value.")
    shards = sorted(set(places.values()))
    if any(Path(shard).name != shard for shard in shards):
        raise ConversionError(f"{index.name} names a file outside the checkpoint.")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in _read_safetensors(index.parent / shard).items():
            if places.get(name) != shard:
                raise ConversionError(f"{index.name} does not place the tensor {name} in {shard}.")
            tensors[name] = tensor
    for name in sorted(places.keys() - tensors.keys()):
        raise ConversionError(f"the tensor {name} is not in {places[name]}.")
    return tensors


def _read_pickle(file: Path) -> dict[str, Tensor]:
    try:
        # weights_only keeps the unpickler from running anything; the service itself never opens a pickle.
        tensors: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises nearly anything
        raise ConversionError(f"{file.name} cannot be read as plain weights: {type(error).__name__}.") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ConversionError(f"{file.name} holds something else than tensors by name.")
    return tensors


def _load(
    model: Model, architecture: str, task: Task, tensors: Mapping[str, Tensor], *, encoder_only: bool
) -> tuple[str, ...]:
    """Copies every tensor to its place, and returns the names of those that have none, sorted."""
    module = architectures.load(architecture)
    own = model.state_dict()
    transposed = {_rename(name, task, ()) for name in module.TRANSPOSED}
    placed: dict[str, str] = {}
    ignored: list[str] = []
    for name, tensor in sorted(tensors.items()):
        ours = _rename(name, task, module.NAMES)
        if ours in own:
            if ours in transposed:
                tensor = tensor.T
            if ours in placed:
                raise ConversionError(f"the tensors {placed[ours]} and {name} are the same parameter.")
            if tensor.shape != own[ours].shape:
                expected, found = tuple(own[ours].shape), tuple(tensor.shape)
                raise ConversionError(f"the tensor {name} has shape {found}, not {expected}.")
            if not tensor.is_floating_point():
                raise ConversionError(f"the tensor {name} holds {tensor.dtype}, not floating-point numbers.")
            own[ours].copy_(tensor)
            if not torch.isfinite(own[ours]).all():  # a float64 may be finite and no float32
                raise ConversionError(f"the tensor {name} holds values that are not finite.")
            placed[ours] = name
        elif (
            not tensor.numel()
            or ours in _TIED
            or any(re.search(pattern, ours) for pattern in (*_IGNORED, *module.UNREAD))
        ):
            ignored.append(name)
        else:
            raise ConversionError(f"the tensor {name} is not known in {architecture}.")
    for ours in own:
        if ours not in placed and not (encoder_only and ours.startswith("head.")):
            raise ConversionError(f"the parameter {ours} is not in the checkpoint.")
    for name in ignored:
        twin = _TIED.get(_rename(name, task, module.NAMES))
        if twin is not None and not torch.equal(tensors[name].to(own[twin].dtype), own[twin]):
            raise ConversionError(f"the tensor {name} is not tied to {placed.get(twin, twin)}.")
    return tuple(ignored)


def _rename(name: str, task: Task, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in (*_OLD_NAMES, *names, (f"^{task}\\.", "head.")):
        name = re.sub(pattern, replacement, name)
    return name
