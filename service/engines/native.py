"""Kernels of our own in int8, for the CPUs that they are written for.

A batch is ragged: the tokens of all rows end to end, and no padding. Weights have one int8 scale for each output,
activations one scale for each token, so that an answer never depends on its neighbours, to the bit. A call is one call
into a library, outside Python's lock; it allocates nothing once its thread has seen as large a batch. Weights are
packed once and shared by all threads. `service/native/` holds the C++, one small file for each instruction set;
`models/folding.py` makes the parameters from those of `model.onnx`.

Where there is no library (nothing could be compiled), no kernel for this CPU, or the network is none that is known
here, `onnx_cpu` serves instead, and one line in the log says why.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import accumulate
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

import swiftlet_serve.service
from swiftlet_serve.models.artifact import ONNX, Artifact, ArtifactError
from swiftlet_serve.models.folding import Folded, FoldingError, Product, fold
from swiftlet_serve.models.graphs.reader import WeightsError, read_weights
from swiftlet_serve.service.engines import onnx_cpu
from swiftlet_serve.service.types import Batch, Cost, Engine, Row

log = logging.getLogger(__name__)

LIBRARIES: Final = Path(swiftlet_serve.service.__file__).parent / "native"
KERNELS: Final = ("avx512bf16", "avx512vnni", "avxvnni", "avx2", "neon")  # the fastest first, of what a CPU may have
CHOICE: Final = "SWIFTLET_NATIVE_KERNEL"  # environment variable that asks for one of them
PROJECTIONS: Final = {"none": 0, "words": 1, "sum": 2}
ACTIVATIONS: Final = {"relu": 1, "gelu": 2, "gelu_new": 3, "gelu_pytorch_tanh": 3, "tanh": 4}
FAULTS: Final = {1: "there is not enough memory", 2: "the batch is not one", 3: "a parameter is missing"}

_Floats = np.ctypeslib.ndpointer(np.float32, flags="C_CONTIGUOUS")
_Int8s = np.ctypeslib.ndpointer(np.int8, flags="C_CONTIGUOUS")
_Int64s = np.ctypeslib.ndpointer(np.int64, flags="C_CONTIGUOUS")


class Shape(ctypes.Structure):
    """`Shape` of service/native/model.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int)
            for name in (
                *("layers", "hidden", "inner", "intermediate", "heads", "feed_forward", "activation"),
                *("embedding", "vocabulary", "positions", "token_types", "outputs"),
                *("window", "projection", "embedding_norm", "layer_norm", "bottleneck"),
            )
        ),
        ("epsilon", ctypes.c_float),
    )


class Library:
    """The kernels of one instruction set."""

    def __init__(self, file: Path) -> None:
        """Raises OSError where the file is none that can be loaded, AttributeError where it is another library."""
        self.c = ctypes.CDLL(str(file))
        self.c.swiftlet_kernel.restype = ctypes.c_char_p
        self.c.swiftlet_create.restype = ctypes.c_void_p
        self.c.swiftlet_create.argtypes = [ctypes.POINTER(Shape), ctypes.POINTER(ctypes.c_int)]
        model, number, name = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
        size = ctypes.c_int
        self.c.swiftlet_matrix.argtypes = [model, name, size, size, _Int8s, _Floats, _Floats]
        self.c.swiftlet_vector.argtypes = [model, name, number, _Floats]
        self.c.swiftlet_words.argtypes = [model, _Int8s, _Floats]
        self.c.swiftlet_finish.argtypes = [model]
        self.c.swiftlet_model_bytes.argtypes = self.c.swiftlet_destroy.argtypes = [model]
        self.c.swiftlet_model_bytes.restype = self.c.swiftlet_workspace_bytes.restype = number
        self.c.swiftlet_run.argtypes = [model, *[number] * 4, _Int64s, _Floats]
        self.c.swiftlet_peak.argtypes = [number, *[ctypes.c_void_p] * 3]
        self.c.swiftlet_peak.restype = number

    @property
    def kernel(self) -> str:
        """The name of the instruction set."""
        name: bytes = self.c.swiftlet_kernel()
        return name.decode()

    @property
    def supported(self) -> bool:
        """Whether this CPU can run it."""
        return bool(self.c.swiftlet_supported())

    def multiply(self, rounds: int) -> int:
        """Multiplies and adds as fast as these kernels ever could, and returns how often."""
        room = np.ones(1 << 14, np.uint8)  # more than a tile has of anything
        aligned = room.ctypes.data + -room.ctypes.data % 64
        sums = np.empty(1 << 10, np.float32)
        count: int = self.c.swiftlet_peak(rounds, aligned, aligned, sums.ctypes.data)
        return count


