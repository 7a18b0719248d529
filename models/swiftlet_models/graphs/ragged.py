"""The ONNX graph of a folded network over a ragged batch. ONNX Runtime runs it in place of the exported graph.

The T tokens of B sequences come end to end, so that the products see no padding. Only for attention, a gather lays them
out as B rows of S, the longest sequence, and another gather takes them back. The last layer computes only the N
positions that the head reads, at most F per sequence, and so does the head. (A head that pools reads all tokens.)
Consecutive layers with the same parameters (ALBERT) are a loop, so that ONNX Runtime packs their weights once.

Inputs, all int64 except `lengths`, which is int32 (`inputs` of `swiftlet_serve/engines/onnx_cpu.py` makes them):

    input_ids, token_type_ids (if the network has token types), positions (T,)
    before, after (T,)      each token's neighbours in its sequence, T if there is none (trigram only)
    spread (B, S)           the token at each place; the sequence's last token at places of padding
    gathered (T,)           the place of each token, b * S + s
    lengths (B,)
    focus (N,)              the tokens that the head reads
    focus_spread (B, F), focus_gathered (N,)        like spread and gathered, for the tokens in focus
    owner (N,)              the sequence of each token in focus (a head that pools only)

Output: `rows` (N, O) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.folding import Folded, FoldingError, Matrix, Product, blocks
from swiftlet_models.graphs.reader import ZERO, block_of, pack
from swiftlet_models.graphs.writer import CONTRIB, Graph

Multiply = Callable[[Graph, str, Product, str, str], str]
"""Adds the nodes of a product. Takes its name, its parameters, the value (T, K) and the T zero points of its rows, and
returns the value (T, N)."""

# The operators of the activations in `architectures.layers`, with their domains.
ACTIVATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "relu": ("Relu", ""),
    "gelu": ("Gelu", CONTRIB),
    "gelu_new": ("FastGelu", CONTRIB),
    "gelu_pytorch_tanh": ("FastGelu", CONTRIB),
    "tanh": ("Tanh", ""),
}


def ragged(folded: Folded, multiply: Multiply) -> bytes:
    """Returns the network as the content of an ONNX file. `multiply` computes its products.

    Raises:
        FoldingError: ONNX Runtime has no operator for its activation.
    """
    for activation in (folded.traits.activation, folded.head_activation, folded.dense):
        if activation is not None and activation not in ACTIVATIONS:
            raise FoldingError(f"the activation {activation!r} is not supported")
    return Network(folded, multiply).build()


def in_fp32(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:  # noqa: ARG001  # no zero points
    """Multiplies in fp32."""
    return graph.add("Gemm", [x, *_floats(graph, name, product)], transB=1)


def in_int8(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """Multiplies in 8 bits: weights with one scale per output, activations with one scale per token.

    Both are unsigned. If weights are signed, ONNX Runtime adds two products in 16 bits on a CPU that has no more than
    AVX2. 16 bits cannot hold 255 * 127 twice: on trained networks that cost more than one bit of all weights.
    """
    weight, scale = _by_output(product.matrix)
    largest = graph.add("ReduceMax", [graph.add("Abs", [x]), _last(graph)], keepdims=0)  # (T,)
    step = graph.add("Mul", [largest, graph.array("step", np.array(1 / 127, np.float32))])
    # A token of zeros has step 0. Its quantised values are undefined, but they are multiplied by 0.
    small = graph.add("QuantizeLinear", [x, step, zeros], axis=0)
    one, zero = graph.array("one", np.array(1, np.float32)), graph.array("zero", np.array(ZERO, np.uint8))
    arrays = [graph.array(name + ".int8", weight.T), one, graph.array(name + ".scale", scale)]
    large = graph.add("MatMulIntegerToFloat", [small, *arrays, zero, zero], domain=CONTRIB)
    scaled = graph.add("Mul", [large, graph.add("Unsqueeze", [step, _last(graph)])])
    return graph.add("Add", [scaled, graph.array(name + ".bias", product.bias.astype(np.float32))])


def in_mixed(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """Multiplies the masked-LM head's word table in 8 bits, as `in_int8`, and all other products in fp32."""
    return (in_int8 if name == "head.decoder" else in_fp32)(graph, name, product, x, zeros)


