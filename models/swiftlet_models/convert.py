"""Converts checkpoints of transformers exactly, or rejects them.

A source is a directory that `save_pretrained` wrote, or the id of a Hugging Face hub repository. The conversion uses
every tensor or lists it as ignored, checks every shape, and rejects by name each setting that it does not implement.
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

from swiftlet_models import architectures, sources
from swiftlet_models.artifact import Embedding, Head, Outputs, Problem
from swiftlet_models.errors import ModelError
from swiftlet_models.heads import Model, build

SAFETENSORS: Final = "model.safetensors"
PICKLE: Final = "pytorch_model.bin"
TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "spiece.model",
    "vocab.json",
    "merges.txt",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "added_tokens.json",
)
# The only files that are downloaded from a hub repository.
HUB_FILES: Final = (
    "config.json",
    "README.md",  # the model card, which names the languages
    "modules.json",  # of sentence-transformers, as are the next three
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]_*/*",
    SAFETENSORS,
    f"{SAFETENSORS}.index.json",
    "model-*.safetensors",
    PICKLE,
    *TOKENIZER_FILES,
)

# Parameter names in checkpoints converted from TensorFlow.
_OLD_NAMES: Final = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))

# Tensors of a checkpoint that do not change what the model computes: buffers, heads of other tasks, and heads of
# pre-training objectives.
_IGNORED: Final = (
    r"(^|\.)(position_ids|token_type_ids)$",
    r"^(classification|token|masked_lm|causal_lm|pretraining)\.",
)

# transformers stores the outputs of every token classifier as `classifier`, the name that NAMES gives to the outputs of
# a text classifier. A head that labels tokens is read from there, and never from the head of question answering.
_TOKEN_LABELS: Final = ((r"^classifier\.(weight|bias)$", r"token.output.\1"), (r"^qa_outputs\.", r"pretraining.span."))
_TOKEN_CLASSIFIER: Final = "ForTokenClassification"  # noqa: S105  # the end of a class name

# Tensors that repeat a parameter which the heads of language models have once here.
_TIED: Final = {"head.decoder.weight": "encoder.embeddings.word.weight", "head.decoder.bias": "head.bias"}

MAX_LABELS: Final = 1 << 20  # that a configuration may ask for without naming them

_PROBLEMS: Final[Mapping[str | None, Problem]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


class ConversionError(ModelError):
    """Raised when a checkpoint cannot be converted exactly. The message is one sentence, which names the cause."""


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A converted checkpoint and its origin."""

    model: Model
    architecture: str
    config: Mapping[str, Any]
    labels: tuple[str, ...]
    problem: Problem | None
    ignored: tuple[str, ...]  # tensors of the source that the model does not use
    source: Mapping[str, Any]  # directory name, or hub id and revision


