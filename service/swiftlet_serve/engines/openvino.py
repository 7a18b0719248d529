"""OpenVINO on the CPU, in bf16 if the CPU supports it, and in fp32 if not.

The engine runs the ragged graph of `onnx_cpu`, and multiplies int8 weights as floats.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import openvino

from swiftlet_models.artifact import Artifact, ArtifactError
from swiftlet_models.folded import Folded, FoldingError
from swiftlet_models.folding import fold_artifact
from swiftlet_models.graphs.ragged import in_fp32, ragged
from swiftlet_models.tensors import WeightsError
from swiftlet_models.weights import open_weights
from swiftlet_serve.engines.onnx_cpu import ragged_inputs
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.types import Batch, Cost, Row


class OpenVino:
    """A folded network, on ragged batches."""

    # Like the ragged graph in `onnx_cpu`.
    cost: ClassVar[Cost] = Cost(padded=False, padded_attention=True, call_tokens=16, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True

    def __init__(self, folded: Folded, threads: int, calls: int) -> None:
        """Prepares the graph for `calls` calls at the same time, of `threads` threads each."""
        hints = {
            "NUM_STREAMS": calls,
            "INFERENCE_NUM_THREADS": calls * threads,
            "ENABLE_CPU_PINNING": False,  # other processes use these cores, too
            # OpenVINO caches code for each shape. Without a bound, a small network takes half a gigabyte and is hardly
            # faster.
            "CPU_RUNTIME_CACHE_CAPACITY": 200,
        }
        graph = openvino.Core().read_model(ragged(folded, in_fp32))
        self._network: Any = openvino.compile_model(graph, "CPU", hints)
        self._names = [value.names for value in self._network.inputs]  # OpenVINO adds names of its own
        self._outputs = folded.outputs
        precision = self._network.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.title = f"openvino ({precision})"
        self.extra_tolerance = 0.0 if precision == "f32" else 0.05  # bf16 has 8 significant bits
        self._own = threading.local()

    def run(self, batch: Batch) -> Sequence[Row]:
        if not len(batch.focus):
            return batch.split_rows(np.empty((0, self._outputs), np.float32))
        arrays = ragged_inputs(batch)
        inputs = [arrays[next(name for name in names if name in arrays)] for names in self._names]
        return batch.split_rows(self._request().infer(inputs)["rows"])

    def _request(self) -> Any:
        """Returns this thread's inference request. A request runs one call at a time."""
        if not hasattr(self._own, "request"):
            self._own.request = self._network.create_infer_request()
        return self._own.request

    def close(self) -> None:
        del self._network, self._own


def create(artifact: Artifact, threads: int) -> OpenVino:
    """Loads the artifact's network.

    Raises:
        ArtifactError: the file of the parameters cannot be read, or does not hold the parameters of the manifest's
            network; or no architecture describes the network.
    """
    try:
        with open_weights(artifact.weights) as weights:
            return OpenVino(fold_artifact(artifact, weights, 1), threads, usable_cores())
    except WeightsError as error:
        raise ArtifactError(f"{artifact.path.name}: {error}") from None
    except FoldingError as error:
        raise ArtifactError(f"{artifact.path.name}: OpenVINO cannot run the network: {error}.") from None
