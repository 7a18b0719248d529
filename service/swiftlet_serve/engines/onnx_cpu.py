"""ONNX Runtime on the CPU, in int8 or fp32.

The engine builds a graph from the parameters when it loads an artifact. The network is folded as for the native engine
(`swiftlet_models/folding.py`). The graph is ragged, so that sequences of different lengths share a call and products
see no padding (`swiftlet_models/graphs/ragged.py`). If folding does not support the network, the engine runs the graph
in the artifact's `model.onnx`, padded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# ONNX Runtime sends telemetry, also on Linux. `disable_telemetry_events` is too late: by then it has created an id and
# a database in the home directory. The environment variable works if it is set before the import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

from swiftlet_models import architectures
from swiftlet_models.artifact import ACTIVATIONS, ONNX, Artifact, ArtifactError, check_self_contained
from swiftlet_models.folded import Folded, FoldingError
from swiftlet_models.folding import fold_artifact
from swiftlet_models.graphs.activations import from_arrays
from swiftlet_models.graphs.ragged import Multiplier, in_fp32, of_int8, ragged
from swiftlet_models.graphs.writer import CONTRIB, Graph
from swiftlet_models.tensors import WeightsError
from swiftlet_models.weights import open_weights, read_weights
from swiftlet_serve.types import Batch, Cost, Engine, PaddedBatch, Row


class PaddedOnnx:
    """The exported graph, on padded batches."""

    title: ClassVar[str] = "onnx_cpu"
    # Measured on two cores with MobileBERT int8 (ONNX Runtime 1.31): a call costs as much as 24 tokens, and batches of
    # 512 padded tokens give the highest throughput on short and on mixed text. Larger batches are not faster, delay all
    # of their requests, and are several times slower if lengths differ.
    cost: ClassVar[Cost] = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True
    extra_tolerance: ClassVar[float] = 0.0

    def __init__(self, model: Path, threads: int) -> None:
        """Raises ArtifactError if the file cannot be loaded, or has unexpected inputs or outputs."""
        check_self_contained(model)
        try:
            self._session = session(model, threads)
        except Exception as error:  # the exceptions of ONNX Runtime have no other common class
            raise ArtifactError(f"{model.parent.name}: {model.name} cannot be loaded: {error}") from None
        inputs = tuple(sorted(value.name for value in self._session.get_inputs()))
        outputs = tuple(value.name for value in self._session.get_outputs())
        if inputs != tuple(sorted(PaddedBatch._fields)) or outputs != ("rows",):
            raise ArtifactError(f"{model.parent.name}: {model.name} has unexpected inputs or outputs.")

    def run(self, batch: Batch) -> Sequence[Row]:
        (rows,) = self._session.run(["rows"], batch.padded()._asdict())
        return batch.split_rows(rows)

    def close(self) -> None:
        del self._session


class RaggedOnnx:
    """A folded network, on ragged batches."""

    title: ClassVar[str] = "onnx_cpu"
    # Measured on one core with MobileBERT int8 (ONNX Runtime 1.31): a call costs as much as 16 tokens.
    cost: ClassVar[Cost] = Cost(padded=False, padded_attention=True, call_tokens=16, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True

    def __init__(self, folded: Folded, multiply: Multiplier, threads: int) -> None:
        """Raises FoldingError if ONNX Runtime has no operator for the activation."""
        self._session = session(ragged(folded, multiply), threads)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = folded.outputs
        # The artifact's tolerance is for weights with one scale per block. Here they have one scale per output.
        self.extra_tolerance = 0.0 if multiply is in_fp32 else 0.05

    def run(self, batch: Batch) -> Sequence[Row]:
        if not len(batch.focus):
            return batch.split_rows(np.empty((0, self._outputs), np.float32))
        arrays = ragged_inputs(batch)
        (rows,) = self._session.run(["rows"], {name: arrays[name] for name in self._inputs})
        return batch.split_rows(rows)

    def close(self) -> None:
        del self._session


def create(artifact: Artifact, threads: int) -> Engine:
    """Loads the artifact's network: folded, or as exported if folding does not support it.

    Raises:
        ArtifactError: the file of the parameters cannot be read, or does not hold the parameters of the manifest's
            network; or no architecture describes the network, and `model.onnx` is missing, cannot be loaded, or has
            unexpected inputs or outputs.
    """
    manifest = artifact.manifest
    try:
        with open_weights(artifact.weights) as weights:
            folded = fold_artifact(artifact, weights, 1)
            if manifest.precision != "int8":
                return RaggedOnnx(folded, in_fp32, threads)
            ranges = None
            if ACTIVATIONS in manifest.files:
                ranges = from_arrays(read_weights(artifact.file(ACTIVATIONS)), folded)
            return RaggedOnnx(folded, of_int8(folded, signed=adds_in_32_bits(), ranges=ranges), threads)
    except WeightsError as error:
        if manifest.architecture in architectures.names():
            raise ArtifactError(f"{artifact.path.name}: {error}") from None
        return PaddedOnnx(artifact.file(ONNX), threads)
    except FoldingError as error:
        if ONNX not in manifest.files:
            raise ArtifactError(f"{artifact.path.name}: the network cannot be folded: {error}.") from None
        return PaddedOnnx(artifact.file(ONNX), threads)


def ragged_inputs(batch: Batch) -> Mapping[str, NDArray[Any]]:
    """Returns the inputs of the graphs that `swiftlet_models/graphs/ragged.py` builds."""
    lengths, focus_counts = np.diff(batch.offsets), np.diff(batch.focus_offsets)
    positions, spread, gathered = _layout(lengths)
    _, focus_spread, focus_gathered = _layout(focus_counts)
    tokens = np.arange(len(positions))
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "positions": positions,
        "before": np.where(positions > 0, tokens - 1, len(tokens)),
        "after": np.where(positions < np.repeat(lengths, lengths) - 1, tokens + 1, len(tokens)),
        "spread": spread,
        "gathered": gathered,
        "lengths": lengths.astype(np.int32),
        "attended": batch.attended.astype(np.int32),
        "focus": np.repeat(batch.offsets[:-1], focus_counts) + batch.focus,
        "focus_spread": focus_spread,
        "focus_gathered": focus_gathered,
        "owner": np.repeat(np.arange(len(batch)), focus_counts),
    }


def _layout(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Lays out B sequences of T tokens in all as B rows of S.

    Returns:
        The position of each token in its sequence (T,), the token at each place (B, S), and each token's place (T,).
        Places of padding hold the last token of their row.
    """
    ends = np.cumsum(lengths)
    tokens = np.arange(ends[-1])
    row = np.repeat(np.arange(len(lengths)), lengths)
    positions = tokens - (ends - lengths)[row]
    columns = np.arange(lengths.max())
    spread = (ends - lengths)[:, None] + np.minimum(columns, lengths[:, None] - 1)
    return positions, spread, row * len(columns) + positions


