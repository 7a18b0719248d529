"""Converts checkpoints of transformers exactly, or rejects them.

A source is a directory that `save_pretrained` wrote, or the id of a Hugging Face hub repository. The conversion uses
every tensor or lists it as ignored, checks every shape, and rejects by name each setting that it does not implement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import architectures, sources
from swiftlet_models.adapters import ADAPTER, TENSORS, Adapter, is_adapter, read_adapter
from swiftlet_models.artifact import Embedding, Head, Outputs, Problem
from swiftlet_models.checkpoint_tensors import PICKLE, SAFETENSORS, ConversionError, open_tensors, read_object
from swiftlet_models.parameters import ParametersError, Sizes, check_sizes, configure, expected_parameters
from swiftlet_models.tensors import Matrix, Weights, are_equal, is_finite

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
    f"{PICKLE}.index.json",
    "pytorch_model-*.bin",
    ADAPTER,
    *TENSORS,
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

# What to do, by the error of the hub's client.
_HUB: Final = {
    "GatedRepoError": "accept its terms on the hub, and set HF_TOKEN",
    "RepositoryNotFoundError": "there is no such repository, or it is private; check the name, or set HF_TOKEN",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": (
        "the hub cannot be reached, or HF_HUB_OFFLINE is set; copy the files here, and name their directory"
    ),
}

MAX_LABELS: Final = 1 << 20  # that a configuration may ask for without naming them

_PROBLEMS: Final[Mapping[str | None, Problem]] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


@dataclass(frozen=True)
class ConvertedCheckpoint:
    """A converted checkpoint and its origin."""

    weights: Weights  # named as in `architectures.traits` and `heads`
    architecture: str
    config: Mapping[str, Any]
    head: Head
    width: int  # outputs per position
    embedding: Embedding | None
    positions: int  # the most tokens of a sequence
    labels: tuple[str, ...]
    problem: Problem | None
    ignored: tuple[str, ...]  # tensors of the source that the model does not use
    source: Mapping[str, Any]  # directory name, or hub id and revision

    @property
    def network(self) -> tuple[str, Mapping[str, Any], Head, int, Embedding | None]:
        """The description of the network, as `heads.build` takes it."""
        return self.architecture, self.config, self.head, self.width, self.embedding


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
    try:
        from httpx2 import HTTPError
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:
        raise ConversionError(
            f"{source!r} is no directory, and names of the hub need the package huggingface-hub. Download the "
            "repository elsewhere, and name its directory."
        ) from None

    files = list(HUB_FILES)
    try:
        try:
            path = Path(snapshot_download(source, revision=revision, allow_patterns=files, local_files_only=True))
        except LocalEntryNotFoundError:
            path = Path(snapshot_download(source, revision=revision, allow_patterns=files))
    except HFValidationError:
        raise ConversionError(f"{source!r} is neither a directory nor a valid hub id.") from None
    except (HTTPError, OSError) as error:
        kind = type(error).__name__
        raise ConversionError(
            f"{source!r} is not in the local cache and cannot be downloaded: {_HUB.get(kind, kind)}."
        ) from None
    return path, {"hub": source, "revision": path.name}  # the directory of a snapshot has the name of its commit


def files(directory: Path) -> list[Path]:
    """Returns the files of a checkpoint that a conversion may read, sorted: its weights in the form that is read."""
    has_safetensors = any((directory / f"{SAFETENSORS}{end}").is_file() for end in ("", ".index.json"))
    patterns = [name for name in HUB_FILES if not (has_safetensors and name.startswith(Path(PICKLE).stem))]
    patterns += [] if has_safetensors else [f"{name}*" for name in sources.ONNX]
    return sorted({file for pattern in patterns for file in directory.glob(pattern) if file.is_file()})


def find_adapter(directory: Path) -> Adapter | None:
    """Returns the adapter in a directory, with its base; None if the directory holds no adapter.

    Raises:
        ConversionError: as `read_adapter` and `locate`.
    """
    return read_adapter(directory, lambda *base: locate(*base)[0]) if is_adapter(directory) else None


@contextmanager
def convert(
    directory: Path,
    head: Head,
    outputs: Outputs = "labels",
    *,
    source: Mapping[str, Any] | None = None,
    encoder_only: bool = False,
    embedding: Embedding | None = None,
    parameters: Weights | None = None,
    adapter: Adapter | None = None,
) -> Iterator[ConvertedCheckpoint]:
    """Opens a transformers checkpoint as a network with this head. With `encoder_only`, it has no head yet.

    The weights can be read within the block. `outputs` is the number of outputs per position. If it is "labels", the
    checkpoint lists the labels. `embedding` describes the head `embedding`, whose `parameters` are not in the
    checkpoint. The weights are those of a directory, or of an `adapter` merged into it.

    Raises:
        ConversionError: a setting, tensor or shape is not supported, or a tensor that the head needs is missing.
    """
    settings = adapter.settings if adapter else read_object(directory / "config.json")
    if refusal := architectures.refusal(settings.get("model_type")):
        raise ConversionError(refusal)
    architecture = str(settings["model_type"]).replace("-", "_")
    config = _translate_config(architecture, settings)
    if configure(architecture, config).traits().embedding.token_types and config["type_vocab_size"] < 2:
        raise ConversionError("config.json: type_vocab_size 1 has no token type for the second text of a pair.")
    labels, problem = _labels(settings) if outputs == "labels" else ((), None)
    if outputs == "labels" and not encoder_only:
        _check_kind(settings, head)
    names = _TOKEN_LABELS if (head, outputs) == ("token", "labels") else ()
    with adapter.open() if adapter else open_tensors(directory) as tensors:
        checkpoint = _Checkpoint(architecture, config, head, {**tensors, **(parameters or {})}, names)
        try:
            width = outputs if isinstance(outputs, int) else len(labels)
            sizes = checkpoint.check(width, embedding, encoder_only=encoder_only)
        except _NoHead:
            raise ConversionError(_missing_head(settings, head, outputs)) from None
        yield ConvertedCheckpoint(
            weights=checkpoint.weights,
            architecture=architecture,
            config=config,
            head=head,
            width=sizes.outputs,
            embedding=embedding,
            positions=sizes.positions,
            labels=labels,
            problem=problem if head == "classification" else None,
            ignored=tuple(checkpoint.ignored),
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


def _translate_config(architecture: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    module = architectures.describe(architecture)
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


class _Checkpoint:
    """The tensors of a checkpoint under the names of parameters.

    `names` are patterns of the head. They apply before the architecture's patterns.
    """

    def __init__(
        self,
        architecture: str,
        config: Mapping[str, Any],
        head: Head,
        tensors: Weights,
        names: Sequence[tuple[str, str]],
    ) -> None:
        """Raises ConversionError if two tensors are one parameter, or a tensor cannot be split."""
        module: Any = architectures.describe(architecture)
        self.architecture, self.head = architecture, head
        self.config = configure(architecture, config)
        self.unread = (*_IGNORED, *module.UNREAD)
        self.zeros = {_rename(name, head, ()) for name in getattr(module, "OMITTED", ())}
        transposed = [_rename(pattern, head, ()) for pattern in module.TRANSPOSED]
        self.weights: dict[str, Matrix] = {}
        self.names: dict[str, str] = {}  # of the tensors, by parameter
        self.ignored: list[str] = []
        for name, tensor in sorted(_split(tensors, getattr(module, "FUSED", ())).items()):
            parameter = _rename(name, head, (*names, *module.NAMES))
            if parameter in self.weights:
                raise ConversionError(f"the tensors {self.names[parameter]} and {name} name the same parameter.")
            if any(re.fullmatch(pattern, parameter) for pattern in transposed):
                tensor = np.ascontiguousarray(np.asarray(tensor).T)
            self.weights[parameter], self.names[parameter] = tensor, name
        for copy, parameter in _TIED.items():  # a file may hold the copy alone, as ONNX graphs do
            if copy in self.weights and parameter not in self.weights:
                self.weights[parameter], self.names[parameter] = self.weights[copy], self.names[copy]

    def check(self, width: int, embedding: Embedding | None, *, encoder_only: bool) -> Sizes:
        """Checks that the tensors are the network's parameters, and removes the others. Returns the network's sizes.

        A width of 0 is what the parameters have.

        Raises:
            ConversionError: they are not.
            _NoHead: a parameter of the head is missing.
        """
        shapes = {name: weight.shape for name, weight in self.weights.items()}
        try:
            expected, sizes = expected_parameters(self.config, shapes, None)
            if not encoder_only:
                table = self.table(embedding)
                if table and table not in shapes.keys() | self.zeros:
                    raise _NoHead
                if table == "head.output.weight" and width:
                    shapes[table] = width, self.config.hidden_size
                expected, sizes = expected_parameters(self.config, shapes, self.head, embedding)
        except ParametersError as error:
            raise ConversionError(f"the weights do not fit config.json: {error}.") from None
        for parameter in [name for name in self.weights if name not in expected]:
            self.leave_out(parameter, encoder_only=encoder_only)
        for parameter, shape in expected.items():
            if parameter not in self.weights:
                if parameter not in self.zeros:
                    raise (
                        _NoHead
                        if parameter.startswith("head.")
                        else ConversionError(f"the parameter {parameter} is not in the checkpoint.")
                    )
                self.weights[parameter] = np.zeros(shape, np.float32)
            self.check_tensor(parameter, shape)
        self.check_tied()
        try:
            check_sizes(self.config, sizes)
        except ParametersError as error:
            raise ConversionError(f"the weights do not fit config.json: {error}.") from None
        return sizes

    def table(self, embedding: Embedding | None) -> str | None:
        """Returns the name of a matrix that the head must have; None if it has none of its own."""
        match self.head:
            case "masked_lm":
                return "head.transform.weight"
            case "causal_lm":
                return None
            case "embedding":
                return "head.output.weight" if embedding and embedding.dense else None
        return "head.output.weight"

    def leave_out(self, parameter: str, *, encoder_only: bool) -> None:
        """Removes a tensor that is no parameter. Raises ConversionError if it may change what the network computes."""
        name, tensor = self.names[parameter], self.weights[parameter]
        is_known = parameter in _TIED or any(re.search(pattern, parameter) for pattern in self.unread)
        if math.prod(tensor.shape) and not is_known and not (encoder_only and parameter.startswith("head.")):
            raise ConversionError(f"the tensor {name} is not part of {self.architecture}.")
        self.ignored.append(name)
        if parameter not in _TIED:
            del self.weights[parameter]

    def check_tensor(self, parameter: str, shape: tuple[int, ...]) -> None:
        name, tensor = self.names.get(parameter, parameter), self.weights[parameter]
        if tensor.shape != shape:
            raise ConversionError(f"the tensor {name} has shape {tensor.shape}, not {shape}.")
        if tensor.dtype.kind != "f":
            raise ConversionError(f"the tensor {name} holds no floating-point numbers.")
        if not is_finite(tensor):
            raise ConversionError(f"the tensor {name} holds values that are not finite.")

    def check_tied(self) -> None:
        """Checks that tensors which repeat a parameter are equal to it, and removes them."""
        for copy, parameter in _TIED.items():
            if copy not in self.weights:
                continue
            tensor, own = self.weights.pop(copy), self.weights.get(parameter)
            if own is not None and not are_equal(tensor, own):
                tied = self.names.get(parameter, parameter)
                raise ConversionError(f"the tensor {self.names[copy]} is not tied to {tied}.")


def _split(tensors: Weights, fused: Sequence[tuple[str, Sequence[str]]]) -> dict[str, Matrix]:
    """Splits tensors that hold several parameters side by side. Each part gets the name of its parameter."""
    parts: dict[str, Matrix] = {}
    for name, tensor in tensors.items():
        names = [
            re.sub(pattern, part, name) for pattern, several in fused if re.search(pattern, name) for part in several
        ]
        if not names:
            parts[name] = tensor
        elif not tensor.shape or tensor.shape[-1] % len(names):
            raise ConversionError(f"the tensor {name} cannot be split into {len(names)} parameters.")
        else:
            parts |= zip(names, np.split(np.asarray(tensor), len(names), -1), strict=True)
    return parts


def _rename(name: str, head: Head, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in (*_OLD_NAMES, *names, (f"^{head}\\.", "head.")):
        name = re.sub(pattern, replacement, name)
    return name
