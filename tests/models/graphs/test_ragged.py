"""A folded network in ONNX Runtime is the same network, and each row of a batch is on its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from swiftlet_serve.models.artifact import open_artifact
from swiftlet_serve.models.folding import FoldingError
from swiftlet_serve.models.graphs.ragged import in_fp32, in_int8, in_mixed, of_int8, ragged
from swiftlet_serve.models.tokenizer import Encoding
from swiftlet_serve.service.engines import onnx_cpu
from swiftlet_serve.service.engines.onnx_cpu import Ragged
from swiftlet_serve.service.loading import BUNDLED
from swiftlet_serve.service.types import Batch
from swiftlet_serve.service.workers.golden import replay
from tests.support.checkpoints import relative_error
from tests.support.native_kernels import NETWORKS, encoding, folded, network, torch_rows

# Of lengths that differ, and one of which nothing is read.
MIXED = [encoding(11, [0, 3, 10], 1), encoding(1, [0], 2), encoding(7, [], 4), encoding(24, [23, 5], 3)]
FP32 = 3e-6  # measured: 2e-7 to 6e-7
# Measured on these networks, which have no trained weights to be kind to them: 0.013 to 0.033.
INT8 = 0.07


def computed(engine: Ragged, encodings: list[Encoding]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(engine.run(Batch.of(encodings))))


@pytest.mark.parametrize(("multiply", "off"), [(in_fp32, FP32), (in_int8, INT8), (in_mixed, INT8)])
@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_it_computes_what_torch_computes(architecture, task, multiply, off):
    engine = Ragged(folded(architecture, task), multiply, threads=1)
    expected = torch.from_numpy(torch_rows(network(architecture, task), Batch.of(MIXED)))

    assert relative_error(computed(engine, MIXED), expected) <= off


@pytest.mark.parametrize("multiply", [in_fp32, in_int8, in_mixed])
@pytest.mark.parametrize("architecture", ["albert", "mobilebert", "bert"])
def test_a_row_in_a_batch_equals_the_row_alone(architecture, multiply):
    """However long, and however large the numbers of its neighbours: in int8 each token has a scale of its own."""
    engine = Ragged(folded(architecture, "qa"), multiply, threads=1)
    rows = [encoding(length, range(length), length) for length in (9, 1, 33, 40, 2)]
    together = engine.run(Batch.of(rows))

    for one, row in zip(rows, together, strict=True):
        (alone,) = engine.run(Batch.of([one]))
        assert relative_error(torch.from_numpy(row), torch.from_numpy(alone)) <= 1e-6


def test_layers_that_share_their_parameters_are_a_loop_and_are_stored_once():
    """The third and fourth layer of four are one, and so are the first two; the last is apart, for it computes less."""
    graph = onnx.load_from_string(ragged(folded("albert", "classify"), in_int8)).graph
    stored = [tensor.name for tensor in graph.initializer]

    assert [node.op_type for node in graph.node].count("Loop") == 1
    assert len(stored) == len(set(stored))
    assert not any(node.attribute[0].g.initializer for node in graph.node if node.op_type == "Loop")


def test_the_graph_is_one_that_the_format_allows():
    onnx.checker.check_model(onnx.load_from_string(ragged(folded("mobilebert", "fill-mask"), in_fp32)))


@pytest.mark.parametrize("architecture", ["albert", "bert"])
def test_where_layers_normalise_no_product_is_left_in_fp32_but_the_last(architecture):
    network = folded(architecture, "qa")
    graph = onnx.load_from_string(ragged(network, of_int8(network))).graph
    large = [tensor for tensor in graph.initializer if tensor.data_type == 1 and np.prod(tensor.dims) > 4000]

    assert [node.op_type for node in graph.node if node.op_type in {"Gemm", "MatMul"}] == ["Gemm"]
    assert [tensor.name for tensor in large] == []


def test_of_a_mobilebert_the_tables_of_words_are_in_8_bits_and_nothing_else():
    network = folded("mobilebert", "fill-mask")
    graph = onnx.load_from_string(ragged(network, of_int8(network))).graph

    assert [node.op_type for node in graph.node].count("MatMulIntegerToFloat") == 1
    assert {t.name for t in graph.initializer if t.name.endswith(".int8")} == {"words.int8", "head.decoder.int8"}


def test_an_unknown_activation_is_refused():
    with pytest.raises(FoldingError, match="activation is 'sine'"):
        ragged(dataclasses.replace(folded("bert", "qa"), activation="sine"), in_fp32)


def test_numbers_of_no_size_come_out_as_the_bias():
    """A token of nothing but zeros has no scale; its rows must be numbers all the same."""
    empty = folded("bert", "qa")
    for product in empty.products.values():
        product.weight[:] = 0
        product.bias[:] = 0
    (row,) = Ragged(empty, in_int8, threads=1).run(Batch.of([encoding(5, range(5), 1)]))

    assert np.isfinite(row).all()


@pytest.mark.parametrize(("precision", "rounding"), [("int8", 0.05), ("fp32", 0.0)])
@pytest.mark.parametrize("name", ["albert-qa", "mobilebert-qa"])
def test_an_artifact_of_a_known_network_is_folded(name, precision, rounding):
    """Also one that was made before: nothing of the file is read but its weights."""
    made = open_artifact(BUNDLED / name)
    engine = onnx_cpu.create(
        dataclasses.replace(made, manifest=dataclasses.replace(made.manifest, precision=precision)), threads=1
    )

    assert isinstance(engine, Ragged)
    assert engine.extra_tolerance == rounding
    assert replay(made, engine) <= made.manifest.tolerance


@pytest.mark.parametrize("what", ["focus", "input_ids"])
def test_a_batch_that_is_none_is_an_error(what):
    broken = dataclasses.replace(encoding(5, [2], 1), **{what: np.array([9_000] * (1 if what == "focus" else 5))})
    with pytest.raises(Exception, match=r"indices|out of"):
        Ragged(folded("bert", "qa"), in_fp32, threads=1).run(Batch.of([broken]))


def test_a_session_keeps_to_its_threads_and_never_spins(monkeypatch):
    """A call has the one thread that it is called on; an idle core is somebody else's."""
    seen = []
    monkeypatch.setattr(ort, "InferenceSession", lambda model, options, providers: seen.append(options))
    onnx_cpu.session(b"", threads=1)
    (options,) = seen

    assert options.intra_op_num_threads == options.inter_op_num_threads == 1
    assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
