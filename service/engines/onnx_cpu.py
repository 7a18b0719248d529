"""ONNX Runtime on the CPU: an artifact's `model.onnx`, int8 or fp32."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

# ONNX Runtime reports to its makers, also on Linux, unless it is told not to before it is loaded: its own
# `disable_telemetry_events` comes after it has made itself an id and a database in the home directory.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

from models.artifact import ONNX, Artifact, ArtifactError
from service.types import Batch, Cost, Rectangle, Row


class OnnxCpu:
    title: ClassVar[str] = "onnx_cpu"
    # Measured on two cores with MobileBERT int8 (ONNX Runtime 1.31): a call costs about as much as 24 tokens, and a
    # batch of about 512 padded tokens reaches the most sequences a second on short and on mixed text alike. A larger
    # one is no faster, makes everyone in it wait, and is several times slower where lengths differ.
    cost: ClassVar[Cost] = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    faithful: ClassVar[bool] = True
    rounding: ClassVar[float] = 0.0

    def __init__(self, model: Path, threads: int) -> None:
        """Raises ArtifactError for a file that is no network, or not one that is served here."""
        _refuse_external_data(model)
        try:
            self._session = ort.InferenceSession(model, _options(threads), providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own exceptions have no common class but this
            raise ArtifactError(f"{model.parent.name}: {model.name} cannot be loaded: {error}") from None
        inputs = tuple(sorted(value.name for value in self._session.get_inputs()))
        outputs = tuple(value.name for value in self._session.get_outputs())
        if inputs != tuple(sorted(Rectangle._fields)) or outputs != ("rows",):
            raise ArtifactError(f"{model.parent.name}: {model.name} has inputs or outputs of other names.")

    def run(self, batch: Batch) -> Sequence[Row]:
        (rows,) = self._session.run(["rows"], batch.rectangle()._asdict())
        return batch.split(rows)

    def close(self) -> None:
        del self._session


def create(artifact: Artifact, threads: int) -> OnnxCpu:
    return OnnxCpu(artifact.file(ONNX), threads)


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


def _refuse_external_data(model: Path) -> None:
    """A graph may name other files to read tensors from. Ours never do, and nobody else's shall.

    To name one, the key "location" has to stand in the file; the format knows no other spelling.
    """
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"location") >= 0:
            raise ArtifactError(f"{model.parent.name}: {model.name} refers to data outside itself.")