def of_int8(folded: Folded) -> Multiply:
    """Returns how to multiply in a network whose weights are stored in int8.

    Layers with LayerNorm are computed in 8 bits. NoNorm does not normalise, so that rounding errors pass from each
    layer to the last: in 8 bits, MobileBERT's rows deviated up to four times as much as ALBERT's. 8 bits would save
    MobileBERT a tenth of its time at most, because its products are narrow. Measured on a CPU with AVX2 only:
    `loadtest/results/int8_variants.md`.
    """
    return in_mixed if folded.traits.norm == "no_norm" else in_int8


def _by_output(matrix: Matrix) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns a matrix (N, K) in 8 bits around ZERO, and its N scales."""
    packed, scale = _packed(matrix, matrix.shape[1])
    return packed[:, 0], scale[:, 0]


def _packed(matrix: Matrix, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns a matrix as `pack` does, a few rows at a time."""
    packed, scales = zip(*(pack(matrix[rows].astype(np.float32), block) for rows in blocks(matrix)), strict=True)
    return np.concatenate(packed), np.concatenate(scales)


def _floats(graph: Graph, name: str, product: Product) -> tuple[str, str]:
    weight, bias = product.weight.astype(np.float32), product.bias.astype(np.float32)
    return graph.array(name, weight), graph.array(name + ".bias", bias)


def _last(graph: Graph) -> str:
    """Returns an array with the number of the last axis."""
    return graph.array("last", np.array([-1]))


