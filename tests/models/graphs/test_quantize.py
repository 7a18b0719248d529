"""Tests of quantisation: matrices and tables are stored once in int8, and the weights can be restored."""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper, numpy_helper

from swiftlet_models.architectures import albert
from swiftlet_models.graphs.quantize import MIN_ROWS, quantize, read_weights, to_bf16
from swiftlet_models.graphs.reader import INT8, SCALE, SMALLEST_BLOCK, pack, unpack
from tests.support.checkpoints import our_rows, relative_error, untrained
from tests.support.networks import CONFIGS, NETWORKS, batch, graph, network, run

TOLERANCE = 0.08  # relative error from fp32; measured on these networks with random weights: 0.023 to 0.040


@cache
def quantised(architecture: str, task: str) -> onnx.ModelProto:
    return quantize(graph(architecture, task))


def tensors(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def is_large(name: str, shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] >= MIN_ROWS and shape[1] % SMALLEST_BLOCK == 0


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantize_stores_every_matrix_and_table_once_in_int8(architecture, task):
    stored = tensors(quantised(architecture, task))
    names = Counter(tensor.name for tensor in quantised(architecture, task).graph.initializer)

    assert max(names.values()) == 1
    for name, parameter in network(architecture, task).named_parameters():
        if is_large(name, tuple(parameter.shape)):
            assert name not in stored
            assert stored[name + INT8].dtype == np.uint8
            assert stored[name + INT8].size == parameter.numel()
            assert stored[name + SCALE].shape == stored[name + INT8].shape[:2]
        else:
            assert np.array_equal(stored[name], parameter.detach().numpy())


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_to_bf16_stores_every_matrix_and_table_in_bf16(architecture, task):
    """ONNX Runtime runs the graph: the network in fp32 with rounded weights."""
    model, exact = to_bf16(graph(architecture, task)), graph(architecture, task)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    weights = read_weights(model)
    for name, parameter in network(architecture, task).named_parameters():
        large = parameter.dim() == 2 and len(parameter) >= MIN_ROWS
        assert kinds[name] == (TensorProto.BFLOAT16 if large else TensorProto.FLOAT)
        expected = parameter.detach().to(torch.bfloat16 if large else torch.float32).float().numpy()
        assert np.array_equal(weights[name], expected)
    onnx.checker.check_model(model)
    rows = batch(task, [9, 1, 33])

    assert 0 < relative_error(run(model, rows), run(exact, rows)) < 1 / 64


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantize_leaves_no_product_in_fp32(architecture, task):
    """Stock quantisation leaves ALBERT in fp32, because its weights are used more than once."""
    model = quantised(architecture, task)
    stored = tensors(model)
    made_by = {output: node for node in model.graph.node for output in node.output}

    def weight(name: str) -> np.ndarray | None:
        node = made_by.get(name)
        if node is not None and node.op_type in {"Transpose", "Identity", "Cast", "Reshape"}:
            return weight(node.input[0])
        return stored.get(name)

    for node in model.graph.node:
        if node.op_type in {"MatMul", "Gemm"}:
            found = [weight(name) for name in node.input[:2]]
            assert all(array is None or len(array) < MIN_ROWS for array in found)
        assert node.op_type not in {"DynamicQuantizeLinear", "DynamicQuantizeMatMul"}  # one scale for a whole batch


def test_quantize_stores_a_shared_layer_once():
    uses = Counter(name for node in quantised("albert", "fill-mask").graph.node for name in node.input)
    config = albert.Config(**CONFIGS["albert"])

    for part in ("query", "key", "value", "output", "ffn_in", "ffn_out"):
        assert uses[f"encoder.groups.0.0.{part}.weight{INT8}"] == config.num_hidden_layers == 2


@pytest.mark.parametrize("architecture", ["albert", "mobilebert"])
def test_quantize_keeps_the_word_table_tied(architecture):
    name = f"encoder.embeddings.word.weight{INT8}"
    users = [node.op_type for node in quantised(architecture, "fill-mask").graph.node if name in node.input]

    assert sorted(users) == ["Gather", "MatMulNBits"]


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantize_shrinks_the_weights_to_a_quarter_plus_scales(architecture, task):
    parameters = [tuple(p.shape) for p in network(architecture, task).parameters()]
    numbers = sum(np.prod(shape) for shape in parameters if is_large("", shape))
    kept = sum(4 * np.prod(shape) for shape in parameters if not is_large("", shape))
    stored = sum(array.nbytes for array in tensors(quantised(architecture, task)).values())

    assert stored <= numbers + 4 * numbers / SMALLEST_BLOCK + kept + 100


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantised_graph_computes_a_row_in_a_batch_as_alone(architecture, task):
    """The rows are equal to the last bit here, but for GPT-2, and another CPU may sum in another order."""
    given_rows = batch(task, [9, 1, 33, 200, 2])
    together = run(quantised(architecture, task), given_rows)
    alone = torch.cat([run(quantised(architecture, task), row) for row in given_rows.alone()])

    assert relative_error(together, alone) <= 3e-6


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantised_graph_is_near_fp32(architecture, task):
    given_rows = batch(task, [9, 1, 33, 200, 2])
    expected = our_rows(network(architecture, task), given_rows)
    off = relative_error(run(quantised(architecture, task), given_rows), expected)

    assert 0 < off <= TOLERANCE


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_read_weights_restores_fp32_exactly(architecture, task):
    read = read_weights(graph(architecture, task))
    own = network(architecture, task).state_dict()

    assert read.keys() == own.keys()
    assert all(np.array_equal(read[name], tensor.numpy()) for name, tensor in own.items())


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_read_weights_restores_int8_within_half_a_step(architecture, task):
    stored, read = tensors(quantised(architecture, task)), read_weights(quantised(architecture, task))
    own = network(architecture, task).state_dict()

    assert read.keys() == own.keys()
    for name, tensor in own.items():
        steps = stored.get(name + SCALE)
        off = np.abs(read[name] - tensor.numpy())
        if steps is None:
            assert not off.any()
        else:
            widths = np.repeat(steps, tensor.shape[1] // steps.shape[1], axis=1)
            assert (off <= 0.5001 * widths).all()


@pytest.mark.parametrize(("architecture", "task"), NETWORKS)
def test_quantised_graph_computes_with_the_restored_weights(architecture, task):
    """The remaining difference is the rounding of activations."""
    model = untrained(architecture, CONFIGS[architecture], task)
    weights = read_weights(quantised(architecture, task))
    model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in weights.items()})
    given_rows = batch(task, [9, 1, 33, 200, 2])

    expected = our_rows(model.eval(), given_rows)
    assert relative_error(run(quantised(architecture, task), given_rows), expected) <= 0.05


