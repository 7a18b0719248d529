"""torch on a CUDA device in bf16, or on the CPU in fp32 if there is no such device.

The engine runs the networks of `models`. It reads the weights from the artifact's `model.safetensors`, or from its
`model.onnx` if there is no such file, with int8 weights converted back. It does not use fp16, because MobileBERT's
hidden states overflow fp16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import onnx
import torch
from safetensors.torch import load_file

from swiftlet_serve.models.artifact import ONNX, SAFETENSORS, Artifact, ArtifactError
from swiftlet_serve.models.graphs.quantize import read_weights
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.service.types import Batch, Cost, Row


class Torch:
    """A network in torch."""

    runs_network: ClassVar[bool] = True

    def __init__(self, network: Model, device: torch.device, dtype: torch.dtype | None = None) -> None:
        self._device = device
        dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._network = network.to(device=device, dtype=dtype).eval()

    @property
    def title(self) -> str:
        return f"torch ({self._device.type})"

    @property
    def extra_tolerance(self) -> float:
        return 0.05 if self._device.type == "cuda" else 0.0  # bf16 has 8 significant bits

    @property
    def cost(self) -> Cost:
        # On the CPU like a padded graph in `onnx_cpu`. A GPU is busy only with batches of thousands of tokens.
        if self._device.type == "cuda":
            return Cost(padded=True, call_tokens=1024, max_tokens=16384, max_rows=512, max_calls=1)
        return Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Sequence[Row]:
        padded = batch.padded()
        rows = self._network(*(torch.from_numpy(array).to(self._device) for array in padded))
        return batch.split_rows(rows.float().cpu().numpy())

    def close(self) -> None:
        del self._network


def create(artifact: Artifact, threads: int) -> Torch:
    """Loads the artifact's network onto the best device.

    Raises:
        ArtifactError: the weights do not match the manifest.
    """
    torch.set_num_threads(threads)
    return Torch(load_network(artifact), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def load_network(artifact: Artifact) -> Model:
    """Loads the artifact's network in fp32.

    Raises:
        ArtifactError: the weights do not match the manifest.
    """
    manifest, name = artifact.manifest, artifact.path.name
    try:
        network = build(manifest.architecture, manifest.config, manifest.head, manifest.width, manifest.embedding)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArtifactError(f"{name}: the manifest does not describe a valid network: {error}") from None
    try:
        weights = _weights(artifact)
    except Exception as error:  # neither of the libraries documents its exceptions
        raise ArtifactError(f"{name}: the weights cannot be read: {type(error).__name__}.") from None
    _check(network.state_dict(), weights, name)
    network.load_state_dict(weights)
    return network


def _check(own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], name: str) -> None:
    for key in sorted(own.keys() | weights.keys()):
        if key not in own or key not in weights or own[key].shape != weights[key].shape:
            raise ArtifactError(f"{name}: the weights do not match the manifest: they differ in {key}.")


def _weights(artifact: Artifact) -> dict[str, torch.Tensor]:
    if SAFETENSORS in artifact.manifest.files:
        return load_file(artifact.file(SAFETENSORS))
    arrays = read_weights(onnx.load(artifact.file(ONNX), load_external_data=False))
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
