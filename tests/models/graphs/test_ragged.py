"""Tests of the ragged graph: it computes the same network, and a row does not depend on the rest of the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from loadtest.int8_networks import reading_all, unrolled
from swiftlet_models.artifact import ACTIVATIONS, open_artifact
from swiftlet_models.folded import Folded, FoldingError, Product
from swiftlet_models.graphs.ragged import Multiplier, in_fp32, in_int8, in_mixed, in_signed, of_int8, ragged
from swiftlet_models.program import WORDS, Attend, Block, Gate, LookUp, Multiply, Norm, Place, Program, Read, Rotate
from swiftlet_serve.engines import onnx_cpu
from swiftlet_serve.engines.onnx_cpu import RaggedOnnx
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.types import Batch
from swiftlet_serve.workers.golden import replay
from tests.support.checkpoints import relative_error
from tests.support.native_kernels import (
    NETWORKS,
    VARIANTS,
    VOCABULARY,
    encoding,
    folded,
    network,
    rows_of,
    run_folded,
    torch_rows,
    variant,
)

# Sequences of different lengths; the head reads nothing of one of them.
MIXED = [encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(7, [], 4), encoding(24, [23, 5], 3)]
FP32 = 3e-6  # measured: 2e-7 to 6e-7
# Measured on these networks with random weights: 0.013 to 0.033, and up to 0.096 with the large scores of T5 and Gemma.
INT8 = 0.1
SIGNED = pytest.param(
    in_signed, INT8, marks=pytest.mark.skipif(not onnx_cpu.adds_in_32_bits(), reason="this CPU saturates products")
)


def flags() -> set[str]:
    """Returns the features of an x86 CPU as Linux names them, or nothing."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("ascii", "replace").splitlines() if file.exists() else []
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def nodes(network: Folded, multiply: Multiplier) -> Sequence[onnx.NodeProto]:
    return onnx.load_from_string(ragged(network, multiply)).graph.node


@pytest.mark.parametrize(("multiply", "off"), [(in_fp32, FP32), (in_int8, INT8), (in_mixed, INT8), SIGNED])
@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_ragged_graph_computes_the_rows_of_torch(architecture, task, multiply, off):
    engine = RaggedOnnx(folded(architecture, task), multiply, threads=1)
    expected = torch.from_numpy(torch_rows(network(architecture, task), Batch.of(MIXED)))

    assert relative_error(rows_of(engine, MIXED), expected) <= off


@pytest.mark.parametrize("multiply", [in_fp32, in_int8, in_mixed, in_signed])
@pytest.mark.parametrize("architecture", ["albert", "mobilebert", "bert"])
def test_ragged_graph_computes_a_row_in_a_batch_as_alone(architecture, multiply):
    """Also in int8, in which each token has its own scale."""
    engine = RaggedOnnx(folded(architecture, "qa"), multiply, threads=1)
    rows = [encoding(length, range(length), length) for length in (9, 1, 33, 40, 2)]
    together = engine.run(Batch.of(rows))

    for one, row in zip(rows, together, strict=True):
        (alone,) = engine.run(Batch.of([one]))
        assert relative_error(torch.from_numpy(row), torch.from_numpy(alone)) <= 1e-6


def test_ragged_graph_stores_shared_layers_once_and_loops():
    """Of four layers, the first two are the same layer, and so are the last two. The last one computes fewer tokens."""
    graph = onnx.load_from_string(ragged(folded("albert", "classify"), in_int8)).graph
    stored = [tensor.name for tensor in graph.initializer]

    assert [node.op_type for node in graph.node].count("Loop") == 1
    assert len(stored) == len(set(stored))
    assert not any(node.attribute[0].g.initializer for node in graph.node if node.op_type == "Loop")


def test_ragged_graph_passes_the_onnx_checker():
    onnx.checker.check_model(onnx.load_from_string(ragged(folded("mobilebert", "fill-mask"), in_fp32)))


@pytest.mark.parametrize(
    ("architecture", "signed"), [("albert", False), ("albert", True), ("bert", False), ("mobilebert", True)]
)
def test_of_int8_quantises_all_products(architecture, signed):
    """Without signed weights, it does so only in networks with LayerNorm."""
    network = folded(architecture, "qa")
    graph = onnx.load_from_string(ragged(network, of_int8(network, signed=signed))).graph
    large = [tensor for tensor in graph.initializer if tensor.data_type == 1 and np.prod(tensor.dims) > 4000]

    assert [node.op_type for node in graph.node if node.op_type in {"Gemm", "MatMul"}] == ["Gemm"]
    assert [tensor.name for tensor in large] == []


def test_of_int8_quantises_only_the_word_tables_of_networks_with_no_norm():
    network = folded("mobilebert", "fill-mask")
    graph = onnx.load_from_string(ragged(network, of_int8(network, signed=False))).graph

    assert [node.op_type for node in graph.node].count("MatMulIntegerToFloat") == 1
    assert {t.name for t in graph.initializer if t.name.endswith(".int8")} == {"words.int8", "head.decoder.int8"}


