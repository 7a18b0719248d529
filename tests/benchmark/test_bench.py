"""A benchmark of a small network, and the command."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from swiftlet_models.artifact import Artifact
from swiftlet_models.encodings import Encoding
from swiftlet_serve.benchmark import bench, measure, networks, plan, report
from swiftlet_serve.benchmark.baselines import ENGINES, Unsupported
from swiftlet_serve.benchmark.plan import Plan
from swiftlet_serve.cli.main import main
from swiftlet_serve.offline.import_checkpoint import import_checkpoint
from swiftlet_serve.types import Batch
from tests.support import native_kernels
from tests.support import networks as small_networks
from tests.support.sentence_checkpoints import save_encoder
from tests.support.tiers import first


@pytest.fixture
def small_plan(tmp_path, monkeypatch):
    """A plan of one small network. One additional engine is not installed, and one does not support the network."""

    def refuse(*_):
        raise Unsupported("it has no support")

    graph = small_networks.graph("albert", "classify")
    monkeypatch.setattr("swiftlet_models.graphs.export.export", lambda _: graph)
    monkeypatch.setattr(networks, "VOCABULARY_SIZE", small_networks.VOCABULARY)
    manifest = small_networks.draft("albert", "classify").manifest
    model = small_networks.network("albert", "classify")
    network = networks.cached_network(manifest, "", model, None, tmp_path / "runs", lambda _: None)
    monkeypatch.setattr(plan, "released_network", lambda *_: network)
    monkeypatch.setattr(measure, "ROUND_S", 0.0)
    native = ENGINES["native"]
    monkeypatch.setitem(ENGINES, "absent", replace(native, packages=("a_package_that_does_not_exist",)))
    monkeypatch.setitem(ENGINES, "unsupported", replace(native, load=refuse))
    return Plan((), {"albert": [(2, 5), (1, 5)]}, (), tmp_path / "no data", tmp_path / "runs", 0.0, memory=False)


def test_bench_runs_engines_on_the_same_network_and_names_those_left_out(small_plan):
    native_kernels.best()
    measured = ["native", "native_bf16", "onnx_cpu", "ort_stock", "torch", "torch_bf16"]
    names = (*measured, "sentence_transformers", "absent", "unsupported")
    found = bench.bench(replace(small_plan, engines=names), lambda _: None)

    assert [result.engine for result in found.results] == 2 * measured
    assert found.left_out == {
        "sentence_transformers": "albert-classify: it needs the checkpoint of the artifact",
        "absent": "a_package_that_does_not_exist is not installed",
        "unsupported": "albert-classify: it has no support",
    }
    assert [result.error < 0.1 for result in found.results] == [True] * 12
    assert found.results[4].error == 0 < found.results[5].error
    assert [result.engine for result in found.all_cores] == ([] if found.setting.cores == 1 else measured)
    assert found.peak > 0
    assert found.texts == "built-in sentences"
    assert "absent is left out: a_package_that_does_not_exist is not installed." in report.text(found)


def test_peak_counts_its_multiply_adds():
    library = native_kernels.best()

    assert library.multiply_at_peak(1) > 0
    assert library.multiply_at_peak(300) == 300 * library.multiply_at_peak(1)


def test_stock_quantiser_keeps_a_table_that_is_also_a_matrix(tmp_path):
    """The masked-LM head multiplies with the word table, which the quantiser would transpose for both uses."""
    manifest = small_networks.draft("mobilebert", "fill-mask").manifest
    onnx.save(small_networks.graph("mobilebert", "fill-mask"), tmp_path / networks.GRAPH)
    network = networks.Network(Artifact(tmp_path, manifest))
    (rows,) = ENGINES["ort_stock"].load(network).call(Batch.of([Encoding(*np.ones((3, 4), np.int64))]))

    assert rows.shape == (4, small_networks.VOCABULARY)


def test_openvino_multiplies_with_constant_weights(tmp_path):
    """NNCF leaves weights in fp32 that the graph transposes, as it does when torch has just exported it."""
    openvino = pytest.importorskip("openvino")
    onnx.save(small_networks.graph("albert", "classify"), tmp_path / networks.GRAPH)
    network = networks.Network(Artifact(tmp_path, small_networks.draft("albert", "classify").manifest))
    graph = openvino.Core().read_model(ENGINES["openvino"].prepare(network))
    products = [node for node in graph.get_ops() if node.get_type_name() == "MatMul"]
    sources = [node.input_value(1).get_node().get_type_name() for node in products]

    assert "Constant" in sources
    assert "Transpose" not in sources


@pytest.mark.exhaustive
@pytest.mark.parametrize("bits", first(["", "_bf16"], ""))
def test_sentence_transformers_computes_the_vectors_before_they_are_normalised(tmp_path, bits):
    save_encoder(tmp_path)
    artifact, _ = import_checkpoint(
        str(tmp_path / "model"), "embed", tmp_path / "out", name="model", max_loss=0.5, report=lambda _: None
    )
    network = networks.artifact_network(artifact, tmp_path / "runs", lambda _: None)
    network = replace(network, checkpoint=tmp_path / "model")
    batch = Batch.of(networks.random_sequences([3, 9, 1]))
    expected = np.concatenate(ENGINES["torch"].load(network).call(batch))
    rows = np.concatenate(ENGINES[f"sentence_transformers{bits}"].load(network).call(batch))

    assert np.abs(rows - expected).max() <= (0.05 if bits else 0.02) * np.abs(expected).max()


@pytest.mark.parametrize(("option", "known"), [("--engine", ENGINES), ("--shape", networks.RELEASED)])
def test_command_refuses_an_unknown_engine_or_shape(option, known):
    result = CliRunner().invoke(main, ["bench", option, "abacus"])

    assert result.exit_code == 2
    assert "abacus" in result.output
    assert all(name in result.output for name in known)


def test_command_reports_a_missing_artifact(tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "SHAPES", {})
    result = CliRunner().invoke(main, ["bench", "--artifact", str(tmp_path / "none"), "--engine", "native"])

    assert result.exit_code == 1
    assert "There is no model" in result.output
