"""A folded network as an ONNX graph over a ragged batch: what ONNX Runtime runs in the place of the graph exported.

T tokens of B rows come end to end, and every product sees them and no padding; only around attention a gather lays
them out as B rows of S, the longest, and another takes them back. The last layer computes the N positions that the
head reads, F of a row at most, and the head those alone. Layers that come one after another with the same parameters
(ALBERT) are a loop, so that ONNX Runtime packs their weights once and not once for each.

Inputs, all int64 but `lengths`, which is int32 (`inputs` of `service/engines/onnx_cpu.py` makes them):

    input_ids, token_type_ids, positions (T,)
    before, after (T,)      each token's neighbours in its row, T where there is none (MobileBERT)
    spread (B, S)           the token in each place; anything in places of padding
    gathered (T,)           the place of each token, b * S + s
    lengths (B,)
    focus (N,)              the tokens that the head reads
    focus_spread (B, F), focus_gathered (N,)        as the two above, of those tokens

Output: `rows` (N, O) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_serve.models.folding import Folded, FoldingError, Product
from swiftlet_serve.models.graphs.reader import ZERO, block_of, pack
from swiftlet_serve.models.graphs.writer import CONTRIB, Graph

Multiply = Callable[[Graph, str, Product, str, str], str]
"""Adds the nodes of a product: from its name, its parameters, the value (T, K) and the T zero points of those rows, to
the value (T, N)."""

# Operators for the activations of `architectures`, with their domains.
ACTIVATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "relu": ("Relu", ""),
    "gelu": ("Gelu", CONTRIB),
    "gelu_new": ("FastGelu", CONTRIB),
    "gelu_pytorch_tanh": ("FastGelu", CONTRIB),
    "tanh": ("Tanh", ""),
}


def ragged(folded: Folded, multiply: Multiply) -> bytes:
    """The network as the content of an ONNX file; `multiply` is how products are computed.

    Raises:
        FoldingError: ONNX Runtime does not know its activation.
    """
    if folded.activation not in ACTIVATIONS:
        raise FoldingError(f"its activation is {folded.activation!r}")
    return Network(folded, multiply).build()


def in_fp32(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:  # noqa: ARG001  # it needs none
    """As it is."""
    return graph.add("Gemm", [x, *_floats(graph, name, product)], transB=1)


def in_int8(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """Weights in 8 bits with a scale for each output, activations in 8 bits with a scale for each token.

    Both are unsigned. Where weights are signed, ONNX Runtime on a CPU with AVX2 and no more adds two products in 16
    bits, which hold no 255 * 127 twice: on trained networks that cost more than a bit of all weights.
    """
    weight, scale = _by_output(product.weight.astype(np.float32))
    largest = graph.add("ReduceMax", [graph.add("Abs", [x]), _last(graph)], keepdims=0)  # (T,)
    step = graph.add("Mul", [largest, graph.array("step", np.array(1 / 127, np.float32))])
    # A token of nothing but zeros has no step, and whatever comes of it is then times zero.
    small = graph.add("QuantizeLinear", [x, step, zeros], axis=0)
    one, zero = graph.array("one", np.array(1, np.float32)), graph.array("zero", np.array(ZERO, np.uint8))
    arrays = [graph.array(name + ".int8", weight.T), one, graph.array(name + ".scale", scale)]
    large = graph.add("MatMulIntegerToFloat", [small, *arrays, zero, zero], domain=CONTRIB)
    scaled = graph.add("Mul", [large, graph.add("Unsqueeze", [step, _last(graph)])])
    return graph.add("Add", [scaled, graph.array(name + ".bias", product.bias.astype(np.float32))])


def in_mixed(graph: Graph, name: str, product: Product, x: str, zeros: str) -> str:
    """The head's table of words in 8 bits, as in `in_int8`, and everything else as it is."""
    return (in_int8 if name == "head.decoder" else in_fp32)(graph, name, product, x, zeros)


def of_int8(folded: Folded) -> Multiply:
    """How a network is computed whose weights are stored in int8.

    In 8 bits, but for MobileBERT. Its layers normalise nothing, so that what is rounded in one goes on to the last: its
    rows came out up to four times as far off as ALBERT's. And 8 bits would save it a tenth of its time at most, for its
    products are narrow. Measured on a CPU with AVX2 and no more: `loadtest/results/int8_variants.md`.
    """
    return in_mixed if folded.architecture == "mobilebert" else in_int8