def unusual() -> Folded:
    """Returns a network whose steps no architecture has in this order."""
    draw = np.random.default_rng(0)
    mixed = {
        name: Place("mix", *columns) for name, columns in {"query": (1, 8), "key": (9, 8), "value": (33, 12)}.items()
    }
    enter = (
        LookUp(Place("words", 0, 12), WORDS, "previous_word"),
        LookUp(Place("words", 12, 12), "embeddings.position", "position"),
        LookUp(Place("words", 12, 12), WORDS, "next_word", adds=True),
        LookUp(Place("words", 0, 24), "token_type", "token_type", adds=True),
        Multiply("x", "words", "in", residual=Place("words", 3, 20), activation="gelu"),
    )
    layer = (
        Multiply("mix", "x", "mix"),
        Rotate(mixed["query"], "turns", heads=2),
        Rotate(mixed["key"], "turns", heads=2),
        Attend("attended", **mixed, heads=4, key_heads=4, causal=True),
        Multiply("x", "attended", "out", residual=Place("mix", 21, 20)),
        Norm("x", "x", "first", 1e-5),
        Norm("x", "x", "second", 1e-3),
        Multiply("halves", "x", "halves"),
        Gate("attended", "halves", "gelu"),
        Multiply("x", "attended", "out"),
    )
    last = (
        Multiply("mix", "x", "mix"),
        Read("x", "x"),
        Multiply("wide", "x", "mix"),
        Rotate(Place("wide", 14, 12), "turns", heads=3),
        Attend("attended", Place("wide", 16, 8), mixed["key"], mixed["value"], heads=4, key_heads=4, bias="bias"),
        Multiply("x", "attended", "out", residual=Place("wide", 21, 20), gain="gain"),
        Norm("normed", "x", "second", 1e-5),
        Multiply("outputs", "x", "head", residual=Place("normed", 5, 3), activation="tanh", exact=True),
    )
    blocks = Block(enter), Block(layer, 3), Block(layer, 2), Block(last)
    widths = {"words": 24, "x": 20, "mix": 45, "halves": 24, "attended": 12, "wide": 45, "normed": 20, "outputs": 3}
    products = {"in": (20, 24), "mix": (45, 20), "halves": (24, 20), "out": (20, 12), "head": (3, 20)}
    tables = {"turns": (40, 4), "embeddings.position": (40, 12), "token_type": (2, 24), "bias": (4, 79)}
    norms = [f"{name}.{part}" for name in ("first", "second") for part in ("weight", "bias")]
    return Folded(
        Program(blocks, widths, ("outputs",)),
        outputs=3,
        positions=40,
        words=draw.normal(size=(VOCABULARY, 12)),
        products={n: Product(draw.normal(size=s) / 4, draw.normal(size=s[0])) for n, s in products.items()},
        vectors={n: draw.normal(size=s) for n, s in {**tables, **dict.fromkeys([*norms, "gain"], (20,))}.items()},
    )


def with_steps(network: Folded, *steps: Any) -> Folded:
    blocks = (*network.program.blocks, Block(steps))
    return dataclasses.replace(network, program=dataclasses.replace(network.program, blocks=blocks))


def test_ragged_graph_computes_any_program():
    network = unusual()
    rows = rows_of(RaggedOnnx(network, in_fp32, threads=1), MIXED)
    loops = [node.attribute[0].g for node in nodes(network, in_fp32) if node.op_type == "Loop"]

    assert relative_error(rows, torch.from_numpy(run_folded(network, Batch.of(MIXED)))) <= FP32
    assert len(loops) == 2
    for body in loops:
        assert [n.op_type for n in body.node if "Norm" in n.op_type] == ["LayerNormalization", "LayerNormalization"]


@pytest.mark.parametrize("name", VARIANTS)
def test_ragged_graph_computes_networks_without_positions_and_with_windows(name):
    network = variant(name)
    rows = rows_of(RaggedOnnx(network, in_fp32, threads=1), MIXED)

    assert relative_error(rows, torch.from_numpy(run_folded(network, Batch.of(MIXED)))) <= FP32


def test_ragged_rejects_an_unknown_step():
    class Convolve(NamedTuple):
        out: str

    with pytest.raises(FoldingError, match="the step Convolve is not supported"):
        ragged(with_steps(unusual(), Convolve("x")), in_fp32)


