"""torch on a CUDA device in bf16, or on the CPU in fp32 if there is no such device.

The engine runs the folded network over the ragged batch (`swiftlet_models/ragged`), without padding. On a CUDA device,
batches of usual sizes are CUDA graphs. If folding does not support the network, the engine runs the network of
`swiftlet_models.heads`, padded. It reads the fp32 weights of the artifact, or, without these, its
int8 weights, converted back. It does not use fp16, because MobileBERT's hidden states
overflow fp16.
"""

from __future__ import annotations

import logging
import os
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from threading import Lock
from typing import ClassVar, Final

import numpy as np
import torch

from swiftlet_models.artifact import SAFETENSORS, Artifact, ArtifactError
from swiftlet_models.folded import FoldingError
from swiftlet_models.folding import Part, fold
from swiftlet_models.heads import Model, build
from swiftlet_models.parameters import check_artifact
from swiftlet_models.ragged.buckets import buckets
from swiftlet_models.ragged.fusion import use_triton
from swiftlet_models.ragged.layout import Layout
from swiftlet_models.ragged.network import Network
from swiftlet_models.ragged.products import MakeProduct, in_floats, in_fp8, in_int8
from swiftlet_models.ragged.ranking import rows_of
from swiftlet_models.ragged.static import StaticRunner
from swiftlet_models.tensors import Adapted, WeightsError
from swiftlet_models.weights import open_weights, read_weights
from swiftlet_serve.engines._shared_trunk import SharedTrunk
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.devices import CUDA_VISIBLE_DEVICES, NAME
from swiftlet_serve.types import Batch, Cost, Engine, Row

log = logging.getLogger(__name__)

AMPERE: Final = (8, 0)  # capability of the first GPUs with bf16 and flash attention
CALLS: Final = 2  # in flight on a GPU: the ids of one are copied, and its rows, while the other one computes
GRAPH_MEMORY_SHARE: Final = 0.25  # of a GPU's free memory, for the CUDA graphs of one model
ON_GPU: Final = Cost(padded=False, call_tokens=1024, max_tokens=16384, max_rows=512, max_calls=CALLS)
PRECISIONS: Final[Mapping[str, tuple[torch.dtype, MakeProduct]]] = {
    "bf16": (torch.bfloat16, in_floats),
    "fp16": (torch.float16, in_floats),
    "int8": (torch.bfloat16, in_int8),
    "fp8": (torch.bfloat16, in_fp8),
}
"""The type of the activations on a GPU, and the products. On the CPU, activations are in fp32."""
# A call costs as much as 24 tokens on the CPU, like a graph in `onnx_cpu`.
ON_CPU: Final = Cost(padded=False, call_tokens=24, max_tokens=512, max_rows=64)


