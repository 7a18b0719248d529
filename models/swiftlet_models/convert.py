"""Converts checkpoints of transformers exactly, or rejects them.

The conversion uses every tensor or lists it as ignored, checks every shape, and rejects by name each setting that it
does not implement.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import architectures, sources
from swiftlet_models.adapters import Adapter
from swiftlet_models.artifact import Embedding, Head, Outputs, Problem
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.label_checkpoints import LabelCheckpoint
from swiftlet_models.parameters import ParametersError, Sizes, check_sizes, configure, expected_parameters
from swiftlet_models.tensors import Matrix, Weights, are_equal, in_parts, is_finite

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
_COLBERT: Final = ((r"^linear\.weight$", r"embedding.vectors.weight"),)  # in the class of Stanford's package
_TOKEN_CLASSIFIER: Final = "ForTokenClassification"  # noqa: S105  # the end of a class name

# Tensors that repeat a parameter which the heads of language models have once here.
_TIED: Final = {"head.decoder.weight": "encoder.embeddings.word.weight", "head.decoder.bias": "head.bias"}

MAX_LABELS: Final = 1 << 20  # that a configuration may ask for without naming them
_SAVED_WITH: Final = "Take the config.json that was saved with these weights"
_WRITE_LABELS: Final = 'Write all of them: "id2label": {"0": "NAME", "1": "NAME"}.'

# Settings that tell that the tensors are not those of the network, with the next step.
_CHANGED: Final = {
    "quantization_config": "give the checkpoint before its quantisation, or save model.dequantize() of transformers",
    "pruned_heads": "give the checkpoint before heads were removed",
}
_LANGUAGE_MODELS: Final = ("masked_lm", "causal_lm")  # heads that read the word embeddings
_ACTIVATIONS: Final = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "gelu_accurate": "gelu_new"}  # the same

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
    source: Mapping[str, Any]  # directory name, or hub id and revision; `base` has those of an adapter's base

    @property
    def network(self) -> tuple[str, Mapping[str, Any], Head, int, Embedding | None]:
        """The description of the network, as `heads.build` takes it."""
        return self.architecture, self.config, self.head, self.width, self.embedding


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
    adapter: Adapter | LabelCheckpoint | None = None,
) -> Iterator[ConvertedCheckpoint]:
    """Opens a transformers checkpoint as a network with this head. With `encoder_only`, it has no head yet.

    The weights can be read within the block. `outputs` is the number of outputs per position. If it is "labels", the
    checkpoint lists the labels. `embedding` describes the head `embedding`, whose `parameters` are not in the
    checkpoint. The weights are those of a directory, of an `adapter` merged into it, or of the encoder in a checkpoint
    that reads labels.

    Raises:
        ConversionError: a setting, tensor or shape is not supported, or a tensor that the head needs is missing.
    """
    settings = adapter.settings if adapter else read_object(directory / "config.json")
    if refusal := architectures.refusal(settings.get("model_type")):
        raise ConversionError(refusal)
    architecture = str(settings["model_type"]).replace("-", "_")
    # The head in whose place the checkpoint has the parameters.
    stored: Head = "masked_lm" if embedding and embedding.by_vocabulary else head
    config = _translate_config(architecture, settings, stored)
    if configure(architecture, config).traits().embedding.token_types and config["type_vocab_size"] < 2:
        raise ConversionError("config.json: type_vocab_size 1 has no token type for the second text of a pair.")
    labels, problem = _labels(settings) if outputs == "labels" else ((), None)
    if outputs == "labels" and not encoder_only:
        _check_kind(settings, head)
    names = _TOKEN_LABELS if (head, outputs) == ("token", "labels") else _COLBERT if head == "embedding" else ()
    with adapter.open() if adapter else open_tensors(directory) as tensors:
        checkpoint = _Checkpoint(architecture, config, stored, {**tensors, **(parameters or {})}, names)
        try:
            width = outputs if isinstance(outputs, int) else len(labels)
            sizes = checkpoint.check(width, embedding, encoder_only=encoder_only)
        except _NoHead:
            raise ConversionError(_missing_head(settings, stored, outputs)) from None
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
            source={
                **(source or {"directory": directory.resolve().name}),
                **({"base": adapter.origin} if adapter and adapter.origin else {}),
            },
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


def _translate_config(architecture: str, settings: Mapping[str, Any], head: Head) -> dict[str, Any]:
    module = architectures.describe(architecture)
    for key, step in _CHANGED.items():
        if settings.get(key):
            raise ConversionError(f"config.json: {key} is not supported; {step}.")
    checkpoints = module.CHECKPOINTS
    for key, only in checkpoints.fixed.items():
        if settings.get(key, only) != only and (key != "tie_word_embeddings" or head in _LANGUAGE_MODELS):
            raise ConversionError(f"config.json: {key} {settings[key]!r} is not supported, only {only!r}.")
    defaults = {field.name: field.default for field in fields(module.Config)} | dict(checkpoints.implied)
    try:
        settings = checkpoints.translate(settings)
        config = {key: _same_activation(settings.get(key, default)) for key, default in defaults.items()}
        module.Config(**config)
    except ValueError as error:
        raise ConversionError(f"config.json: {error}") from None
    return config


def _same_activation(value: Any) -> Any:
    return _ACTIVATIONS.get(value, value) if isinstance(value, str) else value


def _labels(settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Problem]:
    """Returns the labels in the order of the logits, and the kind of classification.

    transformers writes neither for two labels with default names.
    """
    count = settings.get("num_labels", 2)
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise ConversionError(f"config.json: num_labels has an invalid value. {_WRITE_LABELS}")
    id2label = settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    try:
        labels = tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    except (KeyError, TypeError):
        raise ConversionError(f"config.json: id2label does not number the labels from 0. {_WRITE_LABELS}") from None
    if None in id2label.values():
        raise ConversionError(f"config.json: id2label has a label without a name. {_WRITE_LABELS}")
    problem = settings.get("problem_type")
    if problem is None:  # the pipeline of transformers then applies a sigmoid to one label
        return labels, "single_label"
    if not isinstance(problem, str) or problem not in _PROBLEMS:
        known = ", ".join(map(str, _PROBLEMS))
        raise ConversionError(f"config.json: problem_type {problem!r} is not supported, only {known} are.")
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
        checkpoints = architectures.describe(architecture).CHECKPOINTS
        self.architecture, self.head = architecture, head
        self.config = configure(architecture, config)
        self.unread = (*_IGNORED, *checkpoints.unread)
        omitted = checkpoints.omitted
        self.zeros = [pattern for pattern, setting in omitted if not (setting and getattr(self.config, setting))]
        self.transposed = checkpoints.transposed
        self.weights: dict[str, Matrix] = {}
        self.names: dict[str, str] = {}  # of the tensors, by parameter
        self.ignored: list[str] = []
        # A module around the network gives all names a beginning, such as `module.` or `_orig_mod.`
        own = [name for name in tensors if not name.startswith("head.")]
        wrapper, _, _ = os.path.commonprefix(own).rpartition(".")  # noqa: RUF071  # it is cut at a full stop
        of_head = checkpoints.of_head.get(head, ())
        names = ((f"^{re.escape(wrapper)}\\.", ""), *names, *of_head, *checkpoints.names)
        for name, tensor in sorted(self.split(tensors, checkpoints.fused, names)):
            parameter = _rename(name, head, names)
            if parameter in self.weights:
                raise ConversionError(f"the tensors {self.names[parameter]} and {name} name the same parameter.")
            if self.is_any(parameter, self.transposed):
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
        if not any(name.startswith("encoder.") for name in shapes):
            such = f", such as {next(iter(self.names.values()))}," if self.names else ""
            raise ConversionError(
                f"the tensors{such} are not those of {self.architecture}. Set model_type in config.json to the network "
                "that they belong to."
            )
        try:
            expected, sizes = expected_parameters(self.config, shapes, None)
            if not encoder_only:
                table = self.table(embedding)
                if table and table not in shapes:
                    raise _NoHead
                if table == "head.output.weight" and width:
                    if self.head == "classification" and shapes.get(table, ())[:1] not in ((), (width,)):
                        raise ConversionError(
                            f"config.json names {width} labels, but the head has {shapes[table][0]}. {_WRITE_LABELS}"
                        )
                    shapes[table] = width, self.config.hidden_size
                expected, sizes = expected_parameters(self.config, shapes, self.head, embedding)
        except ParametersError as error:
            raise ConversionError(f"the weights do not fit config.json: {error}. {_SAVED_WITH}.") from None
        for parameter in [name for name in self.weights if name not in expected]:
            self.leave_out(parameter, encoder_only=encoder_only)
        for parameter, shape in expected.items():
            if parameter not in self.weights:
                if not self.is_any(parameter, self.zeros):
                    raise (
                        _NoHead
                        if parameter.startswith("head.")
                        else ConversionError(
                            f"the parameter {parameter} is not in the checkpoint. Save the whole model."
                        )
                    )
                self.weights[parameter] = np.zeros(shape, np.float32)
            self.check_tensor(parameter, shape)
        self.check_tied()
        try:
            check_sizes(self.config, sizes)
        except ParametersError as error:
            raise ConversionError(f"the weights do not fit config.json: {error}. {_SAVED_WITH}.") from None
        positions = shapes.get("encoder.embeddings.position.weight", ())[:1]
        if positions not in ((), (stated := getattr(self.config, "max_position_embeddings", None),)):
            raise ConversionError(
                f"the weights do not fit config.json: there are {stated} positions, but the parameters have "
                f"{positions[0]}. Set max_position_embeddings to that."
            )
        return sizes

    def is_any(self, parameter: str, patterns: Sequence[str]) -> bool:
        """Returns whether a parameter has a name of an architecture file, in which each head has its own prefix."""
        name = re.sub(r"^head\.", f"{self.head}.", parameter)
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    def split(
        self, tensors: Weights, fused: Sequence[tuple[str, Sequence[str]]], names: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[str, Matrix]]:
        """Yields tensors, and those that hold several parameters side by side in parts, each with its own name."""
        for name, tensor in tensors.items():
            parts = [
                re.sub(pattern, part, name)
                for pattern, several in fused
                if re.search(pattern, name)
                for part in several
            ]
            if not parts:
                yield name, tensor
                continue
            axis = -1 if self.is_any(_rename(parts[0], self.head, names), self.transposed) else 0
            if not tensor.shape or tensor.shape[axis] % len(parts):
                raise ConversionError(f"the tensor {name} cannot be split into {len(parts)} parameters.")
            if axis == 0 and len(tensor.shape) > 1:
                yield from zip(parts, in_parts(tensor, len(parts)), strict=True)
            else:
                yield from zip(parts, np.split(np.asarray(tensor), len(parts), axis), strict=True)

    def table(self, embedding: Embedding | None) -> str | None:
        """Returns the name of a matrix that the head must have; None if it has none of its own."""
        match self.head:
            case "masked_lm":
                return "head.transform.weight" if self.config.traits().prediction_map else None
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
            raise ConversionError(
                f"the tensor {name} is not part of {self.architecture} as config.json describes it. {_SAVED_WITH}, or "
                "save the model without what was added to it."
            )
        self.ignored.append(name)
        if parameter not in _TIED:
            del self.weights[parameter]

    def check_tensor(self, parameter: str, shape: tuple[int, ...]) -> None:
        name, tensor = self.names.get(parameter, parameter), self.weights[parameter]
        if tensor.shape != shape:
            raise ConversionError(f"the tensor {name} has shape {tensor.shape}, not {shape}. {_SAVED_WITH}.")
        if tensor.dtype.kind != "f":
            raise ConversionError(f"the tensor {name} holds no floating-point numbers. Save it before it is quantised.")
        if not is_finite(tensor):
            raise ConversionError(f"the tensor {name} holds values that are not finite. Take an earlier checkpoint.")

    def check_tied(self) -> None:
        """Checks that tensors which repeat a parameter are equal to it, and removes them."""
        for copy, parameter in _TIED.items():
            if copy not in self.weights:
                continue
            tensor, own = self.weights.pop(copy), self.weights.get(parameter)
            if own is not None and not are_equal(tensor, own):
                tied = self.names.get(parameter, parameter)
                raise ConversionError(f"the tensor {self.names[copy]} is not tied to {tied}.")


def _rename(name: str, head: Head, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in (*_OLD_NAMES, *names, (f"^{head}\\.", "head.")):
        name = re.sub(pattern, replacement, name)
    return name
