"""Rounds the weights of an fp32 graph to int8 or bf16.

In int8, weights have one scale per block of 128 numbers of an output, symmetric around the stored value 128. ONNX
Runtime's `MatMulNBits` (com.microsoft, accuracy level 4) quantises each row of activations by itself, so that no row
depends on the rest of the batch. Residuals, softmax and norms stay in fp32. (Stock dynamic quantisation uses one scale
for a whole batch. It leaves shared weights, and so all of ALBERT, in fp32.)

A quantised parameter NAME (N, K) is stored once as `NAME.int8` (N, K / b, b) uint8 and `NAME.scale` (N, K / b) float32.
The graph may use it several times, as a matrix, as a table of embeddings, or as both.

A parameter NAME in bf16 is stored under its name. A `Cast` converts it to fp32, and everything is computed in fp32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from swiftlet_models.graphs.reader import INT8, SCALE, ZERO, block_of, merge, pack, round_to_bf16

MIN_ROWS: Final = 16  # smaller matrices and tables stay in fp32
CONTRIB: Final = "com.microsoft"
Array = NDArray[Any]


def quantize(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the network with every matrix and table of embeddings in int8.

    The graph must be one that `export` wrote: a matrix is an initializer of a `Transpose`, or of a `Gemm` that
    transposes it. A table is an initializer of a `Gather`.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    transposed = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Transpose" and node.input[0] in weights and len(weights[node.input[0]].dims) == 2
    }
    ranks = _ranks(model)
    nodes: list[onnx.NodeProto] = []
    quantised: dict[str, tuple[Array, Array]] = {}
    for node in graph.node:
        name = _weight(node, transposed)
        block = _block(weights[name]) if name in weights else None
        if name is None or block is None:
            nodes.append(node)
            continue
        if name not in quantised:
            quantised[name] = pack(numpy_helper.to_array(weights[name]), block)
        shape = quantised[name][0].shape
        if node.op_type == "Gather":
            nodes.extend(_table(node, name, ranks[node.input[1]]))
        else:
            nodes.extend(_product(node, name, shape))
    used = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    kept = [node for node in nodes if node.op_type != "Transpose" or node.output[0] in used]
    used = {name for node in kept for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    for name, (packed, scales) in quantised.items():
        tensors += [numpy_helper.from_array(packed, name + INT8), numpy_helper.from_array(scales, name + SCALE)]
    tensors += [
        numpy_helper.from_array(np.array(ZERO, np.float32), "int8.zero"),
        numpy_helper.from_array(np.array([-1], np.int64), "int8.last"),
        *(numpy_helper.from_array(np.array([0] * rank + [-1], np.int64), f"int8.flat{rank}") for rank in (1, 2)),
    ]
    graph.ClearField("node")
    graph.ClearField("initializer")
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    if not any(opset.domain == CONTRIB for opset in result.opset_import):
        result.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return result


def to_bf16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the network with every matrix and table of embeddings in bf16. The graph must be one that `export` wrote.

    Raises:
        ValueError: a weight is too large for bf16.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph, casts = result.graph, []
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2 and tensor.dims[0] >= MIN_ROWS:
            bits = round_to_bf16(numpy_helper.to_array(tensor))
            tensor.data_type, tensor.raw_data = onnx.TensorProto.BFLOAT16, bits.astype("<u2").tobytes()
            casts.append(helper.make_node("Cast", [tensor.name], [tensor.name + ".fp32"], to=onnx.TensorProto.FLOAT))
    rounded = {node.input[0] for node in casts}
    for node in graph.node:
        node.input[:] = [f"{name}.fp32" if name in rounded else name for name in node.input]
    nodes = [*casts, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    return result


def read_weights(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """Returns the parameters of a graph that `export`, `quantize` or `to_bf16` wrote, by name, in fp32."""
    return merge({tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer})


def _block(tensor: onnx.TensorProto) -> int | None:
    """Returns the size of the blocks of a row, or None if the tensor stays in fp32."""
    if len(tensor.dims) != 2 or tensor.data_type != onnx.TensorProto.FLOAT or tensor.dims[0] < MIN_ROWS:
        return None
    return block_of(tensor.dims[1])


def _weight(node: onnx.NodeProto, transposed: dict[str, str]) -> str | None:
    """Returns the name of the parameter that a node multiplies with or looks up in."""
    match node.op_type:
        case "MatMul":
            return transposed.get(node.input[1])
        case "Gemm":
            settings = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            plain = settings.get("alpha", 1.0) == settings.get("beta", 1.0) == 1.0 and not settings.get("transA", 0)
            return node.input[1] if plain and settings.get("transB", 0) else None
        case "Gather":
            axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), 0)
            return node.input[0] if axis == 0 else None
    return None


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """Returns the number of dimensions of each value."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {value.name: len(value.type.tensor_type.shape.dim) for value in (*graph.input, *graph.value_info)}


def _table(node: onnx.NodeProto, name: str, rank: int) -> Iterable[onnx.NodeProto]:
    """Yields the nodes that replace a look-up by ids of `rank` dimensions."""
    (output,), ids = node.output, node.input[1]
    yield helper.make_node("Gather", [name + INT8, ids], [f"{output}.int8"], axis=0)  # (..., K / b, b)
    yield helper.make_node("Cast", [f"{output}.int8"], [f"{output}.cast"], to=onnx.TensorProto.FLOAT)
    yield helper.make_node("Sub", [f"{output}.cast", "int8.zero"], [f"{output}.centred"])
    yield helper.make_node("Gather", [name + SCALE, ids], [f"{output}.scale"], axis=0)  # (..., K / b)
    yield helper.make_node("Unsqueeze", [f"{output}.scale", "int8.last"], [f"{output}.scales"])
    yield helper.make_node("Mul", [f"{output}.centred", f"{output}.scales"], [f"{output}.blocks"])
    yield helper.make_node("Reshape", [f"{output}.blocks", f"int8.flat{rank}"], [output])


def _product(node: onnx.NodeProto, name: str, shape: tuple[int, ...]) -> Iterable[onnx.NodeProto]:
    """Yields the nodes that replace a product. The quantised parameter has the shape (N, K / b, b)."""
    (output,) = node.output
    rows, blocks, block = shape
    biased = node.op_type == "Gemm" and len(node.input) == 3
    product = f"{output}.product" if biased else output
    yield helper.make_node(
        "MatMulNBits",
        [node.input[0], name + INT8, name + SCALE],
        [product],
        domain=CONTRIB,
        N=rows,
        K=blocks * block,
        bits=8,
        block_size=block,
        accuracy_level=4,  # int8 activations
    )
    if biased:
        yield helper.make_node("Add", [product, node.input[2]], [output])