class Network:
    """Builds the graph of a folded network."""

    def __init__(self, folded: Folded, multiply: Multiply) -> None:
        self.folded = folded
        self.traits = folded.traits
        self.multiply = multiply
        self.graph = Graph()
        self.indices: dict[tuple[str, int, int], str] = {}
        self.query_parts = 2 if self.traits.bottleneck else 1  # the query, and the residual if there is a bottleneck
        self.query_key_value: list[str] = []  # the indices of the three in the product that has all of them
        self.bias = self.focus_bias = ""  # of attention, in all layers but the last, and in the last one
        self.norm_first = self.traits.norm_position == "before"

    def build(self) -> bytes:
        g, f = self.graph, self.folded
        pools = f.pooling != "cls"
        for name in ("input_ids", "positions", "gathered", "focus", "focus_gathered", *(["owner"] if pools else [])):
            g.input(name, "int64", 1)
        if self.traits.embedding.token_types:
            g.input("token_type_ids", "int64", 1)
        for name in ("before", "after") if self.traits.embedding.window > 1 else ():
            g.input(name, "int64", 1)
        for name in ("spread", "focus_spread"):
            g.input(name, "int64", 2)
        g.input("lengths", "int32", 1)
        zero = g.array("zero", np.array(ZERO, np.uint8))
        for name, rows in (("tokens.zeros", "positions"), ("focus.zeros", "focus")):
            g.add("Expand", [zero, g.add("Shape", [rows])], called=name)
        parts = self.query_parts + 2
        self.query_key_value = [self.part_index("spread", parts, part) for part in (0, parts - 2, parts - 1)]
        if self.traits.causal or self.traits.position_bias:
            self.bias, self.focus_bias = map(self.attention_bias, self.query_positions())
        x = self.embeddings()
        *before_last, last = f.order
        for i, run in groupby(f.order if pools else before_last):
            times = len(list(run))
            x = self.layer(g, i, x) if times == 1 else self.repeated(i, times, x)
        if not pools:
            x = self.last_layer(last, x)
        if self.norm_first:
            x = self.layer_norm(g, "final_norm", x)
        if pools:
            x = self.pooled(x)
        g.output("rows", "float32", 2, self.head(x))
        return g.file()

    def embeddings(self) -> str:
        g, f, traits = self.graph, self.folded, self.traits.embedding
        words = self.words()
        if traits.window > 1:
            no_neighbour = g.array("no_neighbour", np.zeros((1, f.words.shape[1]), np.float32))
            padded = g.add("Concat", [words, no_neighbour], axis=0)
            window = [g.add("Gather", [padded, "after"]), words, g.add("Gather", [padded, "before"])]
            words = g.add("Concat", window, axis=1)
        if traits.projection == "words":
            words = self.product(g, "embeddings.projection", words)
        added = g.add("Gather", [self.vector(g, "embeddings.position"), "positions"])
        if traits.token_types:
            token_type = g.add("Gather", [self.vector(g, "embeddings.token_type"), "token_type_ids"])
            added = g.add("Add", [added, token_type])
        x = g.add("Add", [words, added])
        if traits.norm == "layer_norm":
            x = self.layer_norm(g, "embeddings.norm", x)
        return self.product(g, "embeddings.projection", x) if traits.projection == "sum" else x

    def words(self) -> str:
        """The words' rows of the word table. The table is in int8 if the products are."""
        g, table = self.graph, self.folded.words
        block = block_of(table.shape[1])
        if self.multiply is in_fp32 or block is None:
            return g.add("Gather", [g.array("words", np.asarray(table, np.float32)), "input_ids"])
        packed, scale = _packed(table, block)
        values = g.add("Cast", [g.add("Gather", [g.array("words.int8", packed), "input_ids"])], to=1)
        centred = g.add("Sub", [values, g.array("words.zero", np.array(ZERO, np.float32))])
        scales = g.add("Gather", [g.array("words.scale", scale[:, :, None]), "input_ids"])
        shape = g.array("words.shape", np.array([-1, table.shape[1]]))
        return g.add("Reshape", [g.add("Mul", [centred, scales]), shape])

    def repeated(self, i: int, times: int, x: str) -> str:
        """A layer that is applied several times in a row, as a loop."""
        g, body = self.graph, Graph(self.graph)
        name = f"layers.{i}."
        body.input(name + "iteration", "int64", 0)
        condition, hidden = body.input(name + "condition", "bool", 0), body.input(name + "hidden", "float32", 2)
        body.output(name + "condition_out", "bool", 0, condition)
        body.output(name + "hidden_out", "float32", 2, self.layer(body, i, hidden))
        count = g.array(f"{name}times.{times}", np.array(times))
        return g.add("Loop", [count, g.array("true", np.array(True)), x], body=body)

    def layer(self, g: Graph, i: int, x: str) -> str:
        """A layer that computes all tokens. Query, residual, key and value are one product."""
        name = f"layers.{i}."
        entered, x = x, self.preceding_norm(g, name + "attention_norm", x)
        query, key_value = (self.folded.products[name + part] for part in ("query_residual", "key_value"))
        joined = Product(np.concatenate([query.weight, key_value.weight]), np.concatenate([query.bias, key_value.bias]))
        all_parts = self.multiply(g, name + "query_residual_key_value", joined, x, "tokens.zeros")
        parts = self.inner_rows(g, all_parts)
        places = [g.add("Gather", [parts, index]) for index in self.query_key_value]
        attended = self.attention(g, places, "gathered", self.bias)
        return self.after_attention(g, name, attended, self.residual(g, all_parts, entered), entered)

    def last_layer(self, i: int, x: str) -> str:
        """A layer that computes the positions in focus."""
        g, name = self.graph, f"layers.{i}."
        entered, x = x, self.preceding_norm(g, name + "attention_norm", x)
        key_value = self.inner_rows(g, self.product(g, name + "key_value", x))
        entered, x = (g.add("Gather", [value, "focus"]) for value in (entered, x))
        queries = self.product(g, name + "query_residual", x, "focus")
        places = [
            g.add("Gather", [self.inner_rows(g, queries), self.part_index("focus_spread", self.query_parts, 0)]),
            *(g.add("Gather", [key_value, self.part_index("spread", 2, part)]) for part in (0, 1)),
        ]
        attended = self.attention(g, places, "focus_gathered", self.focus_bias)
        return self.after_attention(g, name, attended, self.residual(g, queries, entered), entered, "focus")

    def query_positions(self) -> tuple[str, str]:
        """Returns the positions of the queries of all layers but the last, (1, S), and of those in focus, (B, F)."""
        g = self.graph
        zero, one = (g.array(f"number.{i}", np.array(i)) for i in (0, 1))
        size = g.add("Gather", [g.add("Shape", ["spread"]), one], axis=0)
        every = g.add("Range", [zero, size, one], called="positions.all")
        in_focus = g.add("Gather", ["positions", g.add("Gather", ["focus", "focus_spread"])])
        return g.add("Unsqueeze", [every, g.array("axis.0", np.array([0]))]), in_focus

    def attention_bias(self, positions: str) -> str:
        """Returns the numbers to add to the scores, (1 or B, 1 or A, S or F, S), for queries at these positions."""
        g, traits = self.graph, self.traits
        last = g.add("Unsqueeze", [positions, _last(g)])
        distances = g.add("Sub", ["positions.all", last])  # (B, F, S), from a query to a key
        parts = []
        if traits.position_bias is not None:
            longest = len(self.folded.vectors["embeddings.position"])
            columns = g.add("Add", [distances, g.array("distance.0", np.array(longest - 1))])
            by_head = g.add("Gather", [self.vector(g, "position_bias"), columns], axis=1)  # (A, B, F, S)
            parts.append(g.add("Transpose", [by_head], perm=(1, 0, 2, 3)))
        if traits.causal:
            after = g.add("Greater", [distances, g.array("number.0", np.array(0))])
            values = (g.array(f"bias.{v}", np.array(v, np.float32)) for v in (np.finfo(np.float32).min, 0))
            masked = g.add("Where", [after, *values])
            parts.append(g.add("Unsqueeze", [masked, g.array("axis.1", np.array([1]))]))
        return parts[0] if len(parts) == 1 else g.add("Add", parts)

    def preceding_norm(self, g: Graph, name: str, x: str) -> str:
        return self.layer_norm(g, name, x) if self.norm_first else x

    def attention(self, g: Graph, places: list[str], gathered: str, bias: str) -> str:
        """Query (scaled), key and value, (B, S, C) each, to (T, C)."""
        inputs = [*places, "", "lengths", *([bias] if bias else [])]
        out = g.add(
            "MultiHeadAttention",
            inputs,
            domain=CONTRIB,
            num_heads=self.traits.heads,
            scale=1.0,
            mask_filter_value=float(np.finfo(np.float32).min),
        )
        return g.add("Gather", [self.inner_rows(g, out), gathered])

    def residual(self, g: Graph, queries: str, x: str) -> str:
        """The residual inside a layer: the part after the query if there is a bottleneck, or the hidden states."""
        if not self.traits.bottleneck:
            return x
        width = self.folded.inner
        start, stop = (g.array(f"columns.{at}", np.array([at])) for at in (width, 2 * width))
        return g.add("Slice", [queries, start, stop, g.array("columns", np.array([1]))])

    def after_attention(self, g: Graph, name: str, attended: str, residual: str, x: str, rows: str = "tokens") -> str:
        """The part of a layer after attention. x (T, H) are the hidden states that entered the layer."""
        y = self.add_and_norm(g, name + "output", attended, residual, rows)
        for j in range(len(self.traits.feed_forward)):
            network = f"{name}feed_forward.{j}."
            entered = self.preceding_norm(g, network + "norm", y)
            widened = self.activation(g, self.product(g, network + "inner", entered, rows), self.traits.activation)
            y = self.add_and_norm(g, network + "outer", widened, y, rows)
        return self.add_and_norm(g, name + "leave", y, x, rows) if self.traits.bottleneck else y

    def pooled(self, x: str) -> str:
        """The mean or the maximum of the tokens (T, H) of each position's sequence, (N, H)."""
        g, shape = self.graph, self.graph.array("hidden_rows", np.array([-1, self.folded.hidden]))
        places = g.add("Gather", [x, "spread"])  # (B, S, H)
        second = g.array("second", np.array([1]))
        if self.folded.pooling == "max":  # padding repeats the last token
            return g.add("Gather", [g.add("ReduceMax", [places, second], keepdims=0), "owner"])
        # The running sum adds the tokens in order, so that padding, which comes last, changes no bit.
        sums = g.add("Reshape", [g.add("CumSum", [places, g.array("number.1", np.array(1))]), shape])
        lengths = g.add("Cast", ["lengths"], to=7)
        ends = g.add("CumSum", [lengths, g.array("number.0", np.array(0))])
        last = g.add("Gather", [g.add("Sub", [ends, second]), "owner"])
        counts = g.add("Cast", [g.add("Gather", [lengths, "owner"])], to=1)
        total = g.add("Gather", [sums, g.add("Gather", ["gathered", last])])
        return g.add("Div", [total, g.add("Unsqueeze", [counts, _last(g)])])

    def head(self, x: str) -> str:
        g, f = self.graph, self.folded
        if "head.decoder" in f.products and "head.transform" not in f.products:
            return self.product(g, "head.decoder", x, "focus")
        if "head.decoder" in f.products:
            x = self.activation(g, self.product(g, "head.transform", x, "focus"), f.head_activation)
            return self.product(g, "head.decoder", self.layer_norm(g, "head.norm", x), "focus")
        if "head.pooler" in f.products:
            x = self.activation(g, self.product(g, "head.pooler", x, "focus"), f.head_activation)
        if "head.output" in f.vectors:
            output = Product(f.vectors["head.output"], f.vectors["head.output_bias"])
            x = in_fp32(g, "head.output", output, x, "focus.zeros")
        return self.activation(g, x, f.dense) if f.dense else x

    def product(self, g: Graph, name: str, x: str, rows: str = "tokens") -> str:
        return self.multiply(g, name, self.folded.products[name], x, rows + ".zeros")

    def activation(self, g: Graph, x: str, name: str | None) -> str:
        if name is None:
            return x
        operator, domain = ACTIVATIONS[name]
        return g.add(operator, [x], domain=domain)

    def add_and_norm(self, g: Graph, name: str, x: str, residual: str, rows: str) -> str:
        """A product, the residual and the norm, unless the norms precede.

        NoNorm is folded into the product, except for the residual's gain.
        """
        y = self.product(g, name, x, rows)
        if self.traits.norm == "no_norm":
            return g.add("Add", [y, g.add("Mul", [residual, self.vector(g, name + ".gain")])])
        if self.norm_first:
            return g.add("Add", [residual, y])
        inputs = [residual, y, *self.norm_vectors(g, name + ".norm")]
        return g.add("SkipLayerNormalization", inputs, domain=CONTRIB, epsilon=self.folded.epsilon)

    def layer_norm(self, g: Graph, name: str, x: str) -> str:
        inputs = [x, *self.norm_vectors(g, name)]
        return g.add("LayerNormalization", inputs, axis=-1, epsilon=self.folded.epsilon)

    def norm_vectors(self, g: Graph, name: str) -> tuple[str, str]:
        return self.vector(g, name + ".weight"), self.vector(g, name + ".bias")

    def vector(self, g: Graph, name: str) -> str:
        return g.array(name, self.folded.vectors[name].astype(np.float32))

    def inner_rows(self, g: Graph, x: str) -> str:
        """Reshapes a value to rows of the width inside a layer."""
        return g.add("Reshape", [x, g.array("inner_rows", np.array([-1, self.folded.inner]))])

    def part_index(self, index: str, parts: int, part: int) -> str:
        """Turns an index of rows into the index of one of their `parts`, for rows that are split into parts."""
        if parts == 1:
            return index
        key = index, parts, part
        if key not in self.indices:
            g = self.graph
            first = g.add("Mul", [index, g.array(f"number.{parts}", np.array(parts))])
            self.indices[key] = g.add("Add", [first, g.array(f"number.{part}", np.array(part))])
        return self.indices[key]