def test_ragged_rejects_an_unknown_activation():
    with pytest.raises(FoldingError, match="the activation 'sine' is not supported"):
        ragged(with_steps(unusual(), Multiply("x", "outputs", "head", activation="sine")), in_fp32)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([Norm("sum", "sum", "first", 1e-5)], "a step reads columns of 'sum' that no step writes"),
        (
            [
                Rotate(Place("mix", 1, 8), "turns", heads=2),
                LookUp(Place("mix", 5, 12), "embeddings.position", "position"),
            ],
            "a step writes a part of the columns of 'mix' that another writes",
        ),
    ],
)
def test_ragged_rejects_columns_that_are_missing_or_overlap(steps, reason):
    network = with_steps(unusual(), *steps)
    network.program.widths["sum"] = 20
    with pytest.raises(FoldingError, match=reason):
        ragged(network, in_fp32)


@pytest.mark.parametrize("change", [unrolled, reading_all])
@pytest.mark.parametrize("architecture", ["albert", "mobilebert"])
def test_variants_of_a_program_compute_the_same_rows(architecture, change):
    network = folded(architecture, "qa")
    rows = [rows_of(RaggedOnnx(one, in_fp32, 1), MIXED) for one in (network, change(network))]

    assert relative_error(*rows) <= FP32
    assert not any(node.op_type == "Loop" for node in nodes(unrolled(network), in_fp32))


@pytest.mark.parametrize("multiply", [in_int8, in_signed])
def test_int8_rows_of_zeros_are_finite(multiply):
    """A token of zeros has the scale 0."""
    empty = folded("bert", "qa")
    for name, product in empty.products.items():
        empty.products[name] = Product(np.zeros(product.matrix.shape), np.zeros(product.bias.shape))
    (row,) = RaggedOnnx(empty, multiply, threads=1).run(Batch.of([encoding(5, range(5), 1)]))

    assert np.isfinite(row).all()


@pytest.mark.parametrize(("precision", "rounding"), [("int8", 0.05), ("fp32", 0.0)])
@pytest.mark.parametrize("name", ["albert-qa", "mobilebert-qa"])
def test_onnx_cpu_folds_artifacts(name, precision, rounding):
    """Only the weights of the file are read, so that older artifacts are folded, too."""
    made = open_artifact(BUNDLED / name)
    engine = onnx_cpu.create(
        dataclasses.replace(made, manifest=dataclasses.replace(made.manifest, precision=precision)), threads=1
    )

    assert isinstance(engine, RaggedOnnx)
    assert engine.extra_tolerance == rounding
    assert replay(made, engine).deviation <= made.manifest.tolerance


@pytest.mark.parametrize("exact", [True, False])
def test_onnx_cpu_multiplies_as_the_cpu_does_it_best(exact, monkeypatch):
    bundled, seen = open_artifact(BUNDLED / "mobilebert-sst2"), []
    files = {name: file for name, file in bundled.manifest.files.items() if name != ACTIVATIONS}
    made = dataclasses.replace(bundled, manifest=dataclasses.replace(bundled.manifest, files=files))  # as older ones
    monkeypatch.setattr(onnx_cpu, "adds_in_32_bits", lambda: exact)
    monkeypatch.setattr(onnx_cpu, "RaggedOnnx", lambda folded, multiply, threads: seen.append(multiply))
    onnx_cpu.create(made, threads=1)

    assert seen == [in_signed if exact else in_mixed]


@pytest.mark.skipif(not flags(), reason="this is no x86 CPU, or not Linux")
def test_onnx_runtime_adds_in_32_bits_on_cpus_with_vnni():
    assert onnx_cpu.adds_in_32_bits() == bool(flags() & {"avx512_vnni", "avx_vnni"})


@pytest.mark.parametrize("saturates_at", [1, 9, None])
def test_saturated_products_of_any_number_of_rows_are_found(saturates_at, monkeypatch):
    class Session:
        def run(self, outputs, inputs):
            rows = len(inputs["x"])
            return [np.full((rows, 32), 32_767 * 32 if rows == saturates_at else 64 * 255 * 127, np.float32)]

    monkeypatch.setattr(onnx_cpu, "session", lambda model, threads: Session())
    assert onnx_cpu.adds_in_32_bits.__wrapped__() == (saturates_at is None)


@pytest.mark.parametrize("what", ["focus", "input_ids"])
def test_onnx_cpu_rejects_an_invalid_batch(what):
    broken = dataclasses.replace(encoding(5, [2], 1), **{what: np.array([9_000] * (1 if what == "focus" else 5))})
    with pytest.raises(Exception, match=r"indices|out of"):
        RaggedOnnx(folded("bert", "qa"), in_fp32, threads=1).run(Batch.of([broken]))


def test_onnx_cpu_session_has_its_threads_and_never_spins(monkeypatch):
    """A call runs on the thread that calls it. Idle cores remain free for other processes."""
    seen = []
    monkeypatch.setattr(ort, "InferenceSession", lambda model, options, **_: seen.append(options))
    onnx_cpu.session(b"", threads=1)
    (options,) = seen

    assert options.intra_op_num_threads == options.inter_op_num_threads == 1
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
