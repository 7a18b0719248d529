"""The ONNX graph of a folded network over a ragged batch. ONNX Runtime runs it in place of the exported graph.

The T tokens of B sequences come end to end, so that the products see no padding. Only for attention, a gather lays them
out as B rows of S, the longest sequence, and another gather takes them back. After the program's `Read`, only the N
positions that the head reads are computed, at most F per sequence. A block that runs several times (ALBERT) is a loop,
so that ONNX Runtime packs its weights once.

A graph declares the inputs that its steps need. All are int64 except `lengths` and `attended`, which are int32.
`ragged_inputs` of `swiftlet_serve/engines/onnx_cpu.py` makes them:

    input_ids, token_type_ids, positions (T,)
    before, after (T,)      each token's neighbours in its sequence, T if there is none
    spread (B, S)           the token at each place; the sequence's last token at places of padding
    gathered (T,)           the place of each token, b * S + s
    lengths (B,)
    attended (B,)           the tokens of each sequence that tokens attend to, from the first one on
    focus (N,)              the tokens that the head reads
    focus_spread (B, F), focus_gathered (N,)        like spread and gathered, for the tokens in focus
    owner (N,)              the sequence of each token in focus

Output: `rows` (N, O) float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.folded import Folded, FoldingError, Product
from swiftlet_models.graphs.activations import Range
from swiftlet_models.graphs.writer import CONTRIB, Graph
from swiftlet_models.program import (
    WORDS,
    Attend,
    Block,
    Gate,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Read,
    Relative,
    Rotate,
    Step,
    joined,
)
from swiftlet_models.tensors import ZERO, Computed, Matrix, block_of, blocks, pack


class Rows(NamedTuple):
    """The rows that a product multiplies."""

    x: str  # the value (T, K)
    zeros: str  # the zero points of the rows, (T, 1): 0 if no number is negative, or else ZERO
    positive: bool  # whether no number is negative


Multiplier = Callable[[Graph, str, Product, Rows], str]
"""Adds the nodes of a product. Takes its name, its parameters and its rows, and returns the value (T, N)."""

# The operators of the activations in `architectures.layers`, with their domains.
ACTIVATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "relu": ("Relu", ""),
    "gelu": ("Gelu", CONTRIB),
    "gelu_new": ("FastGelu", CONTRIB),
    "gelu_pytorch_tanh": ("FastGelu", CONTRIB),
    "tanh": ("Tanh", ""),
}
INPUTS: Final = {
    "lengths": ("int32", 1),
    "attended": ("int32", 1),
    "spread": ("int64", 2),
    "focus_spread": ("int64", 2),
}  # others: int64, 1
INDEX: Final[Mapping[str, str]] = {"position": "positions", "token_type": "token_type_ids"}  # others: words
NEIGHBOURS: Final[Mapping[str, str]] = {"next_word": "after", "previous_word": "before"}


def ragged(folded: Folded, multiply: Multiplier) -> bytes:
    """Returns the network as the content of an ONNX file. `multiply` computes its products.

    Raises:
        FoldingError: there is no operator for one of its steps or activations.
    """
    return Network(folded, multiply).build()


def in_fp32(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """Multiplies in fp32."""
    return graph.add("Gemm", [rows.x, *_floats(graph, name, product)], transB=1)


def in_int8(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """Multiplies in 8 bits: weights with one scale per output, activations with one scale per token.

    Both are unsigned. If weights are signed, ONNX Runtime adds two products in 16 bits on a CPU that has no more than
    AVX2. 16 bits cannot hold 255 * 127 twice: on trained networks that cost more than one bit of all weights.
    """
    weight, scale = _by_output(product.matrix)
    zero = graph.array(f"zero.{ZERO}", np.array(ZERO, np.uint8))
    return _in_8_bits(graph, name, product, rows, (graph.array(name + ".int8", weight.T), scale), zero)


def in_signed(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """Multiplies as `in_int8`, but with signed weights, for which CPUs have instructions that add in 32 bits."""
    weight, scale = _signed(product.matrix)
    return _in_8_bits(graph, name, product, rows, (graph.array(name + ".signed", weight), scale))


def in_ranges(ranges: Mapping[str, Range]) -> Multiplier:
    """Multiplies as `in_signed`, but activations of the products in `ranges` have one scale, which no text changes."""

    def multiply(graph: Graph, name: str, product: Product, rows: Rows) -> str:
        fixed = ranges.get(name)
        if fixed is None:
            return in_signed(graph, name, product, rows)
        x, matrix, divisor = rows.x, product.matrix, fixed.divisor
        if (divisor != 1).any():
            x = graph.add("Mul", [x, graph.array(name + ".factor", 1 / divisor)])
            matrix = Computed(matrix.shape, np.dtype(np.float32), lambda rows: product.matrix[rows] * divisor)
        weight, scale = _signed(matrix)
        step = graph.array(name + ".step", np.array(fixed.step))
        zero = graph.array(f"zero.{fixed.zero}", np.array(fixed.zero))
        small = graph.add("QuantizeLinear", [x, step, zero])
        parts: dict[str, NDArray[Any]] = {"signed": weight, "scale": scale, "bias": product.bias.astype(np.float32)}
        signed, scales, bias = (graph.array(f"{name}.{part}", array) for part, array in parts.items())
        return graph.add("MatMulIntegerToFloat", [small, signed, step, scales, zero, "", bias], domain=CONTRIB)

    return multiply


def _in_8_bits(
    graph: Graph,
    name: str,
    product: Product,
    rows: Rows,
    weight: tuple[str, NDArray[np.float32]],
    *weight_zero: str,
) -> str:
    x, zeros, positive = rows
    columns, levels, middle = product.matrix.shape[1], 255 if positive else 127, 0 if positive else ZERO
    largest = graph.add("ReduceMax", [x, numbers(graph, -1)], keepdims=1)  # (T, 1)
    if not positive:  # two reductions are faster than absolute values, which need memory
        smallest = graph.add("ReduceMin", [x, numbers(graph, -1)], keepdims=1)
        largest = graph.add("Max", [largest, graph.add("Neg", [smallest])])
    step = graph.add("Mul", [largest, graph.array(f"step.{levels}", np.array(1 / levels, np.float32))])
    # A row is one block, because the scales of blocks may stay (T, 1) for the multiplication below.
    # A token of zeros has step 0. Its quantised values are undefined, but they are multiplied by 0.
    small = graph.add("QuantizeLinear", [x, step, zeros], axis=1, block_size=columns)
    one, zero = graph.array("one", np.array(1, np.float32)), graph.array(f"zero.{middle}", np.array(middle, np.uint8))
    arrays = [weight[0], one, graph.array(name + ".scale", weight[1])]
    large = graph.add("MatMulIntegerToFloat", [small, *arrays, zero, *weight_zero], domain=CONTRIB)
    scaled = graph.add("Mul", [large, step])
    return graph.add("Add", [scaled, graph.array(name + ".bias", product.bias.astype(np.float32))])


def in_mixed(graph: Graph, name: str, product: Product, rows: Rows) -> str:
    """Multiplies the masked-LM head's word table in 8 bits, as `in_int8`, and all other products in fp32."""
    return (in_int8 if name == "head.decoder" else in_fp32)(graph, name, product, rows)


