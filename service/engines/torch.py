"""torch on a CUDA device in bf16, or on the CPU in fp32 if there is no such device.

The engine runs the folded network over the ragged batch (`models/ragged`), without padding. On a CUDA device, batches
of usual sizes are CUDA graphs. If folding does not support the network, the engine runs the network of `models.heads`,
padded. It reads the weights from the artifact's `model.safetensors`, or from its `model.onnx` if there is no such file,
with int8 weights converted back. It does not use fp16, because MobileBERT's hidden states overflow fp16.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import ClassVar, Final

import numpy as np
import onnx
import torch
from safetensors.torch import load_file

from swiftlet_serve.models.artifact import ONNX, SAFETENSORS, Artifact, ArtifactError
from swiftlet_serve.models.folding import FoldingError, fold
from swiftlet_serve.models.graphs.quantize import read_weights
from swiftlet_serve.models.heads import Model, build
from swiftlet_serve.models.ragged.buckets import buckets
from swiftlet_serve.models.ragged.fusion import use_triton
from swiftlet_serve.models.ragged.layout import Layout
from swiftlet_serve.models.ragged.network import Network
from swiftlet_serve.models.ragged.products import MakeProduct, in_floats
from swiftlet_serve.models.ragged.ranking import rows_of
from swiftlet_serve.models.ragged.static import StaticRunner
from swiftlet_serve.service.devices import CUDA_VISIBLE_DEVICES, NAME
from swiftlet_serve.service.errors import SetupError
from swiftlet_serve.service.types import Batch, Cost, Engine, Row

log = logging.getLogger(__name__)

CALLS: Final = 2  # in flight on a GPU: the ids of one are copied, and its rows, while the other one computes
GRAPH_MEMORY_SHARE: Final = 0.25  # of a GPU's free memory, for the CUDA graphs of one model
ON_GPU: Final = Cost(padded=False, call_tokens=1024, max_tokens=16384, max_rows=512, max_calls=CALLS)
# A call costs as much as 24 tokens on the CPU, like a graph in `onnx_cpu`.
ON_CPU: Final = Cost(padded=False, call_tokens=24, max_tokens=512, max_rows=64)


class RaggedTorch:
    """A folded network, on ragged batches."""

    runs_network: ClassVar[bool] = True

    def __init__(
        self, network: Network, device: torch.device, longest: int, runners: Sequence[StaticRunner] = ()
    ) -> None:
        """Runs a network on its device.

        Args:
            network: the network.
            device: the device that it is on.
            longest: the length of the longest sequence that may come.
            runners: its static batches, once for each call in flight; without them every batch runs as it is.
        """
        self.network, self.longest = network, longest
        self._device = device
        self._runners: SimpleQueue[StaticRunner] = SimpleQueue()  # those that no call uses now
        self._has_runners = bool(runners)
        for runner in runners:
            self._runners.put(runner)
        self._most_tokens = self.cost.max_tokens  # lower after a batch that the memory did not hold

    @property
    def title(self) -> str:
        return f"torch ({self._device.type})"

    @property
    def extra_tolerance(self) -> float:
        return 0.05 if self._device.type == "cuda" else 0.0  # bf16 has 8 significant bits

    @property
    def cost(self) -> Cost:
        return ON_GPU if self._device.type == "cuda" else ON_CPU

    def run(self, batch: Batch) -> Sequence[Row]:
        if not len(batch.focus):
            return rows_of(torch.empty(0, self.network.outputs), batch)
        if len(batch.input_ids) > self._most_tokens and len(batch) > 1:
            return self._run_halves(batch)
        try:
            with torch.inference_mode():
                return self._compute(batch)
        except torch.OutOfMemoryError:
            if len(batch) == 1:
                raise
            self._lower_limit(len(batch.input_ids) // 2)
            return self._run_halves(batch)

    def _compute(self, batch: Batch) -> Sequence[Row]:
        if not self._has_runners:
            return rows_of(self.network(Layout.of(batch).to(self._device)), batch)
        runner = self._runners.get()
        try:
            with runner.stream():
                outputs = runner.run(batch)
                if outputs is None:
                    outputs = self.network(Layout.of(batch).to(self._device))
                return rows_of(outputs, batch)
        finally:
            self._runners.put(runner)

    def _run_halves(self, batch: Batch) -> Sequence[Row]:
        encodings, half = batch.encodings(), len(batch) // 2
        return [row for part in (encodings[:half], encodings[half:]) for row in self.run(Batch.of(part))]

    def _lower_limit(self, tokens: int) -> None:
        """Runs larger batches in parts from now on."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._most_tokens = max(self.longest, min(self._most_tokens, tokens))
        log.warning("%s is out of memory. Batches have at most %d tokens now.", self.title, self._most_tokens)

    def close(self) -> None:
        del self.network, self._runners


