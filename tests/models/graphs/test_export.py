"""Tests of the export: the ONNX file computes the same rows, stores each weight once, and names no local paths."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto
from torch import Tensor, nn

from swiftlet_models.encodings import Encoding
from swiftlet_models.graphs.export import ExportError, export, write
from swiftlet_models.heads import Model
from tests.support.checkpoints import our_rows, randomise, relative_error, untrained
from tests.support.graph_cache import cached, structure
from tests.support.networks import CONFIGS, EXPORTED, batch, graph, network, run
from tests.support.paths import ROOT
from tests.support.tiers import first


def assert_stores_weights(made: onnx.ModelProto, model: Model) -> None:
    """Asserts that a graph stores each weight and each table of a network once, and nothing else."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    own, tables = model.state_dict(), dict(model.named_buffers(remove_duplicate=False))  # layers may share a table

    assert len(stored) == len(made.graph.initializer) == len(own) + len({id(table) for table in tables.values()})
    assert stored.keys() - tables.keys() == own.keys()
    assert all(np.array_equal(array, (own | tables)[name].numpy()) for name, array in stored.items())


SHAPES = ([1], [2], [17], [512], [1, 1], [5, 1, 9, 3], [40, 512, 1])


@pytest.mark.parametrize("lengths", first(SHAPES, [17], [5, 1, 9, 3]), ids=str)
@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_exported_graph_computes_the_rows_of_torch(architecture, task, lengths):
    given = batch(task, lengths)
    expected = our_rows(network(architecture, task), given)

    assert relative_error(run(graph(architecture, task), given), expected) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_exported_graph_computes_a_row_in_a_batch_as_alone(architecture, task):
    given = batch(task, [9, 1, 33, 512, 2])
    alone = torch.cat([run(graph(architecture, task), row) for row in given.alone()])

    assert relative_error(run(graph(architecture, task), given), alone) <= 1e-5


@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_export_stores_every_parameter_once_under_its_name(architecture, task):
    assert_stores_weights(graph(architecture, task), network(architecture, task))


@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_export_stores_little_besides_the_weights(architecture, task):
    """ALBERT applies its layer twice: a constant of the graph could be a copy of its weights."""
    model = network(architecture, task)
    weights = sum(4 * tensor.numel() for tensor in (*model.parameters(), *model.buffers()))

    assert weights < len(graph(architecture, task).SerializeToString()) < weights + 60_000


@pytest.mark.parametrize(("architecture", "task"), EXPORTED)
def test_export_is_self_contained_and_names_no_local_paths(architecture, task):
    made = copy.deepcopy(graph(architecture, task))

    assert all(tensor.data_location == TensorProto.DEFAULT for tensor in made.graph.initializer)
    assert not made.metadata_props
    assert not any(node.doc_string or node.metadata_props for node in made.graph.node)
    for tensor in made.graph.initializer:
        tensor.ClearField("raw_data")  # any bytes occur among millions of numbers
    content = made.SerializeToString()
    here = (str(ROOT), sys.prefix, f"{Path.home()}/")
    for trace in (*here, ".py", "site-packages", "forward"):
        assert trace.encode() not in content


@pytest.mark.exhaustive
@pytest.mark.parametrize("shared", ["attention", "feed_forward"])
def test_exported_graph_shares_a_part_of_the_layers(shared):
    model = untrained("albert", CONFIGS["albert"] | {"shared_parameters": shared}, "classify").eval()
    randomise(model)
    made, given = export(model), batch("classify", [9, 1, 33])

    assert_stores_weights(made, model)
    assert relative_error(run(made, given), our_rows(model, given)) <= 1e-5


def test_write_is_deterministic_and_writes_one_file(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        write(graph("albert", "classify"), tmp_path / name / "model.onnx")

    assert [file.name for file in (tmp_path / "one").iterdir()] == ["model.onnx"]
    assert (tmp_path / "one/model.onnx").read_bytes() == (tmp_path / "other/model.onnx").read_bytes()
    assert onnx.load(tmp_path / "one/model.onnx") == graph("albert", "classify")


def test_export_rejects_a_graph_that_lacks_a_parameter():
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = nn.Parameter(torch.ones(3))
            self.forgotten = nn.Parameter(torch.ones(3))

        def forward(self, input_ids: Tensor, types: Tensor, lengths: Tensor, focus: Tensor) -> Tensor:
            del types, lengths
            return input_ids.flatten()[focus][:, None] * self.used

    with pytest.raises(ExportError, match="forgotten is not in the graph"):
        export(Forgetful())


def _encodings(task) -> list[Encoding]:
    return [
        Encoding(row.input_ids[0].numpy(), row.token_type_ids[0].numpy(), row.focus.numpy())
        for row in batch(task, [6, 1, 30]).alone()
    ]


@pytest.mark.exhaustive
def test_cached_graph_gets_the_weights_of_its_network(tmp_path):
    """`tests/conftest.py` gives cached graphs to most tests."""
    traced = []

    def trace(model: Model) -> onnx.ModelProto:
        traced.append(model)
        return export(model)

    other = copy.deepcopy(network("bert", "qa"))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1
    read = cached(trace, tmp_path)
    read(network("bert", "qa"))

    assert_stores_weights(read(other), other)
    assert len(traced) == 1


def test_structure_of_a_network_depends_on_everything_but_its_weights():
    one = network("bert", "qa")
    other_epsilon, shared = copy.deepcopy(one), copy.deepcopy(one)
    other_epsilon.encoder.embeddings.norm.eps *= 2
    shared.encoder.layers[0].query.bias = shared.encoder.layers[0].key.bias
    structures = {structure(model) for model in (one, network("bert", "classify"), other_epsilon, shared)}

    assert len(structures) == 4
    assert structure(copy.deepcopy(one)) in structures


class OfATest(nn.Linear):
    """A layer whose code no stored graph's name depends on."""


def test_networks_of_tests_have_no_stored_graph():
    model = copy.deepcopy(network("bert", "qa"))
    model.encoder.layers[0].query = OfATest(1, 1)

    assert structure(model) == ""