def session(model: Path | bytes, threads: int) -> ort.InferenceSession:
    """Creates a session. Each of its calls uses `threads` threads, which never spin.

    All sessions of the process share one memory arena.
    """
    _register_arena()
    return ort.InferenceSession(
        model,
        _options(threads),
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],  # its operator takes four times as long as a sum and a norm
    )


@cache
def adds_in_32_bits() -> bool:
    """Whether ONNX Runtime multiplies signed weights exactly on this CPU.

    With VNNI and with Arm's dot products, it adds products in 32 bits. With AVX2 or AVX-512 alone, it adds two in 16
    bits, which saturate. A product of the largest numbers tells, for one row and for several, whose kernels differ.
    """
    graph = Graph()
    weights = [graph.array("weights", np.full((64, 32), 127, np.int8)), graph.array("one", np.array(1, np.float32))]
    product = graph.add("MatMulIntegerToFloat", [graph.input("x", "uint8", 2), *weights, "one"], domain=CONTRIB)
    graph.output("y", "float32", 2, product)
    largest = session(graph.file(), 1)
    return all((largest.run(["y"], {"x": np.full((n, 64), 255, np.uint8)})[0] == 64 * 255 * 127).all() for n in (1, 9))


@cache
def _register_arena() -> None:
    """Registers one memory arena for all sessions of the process.

    An arena keeps its memory. After long texts for nine models, the process took 610 MiB with an arena for each of
    them, and 328 MiB with one. The arena also keeps the working memory of models that were closed, for others.
    """
    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT), None)


def _options(threads: int) -> ort.SessionOptions:
    # The memory arena stays enabled, because batches are bounded. Over 160 shapes of at most 512 tokens on two threads,
    # MobileBERT int8 took 142 MiB with the arena and 160 to 200 MiB without it.
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # leaves idle cores to other processes
    options.log_severity_level = 3
    return options
