"""Tests of weights in ONNX graphs: the parameters that torch exported are found again, or the graph is refused."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors
from swiftlet_models.tensors import WeightsError
from tests.support.checkpoints import AUTO, HEADS, SMALL, Task, convert, reference
from tests.support.paths import ROOT
from tests.support.tiers import first

KEY = "bert.encoder.layer.0.attention.self.key"
VERSIONS = [metadata.version(name) for name in ("onnx", "onnxscript", "torch", "transformers")]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the exporters


def export(model: Any, *, dynamo: bool) -> onnx.ModelProto:
    """Exports a model as optimum does: for any size of a batch. An export takes seconds, so its file is kept."""
    key = hashlib.sha256(repr([VERSIONS, model.config.to_json_string(), type(model).__name__, dynamo]).encode())
    for name, tensor in model.state_dict().items():
        key.update(name.encode() + tensor.numpy().tobytes())
    file = ROOT / "build/graphs" / f"checkpoint-{key.hexdigest()[:20]}.onnx"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        model.config.return_dict = False
        tokens = torch.ones(2, 8, dtype=torch.int64)
        sizes = {0: "batch", 1: "tokens"}
        options: dict[str, Any] = {
            "dynamic_shapes" if dynamo else "dynamic_axes": {"input_ids": sizes, "attention_mask": sizes},
            "dynamo": dynamo,
        }
        if dynamo:
            options["dynamic_shapes"] = [{axis: torch.export.Dim(name) for axis, name in sizes.items()}] * 2
        names = ["input_ids", "attention_mask"]
        torch.onnx.export(model, (tokens, tokens), new, input_names=names, external_data=False, **options)
        new.rename(file)
    return onnx.load(file)


def save(directory: Path, graph: onnx.ModelProto, **options: Any) -> Path:
    onnx.save(graph, directory / "model.onnx", **options)
    return directory


def check(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    """Compares the tensors of a checkpoint, whole and in part."""
    with open_tensors(directory) as weights:
        assert expected.keys() <= weights.keys()
        for name in expected:
            array = expected[name].numpy()
            assert np.array_equal(np.asarray(weights[name]), array)
            assert np.array_equal(weights[name][1:40], array[1:40])


def message(directory: Path) -> str:
    """Returns why the checkpoint is refused."""
    with pytest.raises(ConversionError) as caught, open_tensors(directory):
        pass
    text = str(caught.value)
    assert text.startswith("the weights in model.onnx cannot be read: ")
    assert "; give the checkpoint that it was exported from, or " in text
    return text.split(": ", 1)[1].rsplit("; ", 1)[0]


@pytest.fixture
def bert() -> onnx.ModelProto:
    return export(reference(SMALL["bert"], "classify"), dynamo=False)


@pytest.mark.parametrize(
    ("name", "task", "dynamo"),
    first(
        [
            ("bert", "classify", False),
            ("albert", "qa", False),
            ("roberta", "fill-mask", False),
            ("bert", "fill-mask", True),
        ],
        ("albert", "qa", False),
    ),
)
def test_graphs_give_the_tensors_of_the_checkpoint(tmp_path: Path, name: str, task: Task, dynamo: bool) -> None:
    model = reference(SMALL[name], task)
    save(tmp_path, export(model, dynamo=dynamo))
    model.config.save_pretrained(tmp_path)
    places = Counter(tensor.data_ptr() for tensor in model.state_dict().values())
    alone = {name: tensor for name, tensor in model.state_dict().items() if places[tensor.data_ptr()] == 1}
    check(tmp_path, alone)  # others have one of their names in the graph
    ours = convert(tmp_path, *HEADS[task])
    (tmp_path / "model.onnx").unlink()
    model.save_pretrained(tmp_path)
    expected = convert(tmp_path, *HEADS[task])
    assert ours.weights.keys() == expected.weights.keys()
    assert all(np.array_equal(ours.weights[name], weight) for name, weight in expected.weights.items())


def test_equal_tensors_have_their_own_names(tmp_path: Path) -> None:
    """In an untrained network, biases are zeros, and are stored once."""
    model = AUTO["classify"].from_config(SMALL["bert"].config()).eval()
    graph = export(model, dynamo=False)
    assert "bert.pooler.dense.bias" not in {tensor.name for tensor in graph.graph.initializer}
    check(save(tmp_path, graph), model.state_dict())


@pytest.mark.parametrize("folder", ["", "onnx"])
def test_tensors_lie_in_another_file(tmp_path: Path, bert: onnx.ModelProto, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    save(tmp_path / folder, bert, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    assert (tmp_path / folder / "model.onnx").stat().st_size < (tmp_path / folder / "model.onnx_data").stat().st_size
    check(tmp_path, reference(SMALL["bert"], "classify").state_dict())


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_other_types_become_fp32(tmp_path: Path, bert: onnx.ModelProto, kind: int) -> None:
    expected = {}
    for tensor in bert.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(kind))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        if "::" not in tensor.name:
            expected[tensor.name] = torch.tensor(array.astype(np.float32))
    check(save(tmp_path, bert), expected)


@pytest.mark.parametrize("prefix", ["inner", "model.0.auto_model"])
def test_layers_of_a_module_within_another_are_told(tmp_path: Path, bert: onnx.ModelProto, prefix: str) -> None:
    """Scripts export an encoder within a module of their own, as that of sentence-transformers."""
    path = prefix.replace(".", "/")
    for tensor in bert.graph.initializer:
        tensor.name = f"{prefix}.{tensor.name}" if "::" not in tensor.name else tensor.name
    names = {tensor.name for tensor in bert.graph.initializer}
    for node in bert.graph.node:
        node.input[:] = [f"{prefix}.{name}" if f"{prefix}.{name}" in names else name for name in node.input]
        node.name = f"/{path}{node.name}"
    state = reference(SMALL["bert"], "classify").state_dict()
    check(save(tmp_path, bert), {f"{prefix}.{name}": tensor for name, tensor in state.items()})


def test_graph_with_one_parameter_is_read(tmp_path: Path, bert: onnx.ModelProto) -> None:
    del bert.graph.initializer[1:], bert.graph.node[:]
    with open_tensors(save(tmp_path, bert)) as weights:
        (name,) = weights
        assert name.endswith(".weight")


def test_equal_matrices_of_a_layer_are_one(tmp_path: Path, bert: onnx.ModelProto) -> None:
    """ALBERT runs a layer several times, and an exporter may store its matrices as often."""
    repeat(bert.graph, 0)
    with open_tensors(save(tmp_path, bert)) as weights:
        assert f"{KEY}.weight" not in weights


def rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
    for tensor in graph.initializer:
        tensor.name = new if tensor.name == old else tensor.name


def products(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    return [node for node in graph.node if node.op_type == "MatMul" and node.input[1].startswith("onnx::")]


def repeat(graph: onnx.GraphProto, change: float) -> None:
    """Lets two layers share a bias, as equal ones do, and their matrices, which one number tells apart."""
    first, second = products(graph)[:2]
    matrices = {tensor.name: tensor for tensor in graph.initializer}
    array = numpy_helper.to_array(matrices[first.input[1]]).copy()
    array[0, 0] += change
    matrices[second.input[1]].raw_data = array.tobytes()
    rename(graph, f"{KEY}.bias", KEY.replace("key", "query") + ".bias")


def external(graph: onnx.GraphProto, **changes: str) -> None:
    tensor = graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in changes.items():
        tensor.external_data.add(key=key, value=value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda graph: setattr(graph.node[-1], "domain", "com.microsoft"), "it was quantised, or optimised"),
        (lambda graph: setattr(graph.node[3], "op_type", "DynamicQuantizeLinear"), "it was quantised, or optimised"),
        (lambda graph: setattr(products(graph)[0], "op_type", "MatMulInteger"), "it was quantised, or optimised"),
        # a matrix that is multiplied as the exporters never do
        (lambda graph: rename(graph, products(graph)[0].input[1], "bert.x.weight"), "the layer of a matrix cannot"),
        (lambda graph: rename(graph, "bert.embeddings.LayerNorm.bias", "bias"), "the layer of a tensor cannot be told"),
        (
            lambda graph: [
                rename(graph, f"{KEY}.bias", "b"),
                setattr(products(graph)[1], "name", "MatMul_7"),
            ],
            "the layer of a matrix cannot be told",
        ),
        (lambda graph: repeat(graph, 1), "two matrices seem to belong to the same layer"),
        (lambda graph: repeat(graph, math.nan), "a parameter is not finite"),
        (lambda graph: external(graph, location="../x"), "it reads a file that is not beside it"),
        (lambda graph: external(graph, location="/etc/passwd"), "it reads a file that is not beside it"),
        (lambda graph: external(graph, location=".."), "it reads a file that is not beside it"),
        (lambda graph: external(graph, location="gone"), "it reads a file that is not beside it"),
        (lambda graph: external(graph, location="a\0b"), "it reads a file that is not beside it"),
        (lambda graph: external(graph, location="x"), "it is damaged"),
        (lambda graph: external(graph, location="x", offset="-1"), "it is damaged"),
        (lambda graph: external(graph, location="x", length="9" * 4000), "it is damaged"),
        (lambda graph: external(graph), "it is damaged"),
        (lambda graph: graph.initializer[0].dims.__setitem__(0, 1 << 40), "it is damaged"),
    ],
)
def test_other_graphs_are_refused(
    tmp_path: Path, bert: onnx.ModelProto, change: Callable[[onnx.GraphProto], object], expected: str
) -> None:
    (tmp_path / "x").write_bytes(b"short")
    change(bert.graph)
    (tmp_path / "model.onnx").write_bytes(bert.SerializeToString())
    assert message(tmp_path).startswith(expected)


def test_damaged_graphs_give_tensors_or_one_sentence(tmp_path: Path, bert: onnx.ModelProto) -> None:
    random.seed(0)
    for tensor in bert.graph.initializer[3:]:  # most bytes would be numbers
        bert.graph.initializer.remove(tensor)
    content = bert.SerializeToString()
    outcomes = set()
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(random.choice((1, 2, 5))):
            at = random.randrange(len(content))
            damaged[at : at + random.choice((0, 1, 4))] = random.randbytes(random.choice((0, 1, 4)))
        (tmp_path / "model.onnx").write_bytes(damaged[: random.choice((len(damaged), random.randrange(len(damaged))))])
        try:
            with open_tensors(tmp_path) as weights:
                outcomes.add(len([np.asarray(weight) for weight in weights.values()]))
        except ConversionError as error:
            outcomes.add(str(error))
        except WeightsError:  # numbers that are not finite
            pass
    assert len(outcomes) > 1