def _by_output(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(N, K) in 8 bits about ZERO, and the N scales."""
    packed, scale = pack(weight, weight.shape[1])
    return packed[:, 0], scale[:, 0]


def _floats(graph: Graph, name: str, product: Product) -> tuple[str, str]:
    weight, bias = product.weight.astype(np.float32), product.bias.astype(np.float32)
    return graph.array(name, weight), graph.array(name + ".bias", bias)


def _last(graph: Graph) -> str:
    """The axis."""
    return graph.array("last", np.array([-1]))


class Network:
    """A graph that is being made of a folded network."""

    def __init__(self, folded: Folded, multiply: Multiply) -> None:
        self.folded = folded
        self.multiply = multiply
        self.thin = folded.architecture == "mobilebert"
        self.graph = Graph()
        self.indices: dict[tuple[str, int, int], str] = {}

    def build(self) -> bytes:
        g, f = self.graph, self.folded
        for name in ("input_ids", "token_type_ids", "positions", "gathered", "focus", "focus_gathered"):
            g.input(name, "int64", 1)
        for name in ("before", "after") if self.thin else ():
            g.input(name, "int64", 1)
        for name in ("spread", "focus_spread"):
            g.input(name, "int64", 2)
        g.input("lengths", "int32", 1)
        zero = g.array("zero", np.array(ZERO, np.uint8))
        for name, rows in (("tokens.zeros", "positions"), ("focus.zeros", "focus")):
            g.add("Expand", [zero, g.add("Shape", [rows])], called=name)
        parts = 4 if self.thin else 3
        every = [self.nth("spread", parts, part) for part in (0, parts - 2, parts - 1)]
        x = self.embeddings()
        *inner, last = f.order
        for i, run in groupby(inner):
            times = len(list(run))
            x = self.layer(g, i, x, every) if times == 1 else self.repeated(i, times, x, every)
        x = self.last_layer(last, x)
        g.output("rows", "float32", 2, self.head(x))
        return g.file()

    def embeddings(self) -> str:
        g, f = self.graph, self.folded
        words = self.words()
        if self.thin:
            nobody = g.array("nobody", np.zeros((1, f.words.shape[1]), np.float32))
            padded = g.add("Concat", [words, nobody], axis=0)
            window = [g.add("Gather", [padded, "after"]), words, g.add("Gather", [padded, "before"])]
            words = self.product(g, "embeddings.projection", g.add("Concat", window, axis=1))
        position = g.add("Gather", [self.vector(g, "embeddings.position"), "positions"])
        kind = g.add("Gather", [self.vector(g, "embeddings.token_type"), "token_type_ids"])
        x = g.add("Add", [words, g.add("Add", [position, kind])])
        if self.thin:
            return x
        x = self.norm(g, "embeddings.norm", x)
        return self.product(g, "embeddings.projection", x) if "embeddings.projection" in f.products else x

    def words(self) -> str:
        """The words' rows of the table, which is in int8 where products are."""
        g, table = self.graph, self.folded.words
        block = block_of(table.shape[1])
        if self.multiply is in_fp32 or block is None:
            return g.add("Gather", [g.array("words", table.astype(np.float32)), "input_ids"])
        packed, scale = pack(table.astype(np.float32), block)
        values = g.add("Cast", [g.add("Gather", [g.array("words.int8", packed), "input_ids"])], to=1)
        centred = g.add("Sub", [values, g.array("words.zero", np.array(ZERO, np.float32))])
        scales = g.add("Gather", [g.array("words.scale", scale[:, :, None]), "input_ids"])
        shape = g.array("words.shape", np.array([-1, table.shape[1]]))
        return g.add("Reshape", [g.add("Mul", [centred, scales]), shape])

    def repeated(self, i: int, times: int, x: str, every: list[str]) -> str:
        """A layer, so many times."""
        g, body = self.graph, Graph(self.graph)
        name = f"layers.{i}."
        body.input(name + "round", "int64", 0)
        going, stream = body.input(name + "going", "bool", 0), body.input(name + "stream", "float32", 2)
        body.output(name + "go_on", "bool", 0, going)
        body.output(name + "passed_on", "float32", 2, self.layer(body, i, stream, every))
        count = g.array(f"{name}times.{times}", np.array(times))
        return g.add("Loop", [count, g.array("yes", np.array(True)), x], body=body)

    def layer(self, g: Graph, i: int, x: str, every: list[str]) -> str:
        """A layer of which all tokens are wanted; query, residual, key and value are one product."""
        name = f"layers.{i}."
        p = self.folded.products
        joined = Product(
            np.concatenate([p[name + "qr"].weight, p[name + "kv"].weight]),
            np.concatenate([p[name + "qr"].bias, p[name + "kv"].bias]),
        )
        every_part = self.multiply(g, name + "qrkv", joined, x, "tokens.zeros")
        parts = self.narrow(g, every_part)
        attended = self.attend(g, [g.add("Gather", [parts, index]) for index in every], "gathered")
        residual = self.residual(g, every_part) if self.thin else x
        return self.rest(g, name, attended, residual, x)

    def last_layer(self, i: int, x: str) -> str:
        """A layer of which the head's positions are wanted."""
        g, name = self.graph, f"layers.{i}."
        pairs = self.narrow(g, self.product(g, name + "kv", x))
        x = g.add("Gather", [x, "focus"])
        queries = self.product(g, name + "qr", x, "focus")
        places = [
            g.add("Gather", [self.narrow(g, queries), self.nth("focus_spread", 2 if self.thin else 1, 0)]),
            *(g.add("Gather", [pairs, self.nth("spread", 2, part)]) for part in (0, 1)),
        ]
        attended = self.attend(g, places, "focus_gathered")
        residual = self.residual(g, queries) if self.thin else x
        return self.rest(g, name, attended, residual, x, "focus")

    def attend(self, g: Graph, places: list[str], back: str) -> str:
        """Query, key and value (B, S, C), of which the query is scaled, to (T, C)."""
        inputs = [*places, "", "lengths"]
        out = g.add(
            "MultiHeadAttention",
            inputs,
            domain=CONTRIB,
            num_heads=self.folded.heads,
            scale=1.0,
            mask_filter_value=float(np.finfo(np.float32).min),
        )
        return g.add("Gather", [self.narrow(g, out), back])

    def rest(self, g: Graph, name: str, attended: str, residual: str, x: str, rows: str = "tokens") -> str:
        """What comes after attention."""
        f = self.folded
        if not self.thin:
            x = self.norm(g, name + "attention_norm", x, self.product(g, name + "output", attended, rows))
            return self.norm(g, name + "ffn_norm", x, self.feed_forward(g, name + "ffns.0.", x, rows))
        y = self.gain(g, name + "output_gain", self.product(g, name + "output", attended, rows), residual)
        for j in range(f.networks):
            own = f"{name}ffns.{j}."
            y = self.gain(g, own + "gain", self.feed_forward(g, own, y, rows), y)
        return self.gain(g, name + "leave_gain", self.product(g, name + "leave", y, rows), x)

    def feed_forward(self, g: Graph, name: str, x: str, rows: str) -> str:
        return self.product(g, name + "out", self.activation(g, self.product(g, name + "in", x, rows)), rows)

    def head(self, x: str) -> str:
        g, f = self.graph, self.folded
        if "head.decoder" in f.products:
            x = self.norm(g, "head.norm", self.activation(g, self.product(g, "head.transform", x, "focus")))
            return self.product(g, "head.decoder", x, "focus")
        if "head.pooler" in f.products:
            x = g.add("Tanh", [self.product(g, "head.pooler", x, "focus")])
        output = Product(f.vectors["head.output"], f.vectors["head.output_bias"])
        return in_fp32(g, "head.output", output, x, "focus.zeros")

    def product(self, g: Graph, name: str, x: str, rows: str = "tokens") -> str:
        return self.multiply(g, name, self.folded.products[name], x, rows + ".zeros")

    def activation(self, g: Graph, x: str) -> str:
        operator, domain = ACTIVATIONS[self.folded.activation]
        return g.add(operator, [x], domain=domain)

    def gain(self, g: Graph, name: str, x: str, residual: str) -> str:
        return g.add("Add", [x, g.add("Mul", [residual, self.vector(g, name)])])

    def norm(self, g: Graph, name: str, x: str, residual: str | None = None) -> str:
        weight, bias = self.vector(g, name + ".weight"), self.vector(g, name + ".bias")
        if residual is None:
            return g.add("LayerNormalization", [x, weight, bias], axis=-1, epsilon=self.folded.epsilon)
        inputs = [x, residual, weight, bias]
        return g.add("SkipLayerNormalization", inputs, domain=CONTRIB, epsilon=self.folded.epsilon)

    def vector(self, g: Graph, name: str) -> str:
        return g.array(name, self.folded.vectors[name].astype(np.float32))

    def narrow(self, g: Graph, x: str) -> str:
        """Anything as rows of the width inside a layer."""
        return g.add("Reshape", [x, g.array("narrow", np.array([-1, self.folded.inner]))])

    def nth(self, index: str, parts: int, part: int) -> str:
        """An index of rows as one of rows that come in parts: of the parts with this number."""
        if parts == 1:
            return index
        key = index, parts, part
        if key not in self.indices:
            g = self.graph
            first = g.add("Mul", [index, g.array(f"number.{parts}", np.array(parts))])
            self.indices[key] = g.add("Add", [first, g.array(f"number.{part}", np.array(part))])
        return self.indices[key]

    def residual(self, g: Graph, queries: str) -> str:
        """What comes from one product with the queries, which are before it."""
        width = self.folded.inner
        start, stop = (g.array(f"columns.{at}", np.array([at])) for at in (width, 2 * width))
        return g.add("Slice", [queries, start, stop, g.array("columns", np.array([1]))])
