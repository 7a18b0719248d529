"""OpenVINO on the CPU, in bf16 if the CPU supports it, and in fp32 if not.

The engine runs the graph in the artifact's `model.onnx`, padded. It multiplies int8 weights as floats.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import openvino

from swiftlet_models.artifact import ONNX, Artifact, ArtifactError, check_self_contained
from swiftlet_models.graphs.reader import WeightsError, open_weights
from swiftlet_models.parameters import check_artifact
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.types import Batch, Cost, PaddedBatch, Row


class OpenVino:
    """The exported graph, on padded batches."""

    # Like a padded graph in `onnx_cpu`.
    cost: ClassVar[Cost] = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True

    def __init__(self, model: Path, threads: int, calls: int) -> None:
        """Prepares the graph for `calls` calls at the same time, of `threads` threads each.

        Raises:
            ArtifactError: the file cannot be loaded, or has unexpected inputs or outputs.
        """
        hints = {
            "NUM_STREAMS": calls,
            "INFERENCE_NUM_THREADS": calls * threads,
            "ENABLE_CPU_PINNING": False,  # other processes use these cores, too
            # OpenVINO caches code for each shape. Without a bound, a small network takes half a gigabyte and is hardly
            # faster.
            "CPU_RUNTIME_CACHE_CAPACITY": 200,
        }
        check_self_contained(model)
        try:
            self._network: Any = openvino.compile_model(model, "CPU", hints)
        except RuntimeError as error:
            raise ArtifactError(f"{model.parent.name}: {model.name} cannot be loaded: {error}") from None
        inputs = {value.any_name for value in self._network.inputs}
        outputs = [value.any_name for value in self._network.outputs]
        if inputs != {*PaddedBatch._fields} or outputs != ["rows"]:
            raise ArtifactError(f"{model.parent.name}: {model.name} has unexpected inputs or outputs.")
        precision = self._network.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.title = f"openvino ({precision})"
        self.extra_tolerance = 0.0 if precision == "f32" else 0.05  # bf16 has 8 significant bits
        self._own = threading.local()

    def run(self, batch: Batch) -> Sequence[Row]:
        return batch.split_rows(self._request().infer(batch.padded()._asdict())["rows"])

    def _request(self) -> Any:
        """Returns this thread's inference request. A request runs one call at a time."""
        if not hasattr(self._own, "request"):
            self._own.request = self._network.create_infer_request()
        return self._own.request

    def close(self) -> None:
        del self._network, self._own


def create(artifact: Artifact, threads: int) -> OpenVino:
    """Loads the artifact's exported graph.

    Raises:
        ArtifactError: `model.onnx` cannot be loaded, has unexpected inputs or outputs, or does not hold the parameters
            of the manifest's network.
    """
    file = artifact.file(ONNX)
    try:
        with open_weights(file) as weights:
            check_artifact(artifact, {name: weight.shape for name, weight in weights.items()})
    except WeightsError as error:
        raise ArtifactError(f"{artifact.path.name}: {error}") from None
    return OpenVino(file, threads, usable_cores())
