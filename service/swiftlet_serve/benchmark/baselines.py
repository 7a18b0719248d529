"""The CPU engines that `swiftlet bench` compares: Swiftlet's own, and baselines.

Each engine prepares a file from a network once, and loads it. Swiftlet's engines are loaded as `serve` loads them. The
baselines are ONNX Runtime's stock int8 (`quantize_dynamic` after the preparation that its documentation asks for),
OpenVINO, torch, and for embedding models sentence-transformers. OpenVINO's int8 is NNCF's, calibrated on the texts of
the benchmark, or on random ids if the weights are random. Each engine has one thread, unless its caller asks for more.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.artifact import SAFETENSORS, Artifact
from swiftlet_serve import engines, plugins
from swiftlet_serve.benchmark.networks import Network, batch_of
from swiftlet_serve.machine.memory import release_free_memory, resident_bytes
from swiftlet_serve.types import Batch

if TYPE_CHECKING:
    import torch

Call = Callable[[Batch], Sequence[NDArray[np.float32]]]  # returns arrays whose concatenation is the rows (N, O)


class Unsupported(Exception):
    """Raised when an engine cannot run here, or not this network. The message is a clause that gives the reason."""


class LoadedEngine(NamedTuple):
    title: str  # the title of the runtime
    call: Call


class Load(Protocol):
    def __call__(self, network: Network, threads: int = 1) -> LoadedEngine:
        """Loads a network. Raises Unsupported if the engine cannot run it."""
        ...


@dataclass(frozen=True)
class ComparedEngine:
    packages: tuple[str, ...]  # that it imports
    prepare: Callable[[Network], Path]  # returns the file to load, and makes it if needed
    load: Load
    serves: bool = False  # one of Swiftlet's engines: several threads may call it at once


# --- Swiftlet's engines


def _load_engine(name: str, artifact: Callable[[Network], Artifact] = lambda network: network.artifact) -> Load:
    def load(network: Network, threads: int = 1) -> LoadedEngine:
        engine = plugins.load(engines, name).create(artifact(network), threads)
        if not engine.title.startswith(name):
            engine.close()
            raise Unsupported(f"it falls back to {engine.title}: it has no kernel for this CPU or this network")
        return LoadedEngine(engine.title, engine.run)

    return load


# --- torch and sentence-transformers


def _load_torch(bits: str) -> Load:
    def load(network: Network, threads: int = 1) -> LoadedEngine:
        import torch

        from swiftlet_serve.engines.torch import PaddedTorch, load_network

        torch.set_num_threads(threads)
        engine = PaddedTorch(load_network(network.artifact), torch.device("cpu"), _dtype(bits))
        return LoadedEngine(f"torch {torch.__version__} {bits}", engine.run)

    return load


def _load_sentence_transformers(bits: str) -> Load:
    """Loads the modules of a checkpoint except Normalize, which the engines leave to the task."""

    def load(network: Network, threads: int = 1) -> LoadedEngine:
        import sentence_transformers
        import torch

        if network.checkpoint is None:
            raise Unsupported("it needs the checkpoint of the artifact")
        torch.set_num_threads(threads)
        model = sentence_transformers.SentenceTransformer(str(network.checkpoint), device="cpu").to(_dtype(bits)).eval()
        modules = [module for module in model if type(module).__name__ != "Normalize"]
        transformer: Any = modules[0].auto_model
        names = inspect.signature(transformer.forward).parameters

        @torch.inference_mode()
        def call(batch: Batch) -> list[NDArray[np.float32]]:
            padded = batch.padded()
            mask = np.arange(padded.input_ids.shape[1]) < padded.lengths[:, None]
            inputs = {"input_ids": padded.input_ids, "token_type_ids": padded.token_type_ids, "attention_mask": mask}
            features = {name: torch.from_numpy(array) for name, array in inputs.items() if name in names}
            features["attention_mask"] = features["attention_mask"].long()
            for module in modules:
                features = module(features)
            return [features["sentence_embedding"].float().numpy()]

        return LoadedEngine(f"sentence-transformers {sentence_transformers.__version__} {bits}", call)

    return load


def _weights(network: Network) -> Path:
    return network.artifact.file(SAFETENSORS)


def _dtype(bits: str) -> torch.dtype:
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16}[bits]


# --- ONNX Runtime's stock int8


def _prepare_stock(network: Network) -> Path:
    return stock(network.graph, network.artifact.path)


def stock(graph: Path, folder: Path) -> Path:
    """Quantises a graph in fp32 and returns the file, which is in `folder`."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    file, prepared = folder / "stock.onnx", folder / "prepared.onnx"
    if not file.exists():
        # torch exports weights that are transposed at run time. Without this step the quantiser leaves them in fp32.
        quant_pre_process(graph, prepared, skip_symbolic_shape=True)
        _untie(prepared)
        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # it logs hints, and every node that it skips
        try:
            quantize_dynamic(prepared, file, weight_type=QuantType.QInt8)
        finally:
            root.setLevel(level)
        prepared.unlink()
    return file