def of_int8(folded: Folded, *, signed: bool, ranges: Mapping[str, Range] | None = None) -> Multiplier:
    """Returns how to multiply in a network whose weights are stored in int8.

    If the CPU multiplies `signed` weights without saturation, that is the fastest for every network, and `ranges` make
    it faster. Otherwise, only
    layers with LayerNorm are computed in 8 bits. NoNorm, which folding turns into gains, does not normalise, so that
    rounding errors pass from each layer to the last, and unsigned weights would save MobileBERT a tenth of its time
    at most, because its products are narrow: `loadtest/results/int8_variants.md`.
    """
    if signed:
        return in_ranges(ranges) if ranges else in_signed
    has_no_norm = any(isinstance(step, Multiply) and step.gain is not None for step in folded.program)
    return in_mixed if has_no_norm else in_int8


def _by_output(matrix: Matrix) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns a matrix (N, K) in 8 bits around ZERO, and its N scales."""
    packed, scale = _packed(matrix, matrix.shape[1])
    return packed[:, 0], scale[:, 0]


def _signed(matrix: Matrix) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Returns a matrix (N, K) in signed 8 bits, transposed to (K, N), and the scales of its outputs, (N,)."""
    weight, scale = _by_output(matrix)
    return (weight ^ ZERO).view(np.int8).T, scale


