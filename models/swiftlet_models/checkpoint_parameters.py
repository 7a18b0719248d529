"""The tensors of a checkpoint under the names of a network's parameters: all are there, and have the right shapes."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from swiftlet_models import architectures
from swiftlet_models.artifact import Embedding, Head
from swiftlet_models.checkpoint_settings import WRITE_LABELS
from swiftlet_models.checkpoint_tensors import ConversionError
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

# Tensors that repeat a parameter which the heads of language models have once here.
_WORDS: Final = "encoder.embeddings.word.weight"
_TIED: Final = {"head.decoder.weight": _WORDS, "head.decoder.bias": "head.bias"}
_ATTRIBUTES: Final = re.compile(r"((model|module|net|network|backbone|_orig_mod)\.)+")  # that hold a network
_SAVED_WITH: Final = "Take the config.json that was saved with these weights"


class NoHead(Exception):  # `convert` says which task the checkpoint fits
    """Raised when a parameter of the head is not in the checkpoint."""


class CheckpointParameters:
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
        self.names: dict[str, str] = {}  # of the tensors, or the parts of one, by parameter
        self.tensors: dict[str, str] = {}  # the names of the tensors that they are, or are a part of
        self.ignored: list[str] = []
        of_head = checkpoints.of_head.get(head, ())
        names = (*names, *of_head, *checkpoints.names)
        names = ((f"^{re.escape(_wrapper(tensors, head, names))}\\.", ""), *names)
        for name, tensor, stored in sorted(self.split(tensors, checkpoints.fused, names)):
            parameter = _rename(name, head, names)
            if parameter in self.weights:
                raise ConversionError(f"the tensors {self.names[parameter]} and {name} name the same parameter.")
            if self.is_any(parameter, self.transposed):
                tensor = np.ascontiguousarray(np.asarray(tensor).T)
            self.weights[parameter], self.names[parameter], self.tensors[parameter] = tensor, name, stored
        for copy, parameter in _TIED.items():  # a file may hold the copy alone, as ONNX graphs do
            if copy in self.weights and parameter not in self.weights:
                self.weights[parameter], self.names[parameter] = self.weights[copy], self.names[copy]
                self.tensors[parameter] = self.tensors[copy]

    def check(self, width: int, embedding: Embedding | None, *, encoder_only: bool) -> Sizes:
        """Checks that the tensors are the network's parameters, and removes the others. Returns the network's sizes.

        A width of 0 is what the parameters have.

        Raises:
            ConversionError: they are not.
            NoHead: a parameter of the head is missing.
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
                    raise NoHead
                if table == "head.output.weight" and width:
                    if self.head == "classification" and shapes.get(table, ())[:1] not in ((), (width,)):
                        raise ConversionError(
                            f"config.json is for {width} labels, but the head has {shapes[table][0]}. {WRITE_LABELS}"
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
                        NoHead
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
    ) -> Iterator[tuple[str, Matrix, str]]:
        """Yields tensors, and those that hold several parameters side by side in parts, each with its own name.

        The last name is that of the whole tensor.
        """
        for name, tensor in tensors.items():
            parts = [
                re.sub(pattern, part, name)
                for pattern, several in fused
                if re.search(pattern, name)
                for part in several
            ]
            if not parts:
                yield name, tensor, name
                continue
            axis = -1 if self.is_any(_rename(parts[0], self.head, names), self.transposed) else 0
            if not tensor.shape or tensor.shape[axis] % len(parts):
                raise ConversionError(f"the tensor {name} cannot be split into {len(parts)} parameters.")
            rows = axis == 0 and len(tensor.shape) > 1
            split = in_parts(tensor, len(parts)) if rows else np.split(np.asarray(tensor), len(parts), axis)
            yield from zip(parts, split, [name] * len(parts), strict=True)

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


def _wrapper(tensors: Weights, head: Head, names: Sequence[tuple[str, str]]) -> str:
    """Returns what a module around the network puts in front of all its names, such as `module` or `_orig_mod`.

    A module of Lightning has other tensors beside the network, such as the weights of its loss.
    """
    own = [name for name in tensors if not name.startswith("head.")]
    common, _, _ = os.path.commonprefix(own).rpartition(".")  # noqa: RUF071  # it is cut at a full stop
    if common:
        return common
    ends = ((name, dot.end()) for name in own for dot in re.finditer(r"\.", name))
    inside = ((name[:end], name[end:]) for name, end in ends if _ATTRIBUTES.fullmatch(name[:end]))
    return next((before[:-1] for before, name in inside if _rename(name, head, names) == _WORDS), "")


def _rename(name: str, head: Head, names: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in (*_OLD_NAMES, *names, (f"^{head}\\.", "head.")):
        name = re.sub(pattern, replacement, name)
    return name
