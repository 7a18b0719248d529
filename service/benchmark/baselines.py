"""Ways to run a network on one core of a CPU: our engines, and what others use. What `swiftlet bench` compares.

A contender makes a file out of a network once, and loads it. The engines that serve are loaded as `serve` loads them.
ONNX Runtime's stock int8 is `quantize_dynamic` after the preparation that its documentation asks for; OpenVINO's int8
is NNCF's, calibrated on random ids, which decides nothing about its speed. Each has one thread.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

import swiftlet_serve.models
from swiftlet_serve.models.artifact import ONNX, SAFETENSORS, Artifact, File, Manifest
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service import engines, plugins
from swiftlet_serve.service.memory import release_free_memory, resident_bytes
from swiftlet_serve.service.types import Batch

GRAPH: Final = "fp32.onnx"
WORDS: Final = 1000  # of a released shape: a classifier only looks them up
RELEASED: Final[Mapping[str, Mapping[str, Any]]] = {  # the defaults of `models.architectures`, but for the words
    "mobilebert": {"vocab_size": WORDS},  # google/mobilebert-uncased
    "albert": {"vocab_size": WORDS},  # albert-base-v2
}
SOURCES: Final = ("export.py", "heads.py", "architectures/*.py")  # what decides which graph a network becomes

Call = Callable[[Batch], Sequence[NDArray[np.float32]]]  # which end to end are the rows (N, O)


class Unfit(Exception):
    """A contender cannot run here, or not this network; the message is a clause that says why."""


@dataclass(frozen=True)
class Network:
    """An int8 artifact, with its fp32 weights and graph beside it. Its directory need not be a whole artifact."""

    artifact: Artifact

    @property
    def graph(self) -> Path:
        return self.artifact.path / GRAPH

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its parameters, by name."""
        from safetensors import safe_open

        with safe_open(self.artifact.file(SAFETENSORS), "numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  # no mapping


class Loaded(NamedTuple):
    title: str  # what runs the network, in words
    call: Call


@dataclass(frozen=True)
class Contender:
    needs: tuple[str, ...]  # packages that are imported with it
    prepare: Callable[[Network], Path]  # the file that it loads, made if need be
    load: Callable[[Network], Loaded]  # raises Unfit
    serves: bool = False  # one of our engines, so that its call may be made on several threads at once


def released(architecture: str, runs: Path, report: Callable[[str], None]) -> Network:
    """A classifier in the shape that was released, with random weights."""
    from torch import manual_seed

    from swiftlet_serve.models.heads import build

    manual_seed(0)
    config = RELEASED[architecture]
    manifest = Manifest(
        name=f"{architecture}-released",
        version="0",
        architecture=architecture,
        task="classify",
        head="classification",
        precision="int8",
        max_tokens=512,
        vocab_size=config["vocab_size"],
        width=2,
        labels=("0", "1"),
        problem="single_label",
        tolerance=1.0,
        config=config,
        source={"weights": "random"},
    )
    return _kept(manifest, "", build(architecture, config, "classification", 2), None, runs, report)


def opened(artifact: Artifact, runs: Path, report: Callable[[str], None]) -> Network:
    """An artifact's network; for contenders in fp32, int8 weights are converted back.

    Raises:
        ArtifactError: its weights are not those of the network its manifest describes.
    """
    from swiftlet_serve.service.engines.torch import load_network

    origin = artifact.manifest.files[ONNX].sha256
    return _kept(artifact.manifest, origin, load_network(artifact), artifact.file(ONNX), runs, report)


def _kept(
    manifest: Manifest, origin: str, model: Any, int8: Path | None, runs: Path, report: Callable[[str], None]
) -> Network:
    """Exports a model, which takes a minute or more, unless an earlier run has left its files under `runs`."""
    import onnx
    import torch
    from safetensors.torch import save_file

    from swiftlet_serve.models.graphs.export import export
    from swiftlet_serve.models.graphs.quantize import quantize

    folder = Path(swiftlet_serve.models.__file__).parent
    sources = [path.read_bytes() for pattern in SOURCES for path in sorted(folder.glob(pattern))]
    told = json.dumps([manifest.config, manifest.task, origin, torch.__version__], sort_keys=True).encode()
    key = hashlib.sha256(b"".join([told, *sources])).hexdigest()[:12]
    path = runs / f"{manifest.name}-{key}"
    path.mkdir(parents=True, exist_ok=True)
    if not (path / GRAPH).exists():
        report(f"exporting {manifest.name}, which is done once")
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path / SAFETENSORS)
        onnx.save(export(model), path / "part.onnx")
        (path / "part.onnx").rename(path / GRAPH)
    if int8 is None:
        onnx.save(quantize(onnx.load(path / GRAPH)), path / ONNX)
    else:
        shutil.copyfile(int8, path / ONNX)
    files = {name: File((path / name).stat().st_size, "0" * 64) for name in (ONNX, SAFETENSORS)}
    return Network(Artifact(path, replace(manifest, files=files)))


def batch_of(rows: int, length: int, seed: int = 0) -> Batch:
    """Rows of random ids, of which the head reads the first position."""
    draw = np.random.default_rng(seed)
    none, first = np.zeros(length, np.int64), np.zeros(1, np.int64)
    return Batch.of([Encoding(draw.integers(1, WORDS, length), none, first) for _ in range(rows)])