def _packed(matrix: Matrix, block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns a matrix as `pack` does, a few rows at a time."""
    packed, scales = zip(*(pack(matrix[rows].astype(np.float32), block) for rows in blocks(matrix)), strict=True)
    return np.concatenate(packed), np.concatenate(scales)


def _floats(graph: Graph, name: str, product: Product) -> tuple[str, str]:
    weight, bias = product.weight.astype(np.float32), product.bias.astype(np.float32)
    return graph.array(name, weight), graph.array(name + ".bias", bias)


def number(graph: Graph, value: int) -> str:
    """Returns an array () with a number."""
    return graph.array(f"number.{value}", np.array(value))


def numbers(graph: Graph, *values: int) -> str:
    """Returns an array of numbers."""
    return graph.array(f"numbers.{','.join(map(str, values))}", np.array(values))


class Network:
    """Builds the graph of a folded network: the nodes of each step of its program."""

    def __init__(self, folded: Folded, multiply: Multiplier) -> None:
        self.folded = folded
        self.program = joined(folded.program)
        self.multiply = multiply
        self.outermost = Graph()  # nodes that do not depend on a layer are added here, so that loops do not repeat them
        self.graph = self.outermost  # of the current block
        self.columns: dict[Place, str] = {}  # of values, as they were computed
        self.positive: set[str] = set()  # those of them without negative numbers
        self.rows = ""  # a prefix: "" for tokens, "focus_" for the positions that the head reads

    def build(self) -> bytes:
        """Returns the content of an ONNX file. Raises FoldingError as `ragged` does."""
        for block in self.program.blocks:
            if block.times == 1:
                self.run(block.steps)
            else:
                self.loop(block)
        first, *others = (self.whole(result) for result in self.program.results)
        rows = self.graph.add("Concat", [first, *others], axis=1) if others else first
        self.graph.output("rows", "float32", 2, rows)
        return self.graph.file()

    def loop(self, block: Block) -> None:
        value = next(step.x for step in block.steps if isinstance(step, Multiply | Norm))  # the only one that enters
        inputs = [number(self.graph, block.times), self.graph.array("true", np.array(True)), self.whole(value)]
        body = Graph(self.outermost)
        body.input("iteration", "int64", 0)
        body.output("condition_out", "bool", 0, body.input("condition", "bool", 0))
        self.graph, self.columns = body, {self.place(value): body.input("entering", "float32", 2)}
        self.run(block.steps)
        body.output("leaving", "float32", 2, self.whole(value))
        self.graph, self.columns = self.outermost, {}
        self.write(self.place(value), self.graph.add("Loop", inputs, body=body))

    def run(self, steps: Sequence[Step]) -> None:
        while steps:
            match steps:
                case [LookUp() as step, *steps]:
                    self.write(step.out, self.looked_up(step))
                case [Multiply() as step, *steps]:
                    self.write(self.place(step.out), self.multiplied(step))
                case [Norm() as step, *steps]:
                    self.write(self.place(step.out), self.normed(step))
                case [NormHeads() as step, *steps]:
                    self.write(step.x, self.normed_heads(step))
                case [Gate() as step, *steps]:
                    self.write(self.place(step.out), self.gated(step))
                case [Rotate() as step, *steps]:
                    self.write(step.x, self.rotated(step))
                case [Attend() as step, *steps]:
                    self.write(self.place(step.out), self.attended(step))
                case [Read() as step, *steps]:
                    self.write(self.place(step.out), self.read_rows(step))
                    self.rows = "focus_"
                case [step, *_]:
                    raise FoldingError(f"the step {type(step).__name__} is not supported")

    # ---- values

    def place(self, value: str) -> Place:
        return Place(value, 0, self.program.widths[value])

    def whole(self, value: str) -> str:
        return self.read(self.place(value))

    def read(self, place: Place) -> str:
        """Returns columns (T or N, width)."""
        if place in self.columns:
            return self.columns[place]
        whole = self.place(place.value)
        if whole not in self.columns:
            parts = sorted(part for part in self.columns if part.value == place.value)
            if sum(part.width for part in parts) != whole.width:
                raise FoldingError(f"a step reads columns of {place.value!r} that no step writes")
            self.write(whole, self.graph.add("Concat", [self.columns[part] for part in parts], axis=1))
            return self.read(place)
        return self.slice(self.columns[whole], place.first, place.width)

    def slice(self, x: str, first: int, width: int) -> str:
        bounds = (numbers(self.graph, bound) for bound in (first, first + width, 1))
        return self.graph.add("Slice", [x, *bounds])

    def write(self, place: Place, x: str) -> None:
        end = place.first + place.width
        for other in [other for other in self.columns if other.value == place.value]:
            last = other.first + other.width
            if last <= place.first or end <= other.first:
                continue
            whole = self.columns.pop(other)
            if other.first <= place.first and end <= last:
                for first, stop in ((other.first, place.first), (end, last)):
                    if first < stop:
                        rest = Place(place.value, first, stop - first)
                        self.columns[rest] = self.slice(whole, first - other.first, rest.width)
            elif other.first < place.first or end < last:
                raise FoldingError(f"a step writes a part of the columns of {place.value!r} that another writes")
        self.columns[place] = x

    def input(self, name: str) -> str:
        kind, rank = INPUTS.get(name, ("int64", 1))
        return self.outermost.input(name, kind, rank)

    def vector(self, name: str) -> str:
        return self.graph.array(name, self.folded.vectors[name].astype(np.float32))

    # ---- steps

    def looked_up(self, step: LookUp) -> str:
        g = self.outermost
        if step.table == WORDS:
            x = self.words
        else:
            x = g.add("Gather", [self.vector(step.table), self.input(INDEX.get(step.index, "input_ids"))])
        if step.index in NEIGHBOURS:
            no_neighbour = g.array(f"no_neighbour.{step.out.width}", np.zeros((1, step.out.width), np.float32))
            x = g.add("Gather", [g.add("Concat", [x, no_neighbour], axis=0), self.input(NEIGHBOURS[step.index])])
        return self.graph.add("Add", [self.read(step.out), x]) if step.adds else x

    @cached_property
    def words(self) -> str:
        """The words' rows of the word table. The table is in int8 if the products are."""
        g, table, ids = self.outermost, self.folded.words, self.input("input_ids")
        assert table is not None  # noqa: S101  # only a head alone has no words, and none is exported
        block = block_of(table.shape[1])
        if self.multiply is in_fp32 or block is None:
            return g.add("Gather", [g.array("words", np.asarray(table, np.float32)), ids])
        packed, scale = _packed(table, block)
        values = g.add("Cast", [g.add("Gather", [g.array("words.int8", packed), ids])], to=1)
        centred = g.add("Sub", [values, g.array("words.zero", np.array(ZERO, np.float32))])
        scales = g.add("Gather", [g.array("words.scale", scale[:, :, None]), ids])
        return g.add("Reshape", [g.add("Mul", [centred, scales]), numbers(g, -1, table.shape[1])])

    def product(self, step: Multiply) -> str:
        multiply = in_fp32 if step.exact else self.multiply
        g, x = self.outermost, self.whole(step.x)
        middle = 0 if x in self.positive else ZERO
        zero = g.array(f"zero.{middle}", np.array(middle, np.uint8))
        rows = g.add("Unsqueeze", [self.input("focus" if self.rows else "positions"), numbers(g, -1)])
        shape = g.add("Shape", [rows])
        zeros = g.add("Expand", [zero, shape])
        return multiply(self.graph, step.product, self.folded.product(step.product), Rows(x, zeros, not middle))

    def multiplied(self, step: Multiply) -> str:
        g, y = self.graph, self.product(step)
        if step.residual is not None:
            residual = self.read(step.residual)
            y = g.add("Add", [y, g.add("Mul", [residual, self.vector(step.gain)]) if step.gain else residual])
        return self.activated(y, step.activation) if step.activation else y

    def activated(self, x: str, activation: str) -> str:
        if activation == "silu":
            return self.graph.add("Mul", [x, self.graph.add("Sigmoid", [x])])
        if activation not in ACTIVATIONS:
            raise FoldingError(f"the activation {activation!r} is not supported")
        operator, domain = ACTIVATIONS[activation]
        y = self.graph.add(operator, [x], domain=domain)
        if activation == "relu":
            self.positive.add(y)
        return y

    def gated(self, step: Gate) -> str:
        width = self.program.widths[step.out]
        first, second = (self.read(Place(step.x, start, width)) for start in (0, width))
        return self.graph.add("Mul", [self.activated(first, step.activation), second])

    def rotated(self, step: Rotate) -> str:
        g, shared, half = self.graph, self.outermost, step.x.width // step.heads // 2
        positions = self.input("positions")
        if self.rows:
            positions = shared.add("Gather", [positions, self.input("focus")])
        turns = shared.add("Gather", [self.vector(step.table), positions])  # (rows, D)
        turns = shared.add("Reshape", [turns, numbers(g, -1, 2, 1, half)])
        cos, sin = (shared.add("Gather", [turns, number(g, i)], axis=1) for i in (0, 1))  # (rows, 1, D / 2)
        parts = g.add("Reshape", [self.read(step.x), numbers(g, -1, step.heads, 2, half)])
        first, second = (g.add("Gather", [parts, number(g, i)], axis=2) for i in (0, 1))  # (rows, A, D / 2)
        turned = (
            g.add(last, [g.add("Mul", [a, cos]), g.add("Mul", [b, sin])])
            for a, b, last in ((first, second, "Sub"), (second, first, "Add"))
        )
        return g.add("Reshape", [g.add("Concat", list(turned), axis=2), numbers(g, -1, step.x.width)])

    def normed(self, step: Norm) -> str:
        x, weight = self.whole(step.x), self.vector(step.norm + ".weight")
        if step.centres:
            inputs = [x, weight, self.vector(step.norm + ".bias")]
            y = self.graph.add("LayerNormalization", inputs, axis=-1, epsilon=step.epsilon)
        else:
            y = self.by_root_mean_square(x, weight, step.epsilon)
        return y if step.residual is None else self.graph.add("Add", [self.read(step.residual), y])

    def normed_heads(self, step: NormHeads) -> str:
        parts = self.graph.add(
            "Reshape", [self.read(step.x), numbers(self.graph, -1, step.heads, step.x.width // step.heads)]
        )
        y = self.by_root_mean_square(parts, self.vector(step.norm), step.epsilon)
        return self.graph.add("Reshape", [y, numbers(self.graph, -1, step.x.width)])

    def by_root_mean_square(self, x: str, weight: str, epsilon: float) -> str:
        """RMSNorm over the last dimension, in operators that both runtimes join."""
        g = self.graph
        squares = g.add("Pow", [x, g.array("two", np.array(2, np.float32))])
        mean = g.add("ReduceMean", [squares, numbers(g, -1)], keepdims=1)
        root = g.add("Sqrt", [g.add("Add", [mean, g.array(f"epsilon.{epsilon}", np.array(epsilon, np.float32))])])
        return g.add("Mul", [g.add("Div", [x, root]), weight])

    def attended(self, step: Attend) -> str:
        g = self.graph
        query, key, value = (
            self.laid_out(place, index)
            for place, index in ((step.query, self.rows + "spread"), (step.key, "spread"), (step.value, "spread"))
        )
        if step.key_heads != step.heads:
            key, value = self.for_each_head(key, step.key, step), self.for_each_head(value, step.value, step)
        out = g.add(
            "MultiHeadAttention",
            [query, key, value, "", self.input("attended"), *self.attention_bias(step, query, key)],
            domain=CONTRIB,
            num_heads=step.heads,
            scale=1.0,
            mask_filter_value=float(np.finfo(np.float32).min),
        )
        rows = g.add("Reshape", [out, numbers(g, -1, step.value.width * step.heads // step.key_heads)])
        return g.add("Gather", [rows, self.input(self.rows + "gathered")])

    def for_each_head(self, x: str, place: Place, step: Attend) -> str:
        """Repeats laid out keys or values for each head of the query that they serve."""
        g, times = self.graph, step.heads // step.key_heads
        parts = g.add("Reshape", [x, numbers(g, 0, 0, step.key_heads, place.width // step.key_heads)])
        repeated = g.add("Concat", [parts] * times, axis=3)
        return g.add("Reshape", [repeated, numbers(g, 0, 0, place.width * times)])

    def laid_out(self, place: Place, index: str) -> str:
        """Lays out columns as (B, S or F, width).

        If the width divides the value's, its rows are split into parts of the width, and the gather takes one of them.
        """
        g, shared, width = self.graph, self.outermost, self.program.widths[place.value]
        index, (part, rest) = self.input(index), divmod(place.first, place.width)
        if place in self.columns or rest or width % place.width:
            return g.add("Gather", [self.read(place), index])
        first = shared.add("Mul", [index, number(shared, width // place.width)])
        parts = g.add("Reshape", [self.whole(place.value), numbers(g, -1, place.width)])
        return g.add("Gather", [parts, shared.add("Add", [first, number(shared, part)])])

    def attention_bias(self, step: Attend, query: str, key: str) -> list[str]:
        """The numbers to add to the scores of laid out queries and keys, (1 or B, 1 or A, S or F, S), or nothing."""
        if not step.causal and all(part is None for part in (step.bias, step.window, step.relative)):
            return []
        g = self.outermost
        size = g.add("Gather", [g.add("Shape", [self.input("spread")]), number(g, 1)], axis=0)
        keys = g.add("Range", [number(g, 0), size, number(g, 1)])
        if self.rows:
            in_focus = g.add("Gather", [self.input("focus"), self.input("focus_spread")])
            queries = g.add("Gather", [self.input("positions"), in_focus])  # (B, F)
        else:
            queries = g.add("Unsqueeze", [keys, numbers(g, 0)])  # (1, S)
        distances = g.add("Sub", [keys, g.add("Unsqueeze", [queries, numbers(g, -1)])])  # from a query to a key
        parts = []
        if step.bias is not None:
            columns = g.add("Add", [distances, number(g, self.folded.positions - 1)])
            by_head = g.add("Gather", [self.vector(step.bias), columns], axis=1)  # (A, B, F, S)
            parts.append(g.add("Transpose", [by_head], perm=(1, 0, 2, 3)))
        if step.relative is not None:
            parts += self.met_distances(step, step.relative, query, key, distances)
        hidden = []
        if step.causal:
            hidden.append(g.add("Greater", [distances, number(g, 0)]))
        if step.window is not None:
            hidden.append(g.add("Greater", [g.add("Abs", [distances]), number(g, step.window // 2)]))
        if hidden:
            condition = hidden[0] if len(hidden) == 1 else g.add("Or", hidden)
            values = (g.array(f"bias.{v}", np.array(v, np.float32)) for v in (np.finfo(np.float32).min, 0))
            parts.append(g.add("Unsqueeze", [g.add("Where", [condition, *values]), numbers(g, 1)]))
        first, *others = parts
        for part in others:
            first = self.graph.add("Add", [first, part])
        return [first]

    def met_distances(self, step: Attend, relative: Relative, query: str, key: str, distances: str) -> list[str]:
        """What `program.Relative` adds to the scores: values (B, A, S or F, S)."""
        g, shared, depth = self.graph, self.outermost, step.query.width // step.heads
        columns = shared.add("Add", [distances, number(shared, self.folded.positions - 1)])
        rows = shared.array("relative_rows.int64", self.folded.vectors[relative.rows].astype(np.int64))
        rows = shared.add("Unsqueeze", [shared.add("Gather", [rows, columns]), numbers(shared, 1)])  # (1 or B, 1, F, S)
        found = []
        for x, name, axes in ((query, relative.keys, (0, 1, 2, 3)), (key, relative.queries, (0, 1, 3, 2))):
            if name is not None:
                split = g.add("Reshape", [x, numbers(g, 0, 0, step.heads, depth)])
                table = self.folded.vectors[name].reshape(-1, step.heads, depth).transpose(1, 2, 0)  # (A, D, R)
                turned = g.array(f"{name}.turned", np.ascontiguousarray(table, np.float32))
                met = g.add("MatMul", [g.add("Transpose", [split], perm=(0, 2, 1, 3)), turned])  # (B, A, F or S, R)
                chosen = shared.add("Transpose", [rows], perm=axes)
                last = shared.add("Gather", [shared.add("Shape", [chosen]), numbers(shared, 3)], axis=0)
                first = g.add("Slice", [g.add("Shape", [met]), *(numbers(g, i) for i in (0, 3))])
                spread = g.add("Expand", [chosen, g.add("Concat", [first, last], axis=0)])
                found.append(g.add("Transpose", [g.add("GatherElements", [met, spread], axis=3)], perm=axes))
        return found

    def read_rows(self, step: Read) -> str:
        g, x = self.graph, self.whole(step.x)
        if step.how == "focus":
            return g.add("Gather", [x, self.input("focus")])
        owner, lengths = self.input("owner"), g.add("Cast", [self.input("lengths")], to=7)
        places = g.add("Gather", [x, self.input("spread")])  # (B, S, width)
        if step.how == "max":  # padding repeats the last token
            return g.add("Gather", [g.add("ReduceMax", [places, numbers(g, 1)], keepdims=0), owner])
        # The running sum adds the tokens in order, so that padding, which comes last, changes no bit.
        shape = numbers(g, -1, self.program.widths[step.x])
        sums = g.add("Reshape", [g.add("CumSum", [places, number(g, 1)]), shape])
        ends = g.add("CumSum", [lengths, number(g, 0)])
        last = g.add("Gather", [g.add("Sub", [ends, numbers(g, 1)]), owner])
        total = g.add("Gather", [sums, g.add("Gather", [self.input("gathered"), last])])
        counts = g.add("Cast", [g.add("Gather", [lengths, owner])], to=1)
        return g.add("Div", [total, g.add("Unsqueeze", [counts, numbers(g, -1)])])
