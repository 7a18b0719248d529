"""The parameters in a graph that torch or optimum exported, under the names that they have in the checkpoint.

The exporters keep the names of most parameters. They store the matrix of a linear layer transposed and without a name,
as the right side of a MatMul. The bias that is added to the product, or the name of the node, tells the layer:
`/encoder/layer.0/attention/self/query/MatMul`. Equal tensors are stored once; Identity nodes name the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import IO, Final

from swiftlet_models.graphs.reader import Graph, Node, Opener, read_graph
from swiftlet_models.tensors import FLOATS, Matrix, Tensor, Weights, WeightsError, are_equal, strided

_PARAMETER: Final = re.compile(r"\w+(\.\w+)+", re.ASCII)
_QUANTISED: Final = re.compile(r"uantizeLinear|QLinear|Integer$")  # operations
_BIAS: Final = ".bias"


class GraphError(ValueError):
    """Raised when the parameters of a graph cannot be told. The message is a clause."""


def open_graph(file: IO[bytes], opener: Opener) -> Weights:
    """Returns the parameters in an open file by name, which are read when they are used.

    Raises:
        GraphError: the graph is damaged or was changed after the export.
        OSError: a file cannot be read.
    """
    try:
        graph = read_graph(file, opener)
    except GraphError:
        raise
    except (ValueError, IndexError):
        raise GraphError("it is damaged") from None
    if any(node.domain not in ("", "ai.onnx") or _QUANTISED.search(node.operation) for node in graph.nodes):
        raise GraphError("it was quantised, or optimised for a runtime")
    try:
        return _named(graph)
    except WeightsError as error:
        raise GraphError(str(error).removesuffix(".")) from None


def _named(graph: Graph) -> dict[str, Matrix]:
    """Raises GraphError if a matrix has no name, or two have the same."""
    tensors = dict(graph.initializers)
    for node in graph.nodes:
        if node.operation == "Identity" and node.inputs[:1] and node.inputs[0] in tensors:
            tensors |= dict.fromkeys(node.outputs, tensors[node.inputs[0]])
    biases = {name: bias for node in graph.nodes if node.operation == "Add" for name, bias in _bias(node, tensors)}
    named: dict[str, Matrix] = {name: tensor for name, tensor in tensors.items() if _PARAMETER.fullmatch(name)}
    known = {tensors[name] for name in named}
    sources: dict[str, Tensor] = {}  # of the matrices that the products name
    for node in graph.nodes:
        if node.operation != "MatMul" or len(node.inputs) != 2 or node.inputs[1] not in tensors:
            continue
        name, tensor = node.inputs[1], tensors[node.inputs[1]]
        layer = _layer(node, biases)
        if name in named or layer is None or len(tensor.shape) != 2:
            raise GraphError("the layer of a matrix cannot be told")
        matrix = strided(replace(tensor, shape=tensor.shape[::-1]), (1, tensor.shape[1]))
        name = f"{layer}.weight"
        if name in named and sources.get(name) != tensor and not are_equal(named[name], matrix):
            raise GraphError("two matrices seem to belong to the same layer")
        named.setdefault(name, matrix)
        sources.setdefault(name, tensor)
        known.add(tensor)
    if any(
        tensor.kind in FLOATS and math.prod(tensor.shape) > 1 and tensor not in known for tensor in tensors.values()
    ):
        raise GraphError("the layer of a tensor cannot be told, as if it was exported for texts of one length")
    return named


def _bias(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yields what is added to a bias, and the name of the bias."""
    for name, bias in zip(node.inputs, node.inputs[::-1], strict=True):
        if bias in tensors and bias.endswith(_BIAS) and _PARAMETER.fullmatch(bias):
            yield name, bias


def _layer(node: Node, biases: Mapping[str, str]) -> str | None:
    """Returns the name of the layer that multiplies with a matrix.

    A layer that runs several times has names of nodes that end with a number, but the same bias. The bias of a language
    model's outputs belongs to the layer around the product.
    """
    path = ".".join(node.name.split("/")[1:-1])
    bias = next((biases[name].removesuffix(_BIAS) for name in node.outputs if name in biases), "")
    return (path if path.startswith(f"{bias}.") or not bias else bias) or None
