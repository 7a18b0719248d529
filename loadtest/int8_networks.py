"""Engines that compute one network in the int8 variants of ONNX Runtime and OpenVINO, for `int8_variants.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from swiftlet_models.encodings import Encoding
from swiftlet_models.folded import Folded, Product
from swiftlet_models.graphs.export import export
from swiftlet_models.graphs.ragged import Multiplier, Network, Rows, in_fp32, in_int8, in_signed, of_int8
from swiftlet_models.graphs.writer import CONTRIB, Graph
from swiftlet_models.heads import Model
from swiftlet_models.program import Block, Multiply, Step, reading_late
from swiftlet_models.tensors import block_of, pack
from swiftlet_serve.benchmark import baselines
from swiftlet_serve.engines import _kernel_selection, native
from swiftlet_serve.engines._matrices import quantise
from swiftlet_serve.engines.onnx_cpu import PaddedOnnx, RaggedOnnx, adds_in_32_bits, ragged_inputs, session
from swiftlet_serve.offline.activations import find_ranges
from swiftlet_serve.types import Batch, Cost, Engine, Row

Array = NDArray[Any]
Call = Callable[[Batch], Array]


@dataclass(frozen=True)
class Subject:
    """One network, in every form that a variant starts from."""

    folded: Folded
    model: Model
    directory: Path  # for files
    calibrate: Callable[[Engine], None]  # runs typical batches

    @property
    def exported(self) -> Path:
        """The fp32 graph as torch exports it."""
        file = self.directory / "fp32.onnx"
        if not file.exists():
            onnx.save(export(self.model), file)
        return file


Create = Callable[[Subject], Engine]


class CallEngine:
    """An engine of one function."""

    title = "under test"
    cost = Cost(padded=False, padded_attention=True, call_tokens=16, max_tokens=512, max_rows=64)
    runs_network: ClassVar[bool] = True
    extra_tolerance = 0.0

    def __init__(self, call: Call) -> None:
        self._call = call

    def run(self, batch: Batch) -> Sequence[Row]:
        return batch.split_rows(self._call(batch))

    def close(self) -> None:
        pass


def ragged_call(network: Network, outputs: Sequence[str] = ("rows",)) -> Callable[[Batch], list[Array]]:
    """Returns a function that runs a network on batches without padding. Without names, it returns every output."""
    onnx_session = session(network.build(), 1)
    names = [value.name for value in onnx_session.get_inputs()]

    def call(batch: Batch) -> list[Array]:
        arrays = ragged_inputs(batch)
        results: list[Array] = onnx_session.run(list(outputs), {name: arrays[name] for name in names})
        return results

    return call


def ragged(multiply: Multiplier, change: Callable[[Folded], Folded] = lambda folded: folded) -> Create:
    """Returns the variant that multiplies in one way, without padding."""

    def create(subject: Subject) -> Engine:
        call = ragged_call(Network(change(subject.folded), multiply))
        return CallEngine(lambda batch: call(batch)[0])

    return create


# Matrix products


def in_blocks(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """MatMulNBits: weights and activations with a scale for each block of 128."""
    outputs, columns = product.weight.shape
    block = block_of(columns)
    if block is None:
        return in_fp32(graph, name, product, rows)
    weight, scale = pack(product.weight, block)
    parts: tuple[Array, ...] = (weight, scale, product.bias)
    arrays = [graph.array(f"{name}.{i}", array) for i, array in enumerate(parts)]
    sizes = {"N": outputs, "K": columns, "bits": 8, "block_size": block, "accuracy_level": 4}
    return graph.add("MatMulNBits", [rows.x, *arrays[:2], "", "", arrays[2]], domain=CONTRIB, **sizes)


def _signed(graph: Graph, name: str, product: Product) -> tuple[str, str, str]:
    """Adds int8 weights (K, N) with a scale for each output, and the bias."""
    weight, scale = quantise(product.matrix)
    return graph.array(name + ".w", weight.T), graph.array(name + ".s", scale), graph.array(name + ".b", product.bias)


def in_one_scale(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """DynamicQuantizeMatMul, as stock quantisation writes it. One scale for a batch makes rows depend on each other."""
    weight, scale, bias = _signed(graph, name, product)
    zero_points = graph.array(name + ".z", np.zeros(len(product.bias), np.int8))
    return graph.add("DynamicQuantizeMatMul", [rows.x, weight, scale, zero_points, bias], domain=CONTRIB)


def in_served(subject: Subject) -> Engine:
    """The graph of an int8 artifact whose activations were calibrated."""
    texts: list[Encoding] = []
    fp32 = ragged(in_fp32)(subject)

    def observe(batch: Batch) -> Array:
        texts.extend(batch.encodings())
        return np.concatenate(fp32.run(batch))

    subject.calibrate(CallEngine(observe))
    ranges, _ = find_ranges(subject.folded, texts)
    return RaggedOnnx(subject.folded, of_int8(subject.folded, signed=adds_in_32_bits(), ranges=ranges), 1)


# Networks


def unrolled(folded: Folded) -> Folded:
    """Returns the same network without repeated blocks, and with products of their own for each time that one runs."""
    products = {}

    def renamed(step: Step, run: int) -> Step:
        if not isinstance(step, Multiply):
            return step
        products[f"{run}.{step.product}"] = folded.products[step.product]
        return replace(step, product=f"{run}.{step.product}")

    runs = enumerate(block.steps for block in folded.program.blocks for _ in range(block.times))
    blocks = tuple(Block(tuple(renamed(step, run) for step in steps)) for run, steps in runs)
    return replace(folded, program=replace(folded.program, blocks=blocks), products=products)


def reading_all(folded: Folded) -> Folded:
    """Returns the same network without one optimisation: its last layer computes all tokens."""
    return replace(folded, program=reading_late(folded.program))


# Graphs as torch exports them, on padded batches


def padded(graph: Path) -> Engine:
    return PaddedOnnx(graph, 1)


def stock(subject: Subject) -> Engine:
    return padded(baselines.stock(subject.exported, subject.directory))


def _openvino(model: Any) -> Engine:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return CallEngine(lambda batch: np.array(request.infer(batch.padded()._asdict())["rows"]))


def openvino_fp32(subject: Subject) -> Engine:
    import openvino

    return _openvino(openvino.convert_model(subject.exported))


def openvino_int8(subject: Subject) -> Engine:
    import nncf
    import openvino

    samples: list[Any] = []
    fp32 = ragged(in_fp32)(subject)

    def observe(batch: Batch) -> Array:
        samples.append(batch.padded()._asdict())
        return np.concatenate(fp32.run(batch))

    subject.calibrate(CallEngine(observe))
    # `read_model` would leave weights that are transposed at run time, and NNCF would leave these in fp32.
    graph = openvino.convert_model(subject.exported)
    kind = nncf.ModelType.TRANSFORMER
    return _openvino(nncf.quantize(graph, nncf.Dataset(samples), model_type=kind, subset_size=len(samples)))


def in_native(subject: Subject) -> Engine:
    library = _kernel_selection.best()
    if library is None:
        raise ImportError("there are no native kernels for this CPU")
    return native.Native(library, subject.folded)


# Variants by the names that the tables show

FP32: Final = "ragged, fp32"
SERVED: Final = "served"
LAST_IN_FULL: Final = "the same, last layer for all tokens"
NO_LOOP: Final = "the same, shared layers not in a loop"
EQUIVALENT: Final = ("as exported, fp32", "OpenVINO fp32", LAST_IN_FULL, NO_LOOP)  # these compute as another variant

VARIANTS: Final[Mapping[str, Create]] = {
    FP32: ragged(in_fp32),
    SERVED: in_served,
    "ragged, 8 bits, a scale for each token": ragged(in_int8),
    LAST_IN_FULL: ragged(in_int8, reading_all),
    NO_LOOP: ragged(in_int8, unrolled),
    "ragged, signed weights": ragged(in_signed),
    "ragged, MatMulNBits": ragged(in_blocks),
    "ragged, one scale for a batch": ragged(in_one_scale),
    "as exported, fp32": lambda subject: padded(subject.exported),
    "as exported, stock quantize_dynamic": stock,
    "OpenVINO fp32": openvino_fp32,
    "OpenVINO int8 (NNCF, static)": openvino_int8,
    "native engine": in_native,
}
