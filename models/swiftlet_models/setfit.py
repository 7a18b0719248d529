"""The classifier of a SetFit model, read without scikit-learn and without executing its pickle.

A SetFit model (Tunstall et al. 2022, arXiv:2209.11055) is a model of sentence-transformers beside `model_head.pkl`, a
logistic regression of scikit-learn on its vectors. joblib writes that pickle: the numbers of an array follow, within
the file, the instruction that builds the array.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftlet_models import sentence_transformers
from swiftlet_models.artifact import Embedding
from swiftlet_models.checkpoint_tensors import ConversionError, read_object
from swiftlet_models.pickles import Opaque, PickleError, load, opaque
from swiftlet_models.sentence_transformers import SentenceEncoder
from swiftlet_models.tensors import Array, Floats

HEAD: Final = "model_head.pkl"
SETTINGS: Final = "config_setfit.json"
MAX_BYTES: Final = 64 << 20  # a thousand labels of vectors of 1,024 numbers have 8 MB

_REGRESSION: Final = ("sklearn.linear_model._logistic", "sklearn.linear_model.logistic")  # in new and old versions
_TYPE: Final = re.compile(r"f[248]|[iu][1248]|b1|U\d{1,6}|O8?", re.ASCII)
_VECTORS: Final = "Serve its vectors instead, with the option :task=embed"
_STEP: Final = (
    "only a LogisticRegression of scikit-learn is; train with the default head of SetFit, or serve the vectors with "
    "the option :task=embed"
)


@dataclass(frozen=True)
class Classifier:
    """A linear classifier of vectors: the softmax of `weight @ vector + bias` has the probabilities of the labels."""

    weight: Floats  # (labels, width)
    bias: Floats  # (labels,)
    labels: tuple[str, ...]
    normalize: bool  # whether vectors have length 1 before they are classified


def is_classifier(directory: Path) -> bool:
    """Returns whether a directory holds a SetFit model."""
    return (directory / HEAD).is_file() or (directory / SETTINGS).is_file()


def read_encoder(directory: Path) -> tuple[SentenceEncoder, tuple[str, ...]]:
    """Reads a SetFit model as an encoder whose dense layer gives the logits of labels, and the labels.

    Raises:
        ConversionError: as `read_classifier`, or a Dense module does not form one layer with the classifier.
    """
    classifier, encoder = read_classifier(directory), sentence_transformers.read_encoder(directory)
    described, weight, bias = encoder.embedding, classifier.weight, classifier.bias
    is_unit = described.normalize or classifier.normalize
    if described.dense:
        if is_unit or described.dense != "identity":
            what = "normalises vectors after a Dense module" if is_unit else "has a Dense module with an activation"
            raise ConversionError(f"the model {what} in front of its classifier, which is not supported. {_VECTORS}.")
        dense, own = (np.asarray(encoder.dense[f"head.output.{name}"], np.float64) for name in ("weight", "bias"))
        if dense.shape[0] != weight.shape[1]:
            raise ConversionError(f"{HEAD} reads vectors of another width than the model makes. Save both again.")
        weight, bias = ((weight @ dense).astype(np.float32), (weight @ own + bias).astype(np.float32))
    parameters = {"head.output.weight": weight, "head.output.bias": bias}
    default = described.default_prompt
    embedding = Embedding(
        described.pooling,
        dense="unit" if is_unit else "identity",
        prompts={default: described.prompts[default]} if default else {},
        default_prompt=default,
    )
    return replace(encoder, embedding=embedding, dense=parameters), classifier.labels


def read_classifier(directory: Path) -> Classifier:
    """Reads the classifier of a SetFit directory.

    Raises:
        ConversionError: a file is missing or damaged, or the head is of another kind.
    """
    settings = read_object(directory / SETTINGS) if (directory / SETTINGS).is_file() else {}
    names = settings.get("labels")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ConversionError(f"{SETTINGS}: labels has an invalid value.")
    try:
        with (directory / HEAD).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise PickleError("it is too long")  # noqa: TRY301
        weight, bias, classes = _regression(_load(io.BytesIO(content)))
    except OSError:
        raise ConversionError(f"{HEAD} is missing or cannot be read.") from None
    except PickleError as error:
        raise ConversionError(f"{HEAD} cannot be read: {error}; {_STEP}.") from None
    if names is not None and all(isinstance(label, int) and 0 <= label < len(names) for label in classes):
        classes = [names[label] for label in classes]
    labels = tuple(map(str, classes))
    if len(set(labels)) != len(labels) or not all(label.isprintable() for label in labels):
        raise ConversionError(f"{HEAD}: the labels are not different texts that can be printed.")
    return Classifier(weight, bias, labels, bool(settings.get("normalize_embeddings")))


def _regression(head: object) -> tuple[Floats, Floats, list[Any]]:
    """Returns the matrix, the bias and the classes of a regression. Raises PickleError if it is of another kind."""
    state = head.state if isinstance(head, Opaque) else None
    if not isinstance(state, dict) or not all(
        isinstance(state.get(key), np.ndarray) for key in ("coef_", "intercept_", "classes_")
    ):
        raise PickleError("it is no trained regression")
    weight, bias, classes = state["coef_"], state["intercept_"], state["classes_"]
    rows = 1 if classes.shape == (2,) else len(classes) if classes.ndim == 1 else 0
    if (
        rows == 0
        or weight.ndim != 2
        or len(weight) != rows
        or bias.shape != (rows,)
        or classes.dtype.kind not in "iuUO"
    ):
        raise PickleError("its matrices do not fit each other")
    if weight.dtype.kind != "f" or bias.dtype.kind != "f":
        raise PickleError("its matrices hold no numbers with a point")
    kind = state.get("multi_class", "auto")
    if rows > 2 and (kind in ("ovr", "warn") or (kind != "multinomial" and state.get("solver") == "liblinear")):
        raise PickleError("its labels do not exclude each other (ovr, liblinear)")
    with np.errstate(over="ignore", invalid="ignore"):
        weight, bias = weight.astype(np.float32), bias.astype(np.float32)
    if not np.isfinite(weight).all() or not np.isfinite(bias).all():
        raise PickleError("its numbers are not finite")
    if rows == 1:  # the logit of the second class. That of the first one is 0, or its opposite
        first = -1 if kind == "multinomial" else 0
        weight, bias = (np.concatenate([array * first, array]) for array in (weight, bias))
    return weight, bias, classes.tolist()


def _load(file: io.BytesIO) -> Any:
    names: dict[str, Any] = {f"{module} LogisticRegression": opaque("LogisticRegression") for module in _REGRESSION}
    names |= {"numpy dtype": _Type.of, "numpy ndarray": "ndarray"}
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        names |= {f"{module} _reconstruct": lambda _: _PickledArray("array"), f"{module} scalar": opaque("scalar")}
    return load(file, names | {"joblib.numpy_pickle NumpyArrayWrapper": lambda _: _Wrapper(file, names)})


class _Type(Opaque):
    """A type of numpy. Its state has the order of bytes."""

    @classmethod
    def of(cls, arguments: tuple[Any, ...]) -> _Type:
        match arguments:
            case (str(name), *_) if _TYPE.fullmatch(name):
                return cls(name)
        raise PickleError("it holds an array of a type that is not read")

    def build(self, state: Any) -> _Type:
        match state:
            case (_, "<" | "|" | "=", *_):
                return self
        raise PickleError("it holds an array of a type that is not read")

    def array(self, content: bytes, shape: tuple[int, ...], *, is_fortran: bool) -> Array:
        kind = np.dtype("<" + self.name)
        if math.prod(shape) * kind.itemsize != len(content):
            raise PickleError("an array has another size than its shape says")
        if kind.kind == "U" and np.frombuffer(content, "<u4").max(initial=0) > sys.maxunicode:
            raise PickleError("it is damaged")
        return np.frombuffer(content, kind).reshape(shape, order="F" if is_fortran else "C")


class _PickledArray(Opaque):
    """An array as numpy pickles it."""

    def build(self, state: Any) -> Array:
        match state:
            case (_, tuple(shape), _Type(name="O" | "O8"), _, list(items)) if shape == (len(items),) and all(
                isinstance(item, str) for item in items
            ):
                return np.array(items, object)
            case (_, tuple(shape), _Type() as kind, bool(is_fortran), bytes(content)) if _is_shape(shape):
                return kind.array(content, shape, is_fortran=is_fortran)
        raise PickleError("it holds an array that is not read")


class _Wrapper(Opaque):
    """An array as joblib writes it: its content follows in the file. `names` are those for an array of objects."""

    def __init__(self, file: io.BytesIO, names: Mapping[str, Any]) -> None:
        super().__init__("array")
        self.file, self.names = file, names

    def build(self, state: Any) -> Array:
        match state:
            case {"shape": tuple(shape), "order": "C" | "F" as order, "dtype": _Type() as kind} if _is_shape(shape):
                pass
            case _:
                raise PickleError("it holds an array that is not read")
        if kind.name.startswith("O"):  # a pickle in the pickle
            array = load(self.file, self.names)
            if not isinstance(array, np.ndarray):
                raise PickleError("it holds an array that is not read")
            return array
        if state.get("numpy_array_alignment_bytes") is not None:
            self.file.read(int.from_bytes(self.file.read(1), "little"))
        size = math.prod(shape) * np.dtype(kind.name).itemsize
        return kind.array(self.file.read(min(size, MAX_BYTES)), shape, is_fortran=order == "F")


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return len(shape) <= 2 and all(type(n) is int and 0 <= n <= MAX_BYTES for n in shape)
