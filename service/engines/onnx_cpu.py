"""ONNX Runtime on the CPU, int8 or fp32.

It does not run an artifact's `model.onnx` as it stands but a graph that is made while it is loaded, of the parameters
in there: folded as for the native engine (`models/folding.py`), and ragged, so that rows of different lengths share a
call and products see no padding (`models/graphs/ragged.py`). The file holds the weights once for all engines, and
artifacts that were made before are as fast. A network that cannot be folded runs as it stands, padded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# ONNX Runtime reports to its makers, also on Linux, unless it is told not to before it is loaded: its own
# `disable_telemetry_events` comes after it has made itself an id and a database in the home directory.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

from swiftlet_serve.models.artifact import ONNX, Artifact, ArtifactError, check_self_contained
from swiftlet_serve.models.folding import Folded, FoldingError, fold
from swiftlet_serve.models.graphs.ragged import Multiply, in_fp32, of_int8, ragged
from swiftlet_serve.models.graphs.reader import WeightsError, read_weights
from swiftlet_serve.service.types import Batch, Cost, Engine, PaddedBatch, Row


class OnnxCpu:
    """A graph as it stands."""

    title: ClassVar[str] = "onnx_cpu"
    # Measured on two cores with MobileBERT int8 (ONNX Runtime 1.31): a call costs about as much as 24 tokens, and a
    # batch of about 512 padded tokens reaches the most sequences a second on short and on mixed text alike. A larger
    # one is no faster, makes everyone in it wait, and is several times slower where lengths differ.
    cost: ClassVar[Cost] = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True
    extra_tolerance: ClassVar[float] = 0.0

    def __init__(self, model: Path, threads: int) -> None:
        """Raises ArtifactError for a file that is no network, or not one that is served here."""
        check_self_contained(model)
        try:
            self._session = session(model, threads)
        except Exception as error:  # the runtime's own exceptions have no common class but this
            raise ArtifactError(f"{model.parent.name}: {model.name} cannot be loaded: {error}") from None
        inputs = tuple(sorted(value.name for value in self._session.get_inputs()))
        outputs = tuple(value.name for value in self._session.get_outputs())
        if inputs != tuple(sorted(PaddedBatch._fields)) or outputs != ("rows",):
            raise ArtifactError(f"{model.parent.name}: {model.name} has inputs or outputs of other names.")

    def run(self, batch: Batch) -> Sequence[Row]:
        (rows,) = self._session.run(["rows"], batch.padded()._asdict())
        return batch.split_rows(rows)

    def close(self) -> None:
        del self._session


class Ragged:
    """A folded network, on batches without padding."""

    title: ClassVar[str] = "onnx_cpu"
    # Measured on one core with MobileBERT int8 (ONNX Runtime 1.31): a call costs about as much as 16 tokens.
    cost: ClassVar[Cost] = Cost(padded=False, padded_attention=True, call_tokens=16, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True

    def __init__(self, folded: Folded, multiply: Multiply, threads: int) -> None:
        """Raises FoldingError where ONNX Runtime does not know its activation."""
        self._session = session(ragged(folded, multiply), threads)
        self._inputs = [value.name for value in self._session.get_inputs()]
        self._outputs = folded.outputs
        # Beyond the tolerance, which is that of weights with a scale for each block: what is in 8 bits here has one for
        # each output.
        self.extra_tolerance = 0.0 if multiply is in_fp32 else 0.05

    def run(self, batch: Batch) -> Sequence[Row]:
        if not len(batch.focus):
            return batch.split_rows(np.empty((0, self._outputs), np.float32))
        given = inputs(batch)
        (rows,) = self._session.run(["rows"], {name: given[name] for name in self._inputs})
        return batch.split_rows(rows)

    def close(self) -> None:
        del self._session


def create(artifact: Artifact, threads: int) -> Engine:
    """The artifact's network folded, or as it stands where it is none that is known.

    Raises:
        ArtifactError: `model.onnx` is no network, or not one that is served here.
    """
    manifest, file = artifact.manifest, artifact.file(ONNX)
    try:
        folded = fold(manifest.architecture, manifest.config, read_weights(file), multiple=1)
        return Ragged(folded, of_int8(folded) if manifest.precision == "int8" else in_fp32, threads)
    except (FoldingError, WeightsError):
        return OnnxCpu(file, threads)


def inputs(batch: Batch) -> Mapping[str, NDArray[Any]]:
    """What `models/graphs/ragged.py` has for inputs."""
    lengths, read = np.diff(batch.offsets), np.diff(batch.focus_offsets)
    positions, spread, gathered = _spread(lengths)
    _, focus_spread, focus_gathered = _spread(read)
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
        "focus": np.repeat(batch.offsets[:-1], read) + batch.focus,
        "focus_spread": focus_spread,
        "focus_gathered": focus_gathered,
    }


def _spread(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of B rows end to end, T in all: positions (T,) in their rows, what is where in (B, S), where each is (T,)."""
    ends = np.cumsum(lengths)
    everything = np.arange(ends[-1])
    row = np.repeat(np.arange(len(lengths)), lengths)
    positions = everything - (ends - lengths)[row]
    spread = np.zeros((len(lengths), lengths.max()), np.int64)
    spread[row, positions] = everything
    return positions, spread, row * spread.shape[1] + positions


def session(model: Path | bytes, threads: int) -> ort.InferenceSession:
    """A session for calls of so many threads each, of which none spins."""
    return ort.InferenceSession(model, _options(threads), providers=["CPUExecutionProvider"])


def _options(threads: int) -> ort.SessionOptions:
    # The arena stays on. Over 160 shapes of at most 512 tokens on two threads, MobileBERT int8 took 142 MiB with it
    # from the first 40 on, and 160 to 200 MiB without. Batches are bounded, and so is what it keeps.
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # an idle core is somebody else's
    options.log_severity_level = 3
    return options