class Native:
    # A call costs what it holds, and little besides: the weights come by once for all tokens of it.
    cost: ClassVar[Cost] = Cost(padded=False, call_tokens=8, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True
    # Beyond the tolerance of ONNX Runtime's int8: weights have one scale for a whole output, not one for each block.
    extra_tolerance: ClassVar[float] = 0.05

    def __init__(self, library: Library, folded: Folded) -> None:
        """Raises MemoryError."""
        self._c = library.c
        self.title = f"native ({library.kernel})"
        self._outputs = folded.outputs
        order = (ctypes.c_int * len(folded.order))(*folded.order)
        self._model: int | None = self._c.swiftlet_create(ctypes.byref(_shape(folded)), order)
        if self._model is None:
            raise MemoryError
        for name, product in folded.products.items():
            weight, scale = quantise(product)
            bias = np.ascontiguousarray(product.bias, np.float32)
            _check(self._c.swiftlet_matrix(self._model, name.encode(), *weight.shape, weight, scale, bias))
        for name, vector in folded.vectors.items():
            vector = np.ascontiguousarray(vector, np.float32)
            _check(self._c.swiftlet_vector(self._model, name.encode(), vector.size, vector))
        _check(self._c.swiftlet_words(self._model, *quantise(Product(folded.words, folded.words[:, 0]))))
        _check(self._c.swiftlet_finish(self._model))

    @property
    def bytes(self) -> int:
        """What the weights take, of all threads together."""
        size: int = self._c.swiftlet_model_bytes(self._model)
        return size

    def run(self, batch: Batch) -> Sequence[Row]:
        """Raises ValueError for a batch that is none: ids out of range, rows empty or too long, focus elsewhere."""
        tokens, rows = len(batch.input_ids), len(batch.offsets) - 1
        offsets = batch.offsets, batch.focus_offsets, batch.candidate_offsets
        if len(batch.token_type_ids) != tokens or len(batch.top_k) != rows or {*map(len, offsets)} != {rows + 1}:
            raise ValueError(FAULTS[2])
        shapes = batch.row_shapes(self._outputs)
        # Nothing of the batch is known to be right yet; of one that is, no row is longer.
        longest = min(max([0, *(width for _, width in shapes)]), 1 + 2 * self._outputs)
        numbers = np.empty(len(batch.focus) * longest, np.float32)
        counts = rows, tokens, len(batch.focus), len(batch.candidates)
        # As one array, since each that is handed over takes two microseconds.
        given = np.concatenate(batch.arrays, dtype=np.int64, casting="unsafe")
        _check(self._c.swiftlet_run(self._model, *counts, given, numbers))
        ends = [0, *accumulate(read * width for read, width in shapes)]
        return [numbers[ends[b] : ends[b + 1]].reshape(shape).copy() for b, shape in enumerate(shapes)]

    def close(self) -> None:
        self._c.swiftlet_destroy(self._model)
        self._model = None


def create(artifact: Artifact, threads: int) -> Engine:  # a call runs on one thread, whatever `threads` is
    """The artifact's network in the best kernels for this CPU; where there are none, in ONNX Runtime.

    Raises:
        ArtifactError: `model.onnx` is no network that can be read.
    """
    try:
        return _native(artifact)
    except FoldingError as reason:
        log.warning("%s runs on onnx_cpu, for the native engine cannot: %s", artifact.manifest.name, reason)
        return onnx_cpu.create(artifact, threads)


def _native(artifact: Artifact) -> Native:
    manifest = artifact.manifest
    library = best()
    if library is None:
        raise FoldingError("there are no kernels for this CPU, or none could be compiled")
    if manifest.precision != "int8":
        raise FoldingError(f"its precision is {manifest.precision}")
    try:
        weights = read_weights(artifact.file(ONNX))
    except WeightsError as error:
        raise ArtifactError(f"{artifact.path.name}: {error}") from None
    return Native(library, fold(manifest.architecture, manifest.config, weights))


def best() -> Library | None:
    """The fastest kernels that were compiled and that this CPU can run; before them, those asked for."""
    asked = os.environ.get(CHOICE)
    for kernel in sorted(KERNELS, key=lambda name: name != asked):
        for suffix in EXTENSION_SUFFIXES:
            file = LIBRARIES / f"{kernel}{suffix}"
            if not file.exists():
                continue
            try:
                library = Library(file)
            except (OSError, AttributeError):  # for another platform, or of another version
                continue
            if library.supported:
                return library
    return None


def quantise(product: Product) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(N, K) in int8 and a scale for each row."""
    largest = np.abs(product.weight).max(axis=1)
    scale = np.where(largest > np.finfo(np.float32).tiny * 127, largest / 127, 1)
    weight = np.rint(product.weight / scale[:, None])
    return np.ascontiguousarray(weight, np.int8), np.ascontiguousarray(scale, np.float32)


def _shape(folded: Folded) -> Shape:
    traits = folded.traits
    if traits.activation not in ACTIVATIONS:
        raise FoldingError(f"the activation {traits.activation!r} is not supported")
    return Shape(
        layers=len(folded.order),
        hidden=folded.hidden,
        inner=folded.inner,
        intermediate=folded.intermediate,
        heads=traits.heads,
        feed_forward=len(traits.feed_forward),
        activation=ACTIVATIONS[traits.activation],
        embedding=folded.words.shape[1],
        vocabulary=folded.words.shape[0],
        positions=len(folded.vectors["embeddings.position"]),
        token_types=len(folded.vectors["embeddings.token_type"]),
        outputs=folded.outputs,
        window=traits.embedding.window,
        projection=PROJECTIONS[traits.embedding.projection],
        embedding_norm=traits.embedding.norm == "layer_norm",
        layer_norm=traits.norm == "layer_norm",
        bottleneck=traits.bottleneck is not None,
        epsilon=folded.epsilon,
    )


def _check(status: int) -> None:
    if status:
        raise (MemoryError if status == 1 else ValueError)(FAULTS[status])
