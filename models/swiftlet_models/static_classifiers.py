"""The classifier of model2vec beside static embeddings, read without scikit-learn and without executing anything.

A StaticModelPipeline is a directory of static embeddings with linear layers on the vector, and ReLU between them. Today
model2vec writes them as `head.safetensors`, and their labels into `config.json`. Until version 0.8 it wrote
`pipeline.skops`: an archive with a description of the objects of scikit-learn, and a file of numpy for each array.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from swiftlet_models.artifact import Problem
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors
from swiftlet_models.tensors import Array, Floats, Weights

LAYERS: Final = "head.safetensors"
ARCHIVE: Final = "pipeline.skops"
DESCRIPTION: Final = "schema.json"  # of the archive
MAX_LAYERS: Final = 16
MAX_BYTES: Final = 64 << 20  # of what is read of an archive
MAX_DESCRIPTION: Final = 8 << 20  # JSON takes many times its length in memory
MULTIPLE: Final = 16  # of a hidden layer's width, for the native engine

# The functions of `/classify`, by model2vec's activations and by those of scikit-learn.
_PROBLEMS: Final[Mapping[str, Problem]] = {
    "softmax": "single_label",
    "sigmoid": "multi_label",
    "logistic": "multi_label",
    "identity": "regression",
}
# How numpy begins a file with an array of one or two dimensions.
_HEADER: Final = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<kind>[<|](?:f[248]|[iu][1248]|U[1-9]\d{0,5}))', 'fortran_order': "
    rb"(?P<order>False|True), 'shape': \((?P<rows>\d{1,9}),(?: (?P<columns>\d{1,9}))?\), \} *\n",
    re.DOTALL,
)
_STEP: Final = (
    'Save it with a current model2vec: StaticModelPipeline.from_pretrained("DIR").save_pretrained("NEW"). Or serve its '
    "vectors, with the option :task=embed"
)


@dataclass(frozen=True)
class StaticClassifier:
    """Layers on a vector, and what their outputs stand for."""

    layers: Sequence[tuple[Floats, Floats]]  # matrices (outputs, inputs) and biases (outputs,)
    labels: tuple[str, ...]
    problem: Problem

    @property
    def hidden_widths(self) -> tuple[int, ...]:
        """The widths of the layers but the last, rounded up."""
        return tuple(math.ceil(len(bias) / MULTIPLE) * MULTIPLE for _, bias in self.layers[:-1])

    def parameters(self) -> Weights:
        """Returns the parameters of the head. What rounds a width up is always 0."""
        names = [*(f"head.hidden.{i}" for i in range(len(self.layers) - 1)), "head.output"]
        widths = (self.layers[0][0].shape[1], *self.hidden_widths, len(self.labels))
        parameters: dict[str, Floats] = {}
        for name, (weight, bias), (inputs, outputs) in zip(names, self.layers, pairwise(widths), strict=True):
            wide = outputs - len(bias), inputs - weight.shape[1]
            parameters[name + ".weight"] = np.pad(weight, [(0, more) for more in wide])
            parameters[name + ".bias"] = np.pad(bias, (0, wide[0]))
        return parameters


def is_classifier(directory: Path) -> bool:
    """Returns whether a classifier lies beside static embeddings."""
    return (directory / LAYERS).is_file() or (directory / ARCHIVE).is_file()


def read_classifier(directory: Path, config: Mapping[str, Any], width: int) -> StaticClassifier:
    """Reads the classifier of a directory. `config` is its `config.json`, and `width` that of its vectors.

    Raises:
        ConversionError: a file is damaged, or holds another classifier.
    """
    name = LAYERS if (directory / LAYERS).is_file() else ARCHIVE
    try:
        return _checked(*_current(directory, config) if name == LAYERS else _archive(directory / name), width)
    except _HeadError as error:
        raise ConversionError(f"{name} cannot be read as a classifier of model2vec: {error}. {_STEP}.") from None


class _HeadError(ValueError):
    """Raised when a head is of another kind or damaged. The message is a clause."""


Head = tuple[list[tuple[Array, Array]], object, object]  # layers, the activation of the outputs, and labels


def _checked(given: Sequence[tuple[Array, Array]], activation: object, classes: object, width: int) -> StaticClassifier:
    problem = _PROBLEMS.get(activation) if isinstance(activation, str) else None
    if problem is None:
        raise _HeadError("its activation is not softmax, sigmoid or identity")
    if not 1 <= len(given) <= MAX_LAYERS:
        raise _HeadError(f"it has {len(given)} layers")
    layers = [(_numbers(weight, 2), _numbers(bias, 1)) for weight, bias in given]
    for weight, bias in layers:
        if weight.shape != (len(bias), width) or not len(bias):
            raise _HeadError("its matrices do not fit each other, or not the vectors")
        width = len(bias)
    if classes is None and problem == "regression":
        classes = [f"LABEL_{i}" for i in range(width)]
    if not isinstance(classes, list) or not all(type(label) in (str, int) for label in classes):
        raise _HeadError("its labels are neither texts nor numbers")
    labels = tuple(map(str, classes))
    if len(labels) != width or len({*labels}) != width or not all(label.isprintable() for label in labels):
        raise _HeadError(f"its {width} outputs have not as many different labels that can be printed")
    return StaticClassifier(layers, labels, problem)


def _current(directory: Path, config: Mapping[str, Any]) -> Head:
    about = config.get("head_config")
    if not isinstance(about, dict) or type(count := about.get("n_layers")) is not int:
        raise _HeadError("config.json does not describe it in head_config")
    with open_tensors(directory, (LAYERS, f"{LAYERS}.pkl")) as tensors:
        names = [(f"head.{i}.weight", f"head.{i}.bias") for i in range(min(count, MAX_LAYERS + 1))]
        if {*tensors} != {name for pair in names for name in pair}:
            raise _HeadError(f"its tensors are not those of {count} layers")
        layers = [(np.asarray(tensors[weight]), np.asarray(tensors[bias])) for weight, bias in names]
    return layers, about.get("activation"), about.get("classes")


def _archive(file: Path) -> Head:
    """Reads the last step of a pipeline of scikit-learn. Its objects are not made: only lists, texts and arrays are."""
    try:
        with zipfile.ZipFile(file) as archive:
            return _perceptron(_Files(archive))
    except _HeadError:
        raise
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise _HeadError(f"it is no archive ({type(error).__name__})") from None
    except (ValueError, RecursionError):
        raise _HeadError("it is damaged") from None


class _Files:
    """The files of an archive. What is read of all of them has at most MAX_BYTES."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive, self._left = archive, MAX_BYTES

    def read(self, name: str, limit: int = MAX_BYTES) -> bytes:
        limit = min(limit, self._left)
        try:
            file = self._archive.getinfo(name)
        except KeyError:
            raise _HeadError("it is damaged") from None
        # LZMA takes as much memory as the file asks for.
        if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _HeadError("it is compressed in a way that is not read")
        with self._archive.open(file) as opened:
            content = opened.read(limit + 1)
        if len(content) > limit:
            raise _HeadError("it is too long")
        self._left -= len(content)
        return content