def locate(source: str, revision: str | None = None) -> tuple[Path, dict[str, Any]]:
    """Returns the directory of a source, and its origin for the manifest.

    A source that is not a directory is a hub id. It is read from the local cache, or downloaded. The origin records the
    commit, so that the same command gives the same artifact again.

    Raises:
        ConversionError: the source is not a directory, and the repository cannot be reached.
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
        raise ConversionError(f"{source!r} is neither a directory nor a valid hub id.") from None
    except (HTTPError, OSError) as error:
        raise ConversionError(
            f"{source!r} is not in the local cache and cannot be downloaded: {type(error).__name__}."
        ) from None
    return path, {"hub": source, "revision": path.name}  # the directory of a snapshot has the name of its commit


def convert(
    directory: Path,
    head: Head,
    outputs: Outputs = "labels",
    *,
    source: Mapping[str, Any] | None = None,
    encoder_only: bool = False,
    embedding: Embedding | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> ConvertedCheckpoint:
    """Reads a transformers checkpoint as a model with this head. With `encoder_only`, the head stays untrained.

    `outputs` is the number of outputs per position. If it is "labels", the checkpoint lists the labels. `embedding`
    describes the head `embedding`, whose `parameters` are not in the checkpoint.

    Raises:
        ConversionError: a setting, tensor or shape is not supported, or a tensor that the head needs is missing.
    """
    settings = read_object(directory / "config.json")
    if refusal := architectures.refusal(settings.get("model_type")):
        raise ConversionError(refusal)
    architecture = str(settings["model_type"]).replace("-", "_")
    config = _translate_config(architecture, settings)
    labels, problem = _labels(settings) if outputs == "labels" else ((), None)
    if outputs == "labels" and not encoder_only:
        _check_kind(settings, head)
    width = outputs if isinstance(outputs, int) else len(labels)
    if parameters:
        width = len(parameters["head.output.weight"])
    try:
        with torch.device("meta"):  # takes no memory, for any sizes in the configuration
            shapes = build(architecture, config, head, width, embedding)
    except ValueError as error:
        raise ConversionError(f"config.json: {error}") from None
    except (RuntimeError, TypeError, OverflowError):  # torch raises any of them for a size beyond 64 bits
        raise ConversionError("config.json: the sizes are too large for any network.") from None
    if shapes.encoder.config.traits().embedding.token_types and config["type_vocab_size"] < 2:
        raise ConversionError("config.json: type_vocab_size 1 has no token type for the second text of a pair.")
    names = _TOKEN_LABELS if (head, outputs) == ("token", "labels") else ()
    tensors = {**read_tensors(directory), **(parameters or {})}
    try:
        _load(shapes, architecture, head, names, tensors, encoder_only=encoder_only)
    except _NoHead:
        raise ConversionError(_missing_head(settings, head, outputs)) from None
    model = build(architecture, config, head, width, embedding)
    ignored = _load(model, architecture, head, names, tensors, encoder_only=encoder_only)
    return ConvertedCheckpoint(
        model=model.eval(),
        architecture=architecture,
        config=config,
        labels=labels,
        problem=problem if head == "classification" else None,
        ignored=ignored,
        source=source or {"directory": directory.resolve().name},
    )


class _NoHead(Exception):  # `convert` says which task the checkpoint fits
    """Raised when a parameter of the head is not in the checkpoint."""


def _missing_head(settings: Mapping[str, Any], head: Head, outputs: Outputs) -> str:
    """Returns what to do with a checkpoint that has no head of this kind."""
    if named := sources.named_head(settings):
        name, task = settings["architectures"][0], sources.seems_for(settings)
        if named[1] == head and (named[0] == "qa") == (outputs == 2):
            return f"the head of {name} is not in the checkpoint. Save the whole model, and import that."
        return f"the checkpoint has no head for this task: config.json names {name}, which fits --task {task}."
    return (
        "the checkpoint has no trained head for this task. Fine-tune it for the task first, or make an embedding model "
        "of it: --task embed --pooling mean."
    )


def _check_kind(settings: Mapping[str, Any], head: Head) -> None:
    """Refuses a classifier of texts as one of tokens, and the reverse. Their tensors may have the same shapes."""
    classes = settings.get("architectures") or []
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ConversionError("config.json: architectures has an invalid value.")
    if head == "token" and any(not name.endswith(_TOKEN_CLASSIFIER) for name in classes):
        raise ConversionError("config.json: architectures does not name a token classifier.")
    if head == "classification" and any(name.endswith(_TOKEN_CLASSIFIER) for name in classes):
        raise ConversionError("config.json: architectures names a token classifier, which does not classify texts.")


def read_object(file: Path, kind: type = dict) -> Any:
    """Reads a JSON object, or a value of another `kind`.

    Raises:
        ConversionError: the file is missing, no JSON, or of another kind.
    """
    try:
        document = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConversionError(f"{file.name} is missing.") from None
    except (OSError, ValueError, RecursionError):
        raise ConversionError(f"{file.name} is not valid JSON.") from None
    if not isinstance(document, kind):
        raise ConversionError(f"{file.name} is not a JSON {'object' if kind is dict else 'array'}.")
    return document


def _translate_config(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    module = architectures.load(architecture)
    for key, only in module.FIXED.items():
        if settings.get(key, only) != only:
            raise ConversionError(f"config.json: {key} {settings[key]!r} is not supported, only {only!r}.")
    defaults = {field.name: field.default for field in fields(module.Config)} | dict(module.IMPLIED)
    config = {key: settings.get(key, default) for key, default in defaults.items()}
    try:
        module.Config(**config)
    except ValueError as error:
        raise ConversionError(f"config.json: {error}") from None
    return config


def _labels(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Problem]:
    """Returns the labels in the order of the logits, and the kind of classification.

    transformers writes neither for two labels with default names.
    """
    count = settings.get("num_labels", 2)
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise ConversionError("config.json: num_labels has an invalid value.")
    id2label = settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    try:
        labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    except (KeyError, TypeError):
        raise ConversionError("config.json: id2label does not number the labels from 0.") from None
    problem = settings.get("problem_type")
    if problem is None:  # the pipeline of transformers then applies a sigmoid to one label
        return labels, "single_label"
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        raise ConversionError(f"config.json: problem_type {problem!r} is not supported.")
    return labels, _PROBLEMS[problem]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Reads all tensors of a checkpoint. Files are tried in the same order as in transformers.

    Raises:
        ConversionError: there is no file of tensors, or it cannot be read.
    """
    if (directory / SAFETENSORS).is_file():
        return _read_safetensors(directory / SAFETENSORS)
    if (directory / f"{SAFETENSORS}.index.json").is_file():
        return _read_shards(directory / f"{SAFETENSORS}.index.json")
    if (directory / PICKLE).is_file():
        return _read_pickle(directory / PICKLE)
    raise ConversionError(f"the checkpoint holds neither {SAFETENSORS} nor {PICKLE}.")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError, KeyError):
        raise ConversionError(f"{file.name} cannot be read as safetensors.") from None


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Reads the tensors of several files. Each tensor must be in the file that the index names."""
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise ConversionError(f"{index.name}: weight_map has an invalid value.")
    shards = sorted(set(weight_map.values()))
    if any(Path(shard).name != shard for shard in shards):
        raise ConversionError(f"{index.name} names a file outside the checkpoint.")
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        for name, tensor in _read_safetensors(index.parent / shard).items():
            if weight_map.get(name) != shard:
                raise ConversionError(f"{index.name} does not place the tensor {name} in {shard}.")
            tensors[name] = tensor
    for name in sorted(weight_map.keys() - tensors.keys()):
        raise ConversionError(f"the tensor {name} is not in {weight_map[name]}.")
    return tensors


def _read_pickle(file: Path) -> dict[str, Tensor]:
    try:
        # weights_only prevents code execution by the unpickler. The server never opens a pickle.
        tensors: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the unpickler raises errors of many types
        raise ConversionError(f"{file.name} cannot be read as plain weights: {type(error).__name__}.") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ConversionError(f"{file.name} is not a mapping of names to tensors.")
    return tensors


def _load(
    model: Model,
    architecture: str,
    head: Head,
    own_names: Sequence[tuple[str, str]],
    tensors: Mapping[str, Tensor],
    *,
    encoder_only: bool,
) -> tuple[str, ...]:
    """Copies the tensors into the model. Returns the sorted names of the ignored ones.

    A model without memory, on the device `meta`, is only compared with the names and shapes of the tensors.
    `own_names` are patterns of this head. They apply before the architecture's patterns.
    """
    module = architectures.load(architecture)
    names = (*own_names, *module.NAMES)
    state = model.state_dict()
    transposed = [_rename(pattern, head, ()) for pattern in module.TRANSPOSED]
    omitted = {_rename(name, head, ()) for name in getattr(module, "OMITTED", ())}
    tensors = _split(tensors, getattr(module, "FUSED", ()))
    placed: dict[str, str] = {}
    ignored: list[str] = []
    for name, tensor in sorted(tensors.items()):
        parameter = _rename(name, head, names)
        if parameter in state:
            if any(re.fullmatch(pattern, parameter) for pattern in transposed):
                tensor = tensor.T
            if parameter in placed:
                raise ConversionError(f"the tensors {placed[parameter]} and {name} name the same parameter.")
            if tensor.shape != state[parameter].shape:
                expected, shape = tuple(state[parameter].shape), tuple(tensor.shape)
                raise ConversionError(f"the tensor {name} has shape {shape}, not {expected}.")
            if not tensor.is_floating_point():
                raise ConversionError(f"the tensor {name} holds {tensor.dtype}, not floating-point numbers.")
            if not state[parameter].is_meta:
                state[parameter].copy_(tensor)
                if not torch.isfinite(state[parameter]).all():  # a finite float64 may overflow float32
                    raise ConversionError(f"the tensor {name} holds values that are not finite.")
            placed[parameter] = name
        elif (
            not tensor.numel()
            or parameter in _TIED
            or any(re.search(pattern, parameter) for pattern in (*_IGNORED, *module.UNREAD))
        ):
            ignored.append(name)
        else:
            raise ConversionError(f"the tensor {name} is not part of {architecture}.")
    found_or_zero = placed.keys() | omitted
    for parameter in state:
        if parameter.startswith("head.") and parameter not in found_or_zero and not encoder_only:
            raise _NoHead
        if parameter not in found_or_zero and not parameter.startswith("head."):
            raise ConversionError(f"the parameter {parameter} is not in the checkpoint.")
    for name in ignored:
        tied = _TIED.get(_rename(name, head, names))
        if (
            tied is not None
            and not state[tied].is_meta
            and not torch.equal(tensors[name].to(state[tied].dtype), state[tied])
        ):
            raise ConversionError(f"the tensor {name} is not tied to {placed.get(tied, tied)}.")
    return tuple(ignored)


def _split(tensors: Mapping[str, Tensor], fused: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Tensor]:
    """Splits tensors that hold several parameters side by side. Each part gets the name of its parameter."""
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        names = [
            re.sub(pattern, part, name) for pattern, several in fused if re.search(pattern, name) for part in several
        ]
        if not names:
            parts[name] = tensor
        elif not tensor.ndim or tensor.shape[-1] % len(names):
            raise ConversionError(f"the tensor {name} cannot be split into {len(names)} parameters.")
        else:
            parts |= zip(names, tensor.chunk(len(names), -1), strict=True)
    return parts


def _rename(name: str, head: Head, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in (*_OLD_NAMES, *names, (f"^{head}\\.", "head.")):
        name = re.sub(pattern, replacement, name)
    return name