class PaddedTorch:
    """A network that folding does not support, on padded batches."""

    runs_network: ClassVar[bool] = True

    def __init__(self, network: Model, device: torch.device, dtype: torch.dtype | None = None) -> None:
        self._device = device
        dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._network = network.to(device=device, dtype=dtype).eval()

    @property
    def title(self) -> str:
        return f"torch ({self._device.type}, padded)"

    @property
    def extra_tolerance(self) -> float:
        return 0.05 if self._device.type == "cuda" else 0.0

    @property
    def cost(self) -> Cost:
        if self._device.type == "cuda":
            return Cost(padded=True, call_tokens=1024, max_tokens=16384, max_rows=512, max_calls=1)
        return Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Sequence[Row]:
        padded = batch.padded()
        rows = self._network(*(torch.from_numpy(array).to(self._device) for array in padded))
        return batch.split_rows(rows.float().cpu().numpy())

    def compile(self) -> None:
        """Compiles the network when it first runs. Only benchmarks do."""
        self._network.compile(dynamic=True)

    def close(self) -> None:
        del self._network


def create(artifact: Artifact, threads: int) -> Engine:
    """Loads the artifact's network onto the best device.

    Raises:
        ArtifactError: the weights do not match the manifest.
        SetupError: `CUDA_VISIBLE_DEVICES` names a device that torch does not find.
    """
    torch.set_num_threads(threads)
    named = os.environ.get(CUDA_VISIBLE_DEVICES, "")
    if NAME.match(named) and not torch.cuda.is_available():
        raise SetupError(f"torch finds no GPU {named}. It needs a torch for CUDA and NVIDIA's driver.")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_network(artifact)
    return ragged_engine(artifact, model, device) or PaddedTorch(model, device)


@torch.inference_mode()
def ragged_engine(
    artifact: Artifact, model: Model, device: torch.device, make_product: MakeProduct = in_floats
) -> RaggedTorch | None:
    """Returns the ragged form of a loaded network on a device, or None if folding does not support it."""
    manifest = artifact.manifest
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    try:
        folded = fold(manifest.architecture, manifest.config, weights, 1, manifest.embedding)
    except FoldingError as reason:
        log.info("model %s runs on padded batches: %s", manifest.name, reason)
        return None
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    network, longest = Network(folded, device, dtype, make_product), model.encoder.max_tokens
    use_triton(network, device)
    runners = []
    if device.type == "cuda" and network.has_static_shapes:
        free, _ = torch.cuda.mem_get_info(device)
        sizes = list(buckets(ON_GPU.max_tokens, ON_GPU.max_rows, every_token=manifest.head == "token"))
        share = int(GRAPH_MEMORY_SHARE * free / CALLS)
        runners = [StaticRunner(network, device, sizes, longest, share) for _ in range(CALLS)]
    return RaggedTorch(network, device, longest, runners)


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
    return network.eval()


def _check(own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], name: str) -> None:
    for key in sorted(own.keys() | weights.keys()):
        if key not in own or key not in weights or own[key].shape != weights[key].shape:
            raise ArtifactError(f"{name}: the weights do not match the manifest: they differ in {key}.")


def _weights(artifact: Artifact) -> dict[str, torch.Tensor]:
    if SAFETENSORS in artifact.manifest.files:
        return load_file(artifact.file(SAFETENSORS))
    arrays = read_weights(onnx.load(artifact.file(ONNX), load_external_data=False))
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