class InParts(ABC):
    """An engine that runs a batch in parts if the memory does not hold it at once."""

    runs_network: ClassVar[bool] = True

    def __init__(self, device: torch.device, longest: int) -> None:
        """`longest` is the length of the longest sequence that may come."""
        self.longest = longest
        self._device = device
        self._most_tokens = self.cost.max_tokens  # lower after a batch that the memory did not hold

    @property
    @abstractmethod
    def title(self) -> str: ...

    @property
    @abstractmethod
    def cost(self) -> Cost: ...

    @property
    def extra_tolerance(self) -> float:
        return 0.05 if self._device.type == "cuda" else 0.0  # bf16 has 8 significant bits

    @abstractmethod
    def _compute(self, batch: Batch) -> Sequence[Row]:
        """Runs a batch. Raises RuntimeError if the memory does not hold it."""

    def _compute_alone(self, batch: Batch) -> Sequence[Row]:
        """Runs one sequence that the memory did not hold beside other calls."""
        return self._compute(batch)

    def run(self, batch: Batch) -> Sequence[Row]:
        tokens = self._charged(batch)
        if tokens > self._most_tokens and len(batch) > 1:
            return self._run_halves(batch)
        try:
            with torch.inference_mode():
                return self._compute(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        # Not in the handler, because the error's traceback holds the tensors of the call that failed.
        self._free_cached()
        if len(batch) == 1:
            with torch.inference_mode():
                return self._compute_alone(batch)
        self._most_tokens = max(self.longest, min(self._most_tokens, tokens // 2))
        log.warning("%s is out of memory. Batches have at most %d tokens now.", self.title, self._most_tokens)
        return self._run_halves(batch)

    def _charged(self, batch: Batch) -> int:
        lengths = np.diff(batch.offsets)
        return int(len(lengths) * lengths.max()) if self.cost.padded else len(batch.input_ids)

    def _run_halves(self, batch: Batch) -> Sequence[Row]:
        encodings, half = batch.encodings(), len(batch) // 2
        return [row for part in (encodings[:half], encodings[half:]) for row in self.run(Batch.of(part))]

    def _free_cached(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


class RaggedTorch(InParts):
    """A folded network, on ragged batches."""

    def __init__(
        self,
        network: Network,
        device: torch.device,
        longest: int,
        runners: Sequence[StaticRunner] = (),
        *,
        reads_all: bool = False,
    ) -> None:
        """Runs a network on its device.

        Args:
            network: the network.
            device: the device that it is on.
            longest: the length of the longest sequence that may come.
            runners: its static batches, once for each call in flight; without them every batch runs as it is.
            reads_all: whether its head reads all tokens, and not those in focus alone.
        """
        super().__init__(device, longest)
        self.network, self.reads_all = network, reads_all
        self._runners: SimpleQueue[StaticRunner] = SimpleQueue()  # those that no call uses now
        self._calls = len(runners)
        self._alone = Lock()
        for runner in runners:
            self._runners.put(runner)

    @property
    def title(self) -> str:
        return f"torch ({self._device.type})"

    @property
    def cost(self) -> Cost:
        return ON_GPU if self._device.type == "cuda" else ON_CPU

    def _compute(self, batch: Batch) -> Sequence[Row]:
        if not len(batch.focus):
            return rows_of(torch.empty(0, self.network.outputs), batch)
        if not self._calls:
            return rows_of(self.network(Layout.of(batch).to(self._device)), batch)
        runner = self._runners.get()
        try:
            return self._compute_with(runner, batch)
        except RuntimeError as error:
            # The traceback holds the tensors of the failed call. They are free before another call gets the runner.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            self._runners.put(runner)

    def _compute_with(self, runner: StaticRunner, batch: Batch) -> Sequence[Row]:
        with runner.stream():
            outputs = runner.run(batch)
            if outputs is None:
                outputs = self.network(Layout.of(batch).to(self._device))
            return rows_of(outputs, batch)

    def _compute_alone(self, batch: Batch) -> Sequence[Row]:
        """Waits until no other call runs. If the memory is still too small, it gives up the static batches."""
        if not self._calls:
            return self._compute(batch)
        with self._alone:
            runners = [self._runners.get() for _ in range(self._calls)]
            try:
                self._free_cached()
                try:
                    return self._compute_with(runners[0], batch)
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                log.warning("%s is out of memory. It gives up its CUDA graphs for one sequence.", self.title)
                for runner in runners:
                    runner.clear()
                self._free_cached()
                return self._compute_with(runners[0], batch)
            finally:
                for runner in runners:
                    self._runners.put(runner)

    def close(self) -> None:
        del self.network, self._runners
        self._free_cached()


class PaddedTorch(InParts):
    """A network that folding or the kernels for ragged batches do not support, on padded batches."""

    def __init__(self, network: Model, device: torch.device, dtype: torch.dtype | None = None) -> None:
        super().__init__(device, network.encoder.max_tokens)
        dtype = dtype or (torch.bfloat16 if has_ragged_kernels(device) else torch.float32)
        self._network = network.to(device=device, dtype=dtype).eval()

    @property
    def title(self) -> str:
        return f"torch ({self._device.type}, padded)"

    @property
    def cost(self) -> Cost:
        if self._device.type == "cuda":
            return Cost(padded=True, call_tokens=1024, max_tokens=16384, max_rows=512, max_calls=1)
        return Cost(padded=True, call_tokens=24, max_tokens=512, max_rows=64)

    def _compute(self, batch: Batch) -> Sequence[Row]:
        padded = batch.padded()
        rows = self._network(*(torch.from_numpy(array).to(self._device) for array in padded))
        return batch.split_rows(rows.float().cpu().numpy())

    def compile(self) -> None:
        """Compiles the network when it first runs. Only benchmarks do."""
        self._network.compile(dynamic=True)

    def close(self) -> None:
        del self._network
        self._free_cached()


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether a device has too little memory. torch has an exception for its own memory only."""
    text = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "ALLOC_FAILED" in text


def has_ragged_kernels(device: torch.device) -> bool:
    """Returns whether attention without padding, and bf16, are available: on GPUs since Ampere."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE


def create(artifact: Artifact, threads: int) -> Engine:
    """Loads the artifact's network onto the best device.

    Raises:
        ArtifactError: the weights do not match the manifest.
        SetupError: `CUDA_VISIBLE_DEVICES` names a device that torch does not find.
    """
    device, model = _device(threads), load_network(artifact)
    return ragged_engine(artifact, model, device) or PaddedTorch(model, device)


def create_heads(artifacts: Sequence[Artifact], threads: int) -> Engine:
    """Loads the heads of artifacts that share a trunk, and the trunk once, onto the best device.

    Hidden states go through the memory of the host.

    Raises:
        FoldingError: folding does not support one of the networks, or an adapter changes one.
        ArtifactError, SetupError: as `create`.
    """
    for artifact in artifacts:
        with open_weights(artifact.weights) as weights:
            if any(isinstance(weight, Adapted) for weight in weights.values()):
                raise FoldingError("an adapter is merged into its encoder")
    device, engines = _device(threads), list[RaggedTorch]()
    for artifact in artifacts:
        model = load_network(artifact)
        parts: tuple[Part, ...] = ("head",) if engines else ("trunk", "head")
        for part in parts:
            engine = ragged_engine(artifact, model, device, part=part)
            if engine is None:
                raise FoldingError("one of the networks runs on padded batches")
            engines.append(engine)
    return SharedTrunk(engines[0], engines[1:])


def _device(threads: int) -> torch.device:
    torch.set_num_threads(threads)
    named = os.environ.get(CUDA_VISIBLE_DEVICES, "")
    if NAME.match(named) and not torch.cuda.is_available():
        raise SetupError(f"torch finds no GPU {named}. It needs a torch for CUDA and NVIDIA's driver.")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.inference_mode()
def ragged_engine(
    artifact: Artifact, model: Model, device: torch.device, precision: str = "bf16", part: Part = "network"
) -> RaggedTorch | None:
    """Returns the ragged form of a loaded network, or of a part, on a device; None if folding does not support it.

    `precision` is one of `PRECISIONS`. A server uses bf16; the others are for comparison.
    """
    manifest = artifact.manifest
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    try:
        folded = fold(manifest.architecture, manifest.config, weights, 1, manifest.embedding, part)
    except FoldingError as reason:
        log.info("model %s runs on padded batches: %s", manifest.name, reason)
        return None
    if device.type == "cuda" and not has_ragged_kernels(device):
        log.warning("model %s runs on padded batches in fp32, because the GPU is older than Ampere", manifest.name)
        return None
    dtype, make_product = PRECISIONS[precision]
    if device.type != "cuda":
        dtype = torch.float32
    network, longest = Network(folded, device, dtype, make_product), model.encoder.max_tokens
    if part == "head":  # it takes little time, and its batches have many sizes
        return RaggedTorch(network, device, longest, reads_all=folded.reads_all)
    use_triton(network, device)
    runners = []
    if device.type == "cuda":  # also without graphs, because a runner has a stream
        free, _ = torch.cuda.mem_get_info(device)
        sizes = list(buckets(ON_GPU.max_tokens, ON_GPU.max_rows, manifest.head)) if network.has_static_shapes else []
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
        arrays = read_weights(artifact.file(SAFETENSORS) if SAFETENSORS in manifest.files else artifact.weights)
    except WeightsError as error:
        raise ArtifactError(f"{name}: {error}") from None
    weights = {key: torch.from_numpy(array) for key, array in arrays.items()}
    check_artifact(artifact, {key: tuple(tensor.shape) for key, tensor in weights.items()})
    try:
        network = build(manifest.architecture, manifest.config, manifest.head, manifest.width, manifest.embedding)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArtifactError(f"{name}: the manifest does not describe a valid network: {error}") from None
    _check(network.state_dict(), weights, name)
    network.load_state_dict(weights)
    return network.eval()


def _check(own: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], name: str) -> None:
    for key in sorted(own.keys() | weights.keys()):
        if key not in own or key not in weights or own[key].shape != weights[key].shape:
            raise ArtifactError(f"{name}: the weights do not match the manifest: they differ in {key}.")