# --- our engines


def _load_engine(name: str) -> Callable[[Network], Loaded]:
    def load(network: Network) -> Loaded:
        engine = plugins.load(engines, name).create(network.artifact, 1)
        if not engine.title.startswith(name):
            engine.close()
            raise Unfit(f"its place is taken by {engine.title}: no kernel for this CPU, or another kind of network")
        return Loaded(engine.title, engine.run)

    return load


def _load_torch(network: Network) -> Loaded:
    import torch

    from swiftlet_serve.service.engines.torch import Torch, load_network

    torch.set_num_threads(1)
    return Loaded(f"torch {torch.__version__} fp32", Torch(load_network(network.artifact), torch.device("cpu")).run)


# --- ONNX Runtime as others use it


def _prepare_stock(network: Network) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    file, prepared = network.artifact.path / "stock.onnx", network.artifact.path / "prepared.onnx"
    if not file.exists():
        # Of a graph as torch writes it weights are transposed at run time, and stay as they are without this.
        quant_pre_process(network.graph, prepared, skip_symbolic_shape=True)
        _untie(prepared)
        root = logging.getLogger()
        level = root.level
        root.setLevel(logging.ERROR)  # it tells how it could be prepared still better, and of every node left alone
        try:
            quantize_dynamic(prepared, file, weight_type=QuantType.QInt8)
        finally:
            root.setLevel(level)
        prepared.unlink()
    return file


def _untie(file: Path) -> None:
    """Gives look-ups tables of their own: the quantiser would turn a table round that is also a product's matrix."""
    import onnx

    model = onnx.load(file)
    tables = {node.input[0] for node in model.graph.node if node.op_type == "Gather"}
    multiplied = {name for node in model.graph.node if node.op_type == "Gemm" for name in node.input}
    for tensor in [one for one in model.graph.initializer if one.name in tables & multiplied]:
        copy = model.graph.initializer.add()
        copy.CopyFrom(tensor)
        copy.name += ".table"
        for node in model.graph.node:
            if node.op_type == "Gather" and node.input[0] == tensor.name:
                node.input[0] = copy.name
    onnx.save(model, file)


def _load_stock(network: Network) -> Loaded:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(_prepare_stock(network), options, providers=["CPUExecutionProvider"])
    return Loaded("ONNX Runtime, stock int8", lambda batch: session.run(["rows"], batch.padded()._asdict()))


# --- OpenVINO


def _prepare_openvino_int8(network: Network) -> Path:
    import nncf
    import openvino

    file = network.artifact.path / "openvino-int8.xml"
    if not file.exists():
        nncf.set_log_level(logging.ERROR)
        samples = [dict(batch_of(2, 64, seed).padded()._asdict()) for seed in range(8)]
        graph = openvino.Core().read_model(network.graph)
        kind = nncf.ModelType.TRANSFORMER
        with contextlib.redirect_stdout(sys.stderr):  # it draws bars
            made = nncf.quantize(graph, nncf.Dataset(samples), model_type=kind, subset_size=len(samples))
        openvino.save_model(made, file, compress_to_fp16=False)
    return file


def _load_openvino(prepare: Callable[[Network], Path], kind: str) -> Callable[[Network], Loaded]:
    def load(network: Network) -> Loaded:
        import openvino

        core = openvino.Core()
        hints = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
        compiled = core.compile_model(core.read_model(prepare(network)), "CPU", hints)
        request = compiled.create_infer_request()
        rest = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()  # bf16 where the CPU has it
        title = f"OpenVINO {kind}{rest}"
        return Loaded(title, lambda batch: list(request.infer(batch.padded()._asdict()).values()))

    return load


CONTENDERS: Final[Mapping[str, Contender]] = {  # ours first
    "native": Contender(
        ("onnxruntime",), lambda network: network.artifact.file(ONNX), _load_engine("native"), serves=True
    ),
    "onnx_cpu": Contender(
        ("onnxruntime",), lambda network: network.artifact.file(ONNX), _load_engine("onnx_cpu"), serves=True
    ),
    "ort_stock": Contender(("onnxruntime", "onnx"), _prepare_stock, _load_stock),
    "openvino_int8": Contender(
        ("openvino", "nncf"), _prepare_openvino_int8, _load_openvino(_prepare_openvino_int8, "int8, rest ")
    ),
    "openvino": Contender(("openvino",), lambda network: network.graph, _load_openvino(lambda n: n.graph, "")),
    "torch": Contender(
        ("torch", "onnx", "safetensors"), lambda network: network.artifact.file(SAFETENSORS), _load_torch
    ),
}


def missing(contender: Contender) -> str | None:
    """The first package that it needs and that cannot be imported."""
    for name in contender.needs:
        try:
            import_module(name)
        except ImportError as error:
            return error.name or name
    return None


def loading_bytes(name: str, network: Network, batch: Batch) -> int:
    """By how much this process grows when a contender loads a network and answers a batch, its packages apart.

    For a process of its own: what others have left behind would be used again.
    """
    contender = CONTENDERS[name]
    for package in contender.needs:
        import_module(package)
    contender.prepare(network)
    gc.collect()
    before = resident_bytes()
    loaded = contender.load(network)
    loaded.call(batch)
    gc.collect()
    release_free_memory()  # as the engine process does
    return resident_bytes() - before