def _perceptron(files: _Files) -> Head:
    steps = _item(json.loads(files.read(DESCRIPTION, MAX_DESCRIPTION)), "content", "content", "steps", "content", -1)
    match _item(steps, "content", 1):
        case {"__module__": str(module), "__class__": str(kind), "content": {"content": dict(state)}}:
            if not module.startswith("sklearn.") or kind not in ("MLPClassifier", "MLPRegressor"):
                raise _HeadError(f"it is no MLPClassifier, but {kind!r:.40}")
        case _:
            raise _HeadError("it is no pipeline of scikit-learn")
    match state.get("coefs_"), state.get("intercepts_"):
        case {"content": list(matrices)}, {"content": list(biases)} if len(matrices) == len(biases):
            pass
        case _:
            raise _HeadError("it is not trained")
    if _text(state.get("activation")) != "relu":
        raise _HeadError("its hidden layers have another activation than ReLU")
    if len(matrices) > MAX_LAYERS:
        raise _HeadError(f"it has {len(matrices)} layers")
    layers = [(_array(files, weight).T, _array(files, bias)) for weight, bias in zip(matrices, biases, strict=True)]
    match state.get("classes_"):
        case {"type": "json", "content": list(items)}:
            labels: object = [_text(item) for item in items]
        case {"type": "numpy"} as node:
            labels = _array(files, node).tolist()
        case _:
            labels = None
    return layers, _text(state.get("out_activation_")), labels


def _text(node: object) -> object:
    """Returns what a node of the description has in JSON, such as a text; None if it has nothing."""
    match node:
        case {"__loader__": "JsonNode", "content": str(text)}:
            return json.loads(text)
    return None


def _array(files: _Files, node: object) -> Array:
    """Reads an array of numbers or texts.

    numpy's own reader would first allocate the size that the header claims.
    """
    match node:
        case {"__loader__": "NdArrayNode", "type": "numpy", "file": str(name)}:
            content = files.read(name)
        case _:
            raise _HeadError("it is damaged")
    if (header := _HEADER.match(content)) is None:
        raise _HeadError("it holds an array that is not read")
    kind = np.dtype(header["kind"].decode())
    shape = tuple(int(size) for size in (header["rows"], header["columns"]) if size is not None)
    if math.prod(shape) * kind.itemsize != len(content) - header.end():
        raise _HeadError("an array has another size than its shape says")
    if kind.kind == "U" and np.frombuffer(content, "<u4", offset=header.end()).max(initial=0) > sys.maxunicode:
        raise _HeadError("it is damaged")
    order: Literal["F", "C"] = "F" if header["order"] == b"True" else "C"
    return np.frombuffer(content, kind, offset=header.end()).reshape(shape, order=order)


def _item(document: Any, *keys: str | int) -> Any:
    """Returns what lies under keys. Raises _HeadError if it is no object or list."""
    for key in keys:
        try:
            document = None if isinstance(document, str) else document[key]  # a text has items, too
        except (KeyError, IndexError, TypeError):
            raise _HeadError("it is no pipeline of scikit-learn") from None
    return document


def _numbers(array: Array, dimensions: int) -> Floats:
    if array.dtype.kind != "f" or array.ndim != dimensions:
        raise _HeadError("its matrices hold no numbers with a point")
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.ascontiguousarray(array, np.float32)
    if not np.isfinite(numbers).all():
        raise _HeadError("its numbers are not finite")
    return numbers