def test_quantize_does_not_change_its_argument():
    before = graph("bert", "qa").SerializeToString()
    quantize(graph("bert", "qa"))

    assert graph("bert", "qa").SerializeToString() == before


# (rows, columns) of a matrix, and its block.
WIDTHS = [
    ((64, 256), 128),
    ((17, 128), 128),
    ((33, 192), 64),
    ((40, 96), 32),
    ((16, 16), 16),
    ((40, 48), 16),
    ((40, 20), None),
    ((40, 8), None),
    ((40, 37), None),
    ((15, 128), None),
    ((2, 64), None),
]


@pytest.mark.parametrize(("shape", "block"), WIDTHS, ids=str)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Gemm without bias"])
def test_quantize_leaves_unsuitable_widths_in_fp32(kind, rank, shape, block):
    weight, model = _tied(kind, rank, shape)
    result = quantize(model)
    stored = tensors(result)
    ids = np.arange(6).reshape([6] if rank == 1 else [2, 3]) % shape[0]
    expected, actual = _compute(model, ids), _compute(result, ids)

    if block is None:
        assert np.array_equal(stored["weight"], weight)
        assert np.array_equal(actual, expected)
    else:
        assert "weight" not in stored
        assert stored["weight.int8"].shape == (shape[0], shape[1] // block, block)
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() <= 0.03 * np.abs(expected).max()
    assert np.allclose(read_weights(result)["weight"], weight, atol=np.abs(weight).max() / 250)


def test_quantize_leaves_a_scaled_gemm_in_fp32():
    _, model = _tied("Gemm", 1, (64, 128), alpha=2.0)
    result = quantize(model)

    assert "weight" in tensors(result)
    assert np.abs(_compute(result, np.arange(6)) / _compute(model, np.arange(6)) - 1).max() < 0.5


def test_quantize_keeps_a_weight_that_other_nodes_read():
    _, model = _tied("MatMul", 1, (64, 64))
    model.graph.node.append(helper.make_node("ReduceSum", ["weight"], ["sum"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["rows", "sum"], ["more"]))
    model.graph.output[0].name = "more"

    expected, actual = (_compute(one, np.arange(6)) for one in (model, quantize(model)))
    assert np.abs(actual - expected).max() <= 0.03 * np.abs(expected).max()


def _tied(kind: str, rank: int, shape: tuple[int, int], **settings: float) -> tuple[np.ndarray, onnx.ModelProto]:
    """Returns a graph that looks ids up in a table, and multiplies the result with the table again."""
    weight = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    bias = np.random.default_rng(4).normal(size=shape[:1]).astype(np.float32)
    if kind == "MatMul":
        nodes = [
            helper.make_node("Transpose", ["weight"], ["turned"], perm=[1, 0]),
            helper.make_node("MatMul", ["found", "turned"], ["rows"]),
        ]
    else:
        inputs = ["flat", "weight", "bias"] if kind == "Gemm" else ["flat", "weight"]
        nodes = [
            helper.make_node("Reshape", ["found", "width"], ["flat"]),
            helper.make_node("Gemm", inputs, ["rows"], transB=1, **settings),
        ]
    made = helper.make_graph(
        [helper.make_node("Gather", ["weight", "ids"], ["found"], axis=0), *nodes],
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, list("BS"[:rank]))],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(weight, "weight"),
            numpy_helper.from_array(bias, "bias"),
            numpy_helper.from_array(np.array([-1, shape[1]]), "width"),
        ],
    )
    return weight, helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _compute(model: onnx.ModelProto, ids: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"ids": ids})[0]