def _untie(file: Path) -> None:
    """Copies tables that are also the matrix of a product: the quantiser would transpose them for both uses."""
    import onnx

    model = onnx.load(file)
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    multiplied = {name for node in model.graph.node if node.op_type == "Gemm" for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name in tables & multiplied]:
        copy = model.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name += ".table"
        for node in model.graph.node:
            if node.op_type == "Gather" and node.input[0] == tensor.name:
                node.input[0] = copy.name
    onnx.save(model, file)


def _load_stock(network: Network, threads: int = 1) -> LoadedEngine:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(_prepare_stock(network), options, providers=["CPUExecutionProvider"])
    return LoadedEngine("ONNX Runtime, stock int8", lambda batch: session.run(["rows"], batch.padded()._asdict()))


# --- OpenVINO


def _prepare_openvino(network: Network) -> Path:
    """Converts the graph, which computes its transposed weights once. The quantiser leaves other weights in fp32."""
    import openvino

    file = network.artifact.path / "openvino.xml"
    if not file.exists():
        openvino.save_model(openvino.convert_model(network.graph), file, compress_to_fp16=False)
    return file


def _prepare_openvino_int8(network: Network) -> Path:
    import nncf
    import openvino

    batches = network.calibration or [batch_of(2, 64, seed) for seed in range(8)]
    identity = hashlib.sha256(b"".join(batch.input_ids.tobytes() for batch in batches)).hexdigest()[:12]
    file = network.artifact.path / f"nncf-{identity}.xml"
    if not file.exists():
        nncf.set_log_level(logging.ERROR)
        samples = [dict(batch.padded()._asdict()) for batch in batches]
        graph = openvino.Core().read_model(_prepare_openvino(network))
        kind = nncf.ModelType.TRANSFORMER
        with contextlib.redirect_stdout(sys.stderr):  # it draws progress bars
            made = nncf.quantize(graph, nncf.Dataset(samples), model_type=kind, subset_size=len(samples))
        openvino.save_model(made, file, compress_to_fp16=False)
    return file


def _load_openvino(prepare: Callable[[Network], Path], kind: str) -> Load:
    def load(network: Network, threads: int = 1) -> LoadedEngine:
        import openvino

        core = openvino.Core()
        hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(core.read_model(prepare(network)), "CPU", hints)
        request = compiled.create_infer_request()
        rest = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()  # bf16 if the CPU has it
        title = f"OpenVINO {kind}{rest}"
        return LoadedEngine(title, lambda batch: list(request.infer(batch.padded()._asdict()).values()))

    return load


ENGINES: Final[Mapping[str, ComparedEngine]] = {  # Swiftlet's first
    "native": ComparedEngine(
        ("onnxruntime",), lambda network: network.artifact.weights, _load_engine("native"), serves=True
    ),
    "native_bf16": ComparedEngine(
        ("onnxruntime",),
        lambda network: network.in_bf16().weights,
        _load_engine("native", Network.in_bf16),
        serves=True,
    ),
    "onnx_cpu": ComparedEngine(
        ("onnxruntime",), lambda network: network.artifact.weights, _load_engine("onnx_cpu"), serves=True
    ),
    "ort_stock": ComparedEngine(("onnxruntime", "onnx"), _prepare_stock, _load_stock),
    "openvino_int8": ComparedEngine(
        ("openvino", "nncf"), _prepare_openvino_int8, _load_openvino(_prepare_openvino_int8, "int8, rest ")
    ),
    "openvino": ComparedEngine(("openvino",), _prepare_openvino, _load_openvino(_prepare_openvino, "")),
    **{
        name: ComparedEngine(("torch", "onnx", "safetensors"), _weights, _load_torch(bits))
        for name, bits in (("torch", "fp32"), ("torch_bf16", "bf16"))
    },
    **{
        name: ComparedEngine(("sentence_transformers",), _weights, _load_sentence_transformers(bits))
        for name, bits in (("sentence_transformers", "fp32"), ("sentence_transformers_bf16", "bf16"))
    },
}


def missing_package(engine: ComparedEngine) -> str | None:
    """Returns the first package of an engine that cannot be imported."""
    for name in engine.packages:
        try:
            import_module(name)
        except ImportError as error:
            return error.name or name
    return None


def load_memory_bytes(name: str, network: Network, batch: Batch) -> int:
    """Returns the growth of this process when an engine loads a network and runs a batch, without its packages.

    Call it in a new process, because freed memory would be used again.
    """
    engine = ENGINES[name]
    for package in engine.packages:
        import_module(package)
    engine.prepare(network)
    gc.collect()
    before = resident_bytes()
    loaded = engine.load(network)
    loaded.call(batch)
    gc.collect()
    release_free_memory()  # as a worker process does
    return resident_bytes() - before
