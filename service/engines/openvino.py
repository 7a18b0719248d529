"""OpenVINO on the CPU, in bf16 where the CPU multiplies that, else in fp32.

It runs an artifact's `model.onnx` as it stands, padded. Weights that are stored in int8 are multiplied as floats.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import openvino

from swiftlet_serve.models.artifact import ONNX, Artifact, ArtifactError, check_self_contained
from swiftlet_serve.service.settings import usable_cores
from swiftlet_serve.service.types import Batch, Cost, PaddedBatch, Row


class OpenVino:
    # As of a padded graph in `onnx_cpu`.
    cost: ClassVar[Cost] = Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True

    def __init__(self, model: Path, threads: int, calls: int) -> None:
        """For so many calls at the same time, of so many threads each.

        Raises:
            ArtifactError: the file is no network, or not one that is served here.
        """
        hints = {
            "NUM_STREAMS": calls,
            "INFERENCE_NUM_THREADS": calls * threads,
            "ENABLE_CPU_PINNING": False,  # others use these cores, too
            # What it keeps for each shape: without a bound half a gigabyte of a small network, and hardly faster.
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
            raise ArtifactError(f"{model.parent.name}: {model.name} has inputs or outputs of other names.")
        precision = self._network.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        self.title = f"openvino ({precision})"
        self.extra_tolerance = 0.0 if precision == "f32" else 0.05  # bf16 keeps 8 bits, and layers add up
        self._own = threading.local()

    def run(self, batch: Batch) -> Sequence[Row]:
        return batch.split_rows(self._request().infer(batch.padded()._asdict())["rows"])

    def _request(self) -> Any:
        """This thread's: a request is for one call at a time."""
        if not hasattr(self._own, "request"):
            self._own.request = self._network.create_infer_request()
        return self._own.request

    def close(self) -> None:
        del self._network, self._own


def create(artifact: Artifact, threads: int) -> OpenVino:
    """The artifact's network as it stands.

    Raises:
        ArtifactError: `model.onnx` is no network, or not one that is served here.
    """
    return OpenVino(artifact.file(ONNX), threads, usable_cores())