@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 3).map(lambda blocks: blocks * SMALLEST_BLOCK)),
        elements=st.floats(-(2.0**99), 2.0**99, width=32),
    )
)
@example(np.zeros((1, SMALLEST_BLOCK), np.float32))
@example(np.full((1, SMALLEST_BLOCK), 190 * 2.0**-149, np.float32))  # float32 cannot represent a step
def test_pack_rounds_by_at_most_half_a_step(weight):
    packed, scales = pack(weight, SMALLEST_BLOCK)
    off = np.abs(unpack(packed, scales).astype(np.float64) - weight)

    assert packed.dtype == np.uint8
    assert packed.min() >= 1
    assert packed.shape == (len(weight), weight.shape[1] // SMALLEST_BLOCK, SMALLEST_BLOCK)
    assert (off <= 0.5001 * np.repeat(scales, SMALLEST_BLOCK, axis=1)).all()


@given(
    hnp.arrays(np.uint8, (3, 2, SMALLEST_BLOCK), elements=st.integers(1, 255)),
    hnp.arrays(np.float32, (3, 2), elements=st.floats(2**-20, 2**20, width=32)),
)
def test_pack_inverts_unpack(packed, scales):
    packed[:, :, 0] = 255  # every block uses its whole range
    again, same = pack(unpack(packed, scales), SMALLEST_BLOCK)

    assert np.array_equal(again, packed)
    assert np.allclose(same, scales, rtol=1e-6)
