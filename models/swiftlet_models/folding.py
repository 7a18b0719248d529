"""Folding: turns a network into a program of steps, and computes the parameters of the steps.

Every rewrite is exact:

- The scale of the attention scores is folded into the query, or into its norm. Key and value are one product.
- NoNorm needs no pass of its own. In y = g x + b after x = W v + c + r, a product and a residual, g scales the rows of
  the product, g c + b is its bias, and the residual is multiplied by g (the "gain").
- A query, key or value that reads a bottleneck has no nonlinearity in front of it: two matrices become one.
- The residual inside a layer with a bottleneck comes from the same product as the query.
- A position bias is looked up for every distance between a query and a key, so that a query's row is a slice of it.
- The row of the only token type, if the network has one, is part of every position, or of every word.
- Positions and token types that are added to projected words are scaled by the gain of the NoNorm that follows.
- The masked-LM head's word table and its extra columns are one matrix.

Products and words are computed from the parameters when they are read, rows by rows, so that a network in fp32 is never
in memory as a whole.

A network can be folded whole, or in two parts: its trunk, which is the encoder, and its head, which reads the hidden
states that the trunk has computed. Heads of one trunk then share its work (`swiftlet_models/trunks.py`).

`Folded.program` are the steps. `Folded.products` are (N, K) with a bias (N,), `vectors` all other parameters, and
`words` the word table (V, E). I is the number of a layer and J the number of a feed-forward network. Layers that share
their attention or their feed-forward networks share its number:

    embeddings.position, .token_type and .projection (if there is one), .norm (LayerNorm only)
    rotation.THETA (P, D), relative_rows (2 P - 1,), and layers.I.relative_key, .relative_query (R, C): see `program`
    position_bias (A, 2 P - 1) for P positions: the distance d from a query to a key has the column P - 1 + d
    layers.I.key_value, .query_residual (the residual only with a bottleneck), .output, .leave (with a bottleneck)
    layers.I.query_norm, .key_norm (D,), if each head has a norm
    layers.I.key, .value, .query, and B with B.norm for each bottleneck B, if these have a LayerNorm
    layers.I.feed_forward.J.inner (a gate's rows first), .outer
    head.transform or .pooler, .norm (if there is one), then .decoder or .output. A head that only pools has none.
    Of embeddings: head.output for a dense layer, .terms for weights of tokens, .vectors for a vector of each token.

Each product that ends in a residual addition, X, has the vector X.gain (NoNorm) or the norm X.norm. If norms precede,
there are layers.I.attention_norm, .feed_forward.J.norm and final_norm, and X.norm only if they are around. A norm is
two vectors, `weight` and `bias`, or the first alone (RMSNorm).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import architectures
from swiftlet_models.architectures.traits import (
    AttentionTraits,
    BottleneckTraits,
    PositionBias,
    RelativeTraits,
    Traits,
)
from swiftlet_models.artifact import Artifact, Embedding, Pooling
from swiftlet_models.errors import ModelError
from swiftlet_models.parameters import Sizes, check_artifact, check_parameters, configure
from swiftlet_models.program import (
    GIVEN,
    JOIN,
    WORDS,
    Attend,
    Block,
    Gate,
    Index,
    LookUp,
    Multiply,
    Norm,
    NormHeads,
    Place,
    Program,
    Read,
    Relative,
    Rotate,
    Step,
)
from swiftlet_models.tensors import Computed, Matrix, Weights

Array = NDArray[np.floating[Any]]

Part = Literal["network", "trunk", "head"]
UNIT_EPSILON: Final = 1e-24  # of the mean square of a vector: no vector that a network computes is so short
MULTIPLE: Final = 16  # the native engine needs widths that are multiples of its widest vector, 16 floats


class FoldingError(ModelError):
    """Raised when folding does not support a network. The message is a clause that gives the reason."""


@dataclass(frozen=True)
class Product:
    """y = x W^T + b."""

    matrix: Matrix  # W (N, K)
    bias: Array  # (N,)

    @property
    def weight(self) -> Array:
        """W as an array, which is not kept."""
        return np.asarray(self.matrix)


@dataclass
class Folded:
    """A folded network, ready to be quantised."""

    program: Program
    outputs: int
    positions: int  # P, the most tokens of a sequence, whether or not there is a table of positions
    words: Matrix | None  # (V, E); None if no step reads a word
    products: dict[str, Product] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)

    @property
    def given(self) -> int:
        """The width of the hidden states that the caller gives to a head; 0 for other networks."""
        return next((step.out.width for step in self.program if isinstance(step, LookUp) and step.table == GIVEN), 0)

    @property
    def reads_all(self) -> bool:
        """Whether the head reads all tokens, and not those in focus alone."""
        return not any(isinstance(step, Read) and step.how == "focus" for step in self.program)

    def product(self, name: str) -> Product:
        """Returns a product, also one that `program.joined` makes."""
        return _stack(*(self.products[part] for part in name.split(JOIN)))


def fold(
    architecture: str,
    config: Mapping[str, Any],
    weights: Weights,
    multiple: int = MULTIPLE,
    embedding: Embedding | None = None,
    part: Part = "network",
) -> Folded:
    """Folds a network, or a part of it. Its parameters are named as in `architectures.traits` and `heads`.

    Every width must be a multiple of `multiple`. `embedding` describes the head `embedding`.

    Raises:
        FoldingError: the network is not supported.
        ParametersError: the configuration is invalid, or the parameters do not fit it.
    """
    if architecture not in architectures.names():
        raise FoldingError(f"the architecture {architecture!r} is unknown")
    own = configure(architecture, config)
    sizes = check_parameters(own, {name: weight.shape for name, weight in weights.items()}, embedding=embedding)
    traits = own.traits()
    _check_traits(traits)
    network = _Network(traits, sizes, weights)
    classifies = "head.pooler.weight" in weights
    pooling: Pooling | Literal["late"] | None = traits.classifier_pooling if classifies else "cls"
    if embedding:
        pooling = None if embedding.by_vocabulary else embedding.pooling
    if part == "head":
        network.fold_given(pooling)
    else:
        network.fold_encoder("cls" if part == "trunk" else pooling)
    if part != "trunk":
        network.fold_head(embedding)
    folded = network.folded()
    _check_widths(folded, multiple)
    return folded


def fold_artifact(artifact: Artifact, weights: Weights, multiple: int = MULTIPLE, part: Part = "network") -> Folded:
    """Folds the network of an artifact, or a part of it, from the parameters of one of its files.

    Raises:
        FoldingError: the network is not supported.
        ArtifactError: the parameters do not fit the network that the manifest describes.
    """
    check_artifact(artifact, {name: weight.shape for name, weight in weights.items()})
    manifest = artifact.manifest
    return fold(manifest.architecture, manifest.config, weights, multiple, manifest.embedding, part)


def _check_traits(traits: Traits) -> None:
    """Raises FoldingError for traits that folding and the CPU engines do not support."""
    embedding = traits.embedding
    unsupported = {
        "a NoNorm or a bottleneck is preceded by a norm": traits.norm_position != "after"
        and (traits.norm == "no_norm" or traits.bottleneck is not None),
        "a gate, a rotation, a distance, heads of keys or a norm of heads meets a bottleneck": traits.bottleneck
        is not None
        and any(
            [
                *(traits.relative, traits.key_heads, traits.head_norm, traits.norm == "rms_norm"),
                *(part.theta for part in traits.attention),
                *(network.gate for network in traits.feed_forward),
            ]
        ),
        "distances meet heads of keys or a norm of heads": traits.relative is not None
        and (traits.key_heads is not None or traits.head_norm),
        "the embeddings have a NoNorm without a projection in front": embedding.norm == "no_norm"
        and embedding.projection != "words",
        "the trigram is not projected": embedding.window > 1 and embedding.projection != "words",
    }
    for reason, is_present in unsupported.items():
        if is_present:
            raise FoldingError(reason)


class _Network:
    """A network that is being folded: its parameters and its blocks of steps so far."""

    def __init__(self, traits: Traits, sizes: Sizes, weights: Weights) -> None:
        self.traits, self.sizes, self.weights = traits, sizes, weights
        self.table = weights["encoder.embeddings.word.weight"]
        self.words: Matrix | None = None
        self.products: dict[str, Product] = {}
        self.vectors: dict[str, Array] = {}
        self.blocks: list[Block] = []
        self.widths = {"hidden": sizes.hidden, "attended": sizes.attended}
        self.results: tuple[str, ...] = ("hidden",)
        self.depth = sizes.attended // traits.heads
        self.key_heads = traits.key_heads or traits.heads
        self.scale = traits.score_scale or 1 / math.sqrt(self.depth)
        self.norm_first = traits.norm_position != "after"
        self.norm_last = traits.norm != "no_norm" and traits.norm_position != "before"
        self.kept = traits.bottleneck if traits.norm == "layer_norm" else None  # bottlenecks that do not fold
        self.epsilons: dict[str, float] = {}

    def folded(self) -> Folded:
        program = Program(tuple(self.blocks), self.widths, self.results)
        outputs = sum(self.widths[result] for result in self.results)
        return Folded(program, outputs, self.sizes.positions, self.words, self.products, self.vectors)

    # ---- parameters

    def array(self, name: str) -> Array:
        return np.asarray(self.weights[name])

    def product(self, name: str) -> Product:
        return Product(self.weights[name + ".weight"], self.array(name + ".bias"))

    def take_norm(self, name: str, source: str) -> None:
        self.vectors[name + ".weight"] = self.array(source + ".weight") + self.traits.norm_offset
        if self.traits.norm != "rms_norm":
            self.vectors[name + ".bias"] = self.array(source + ".bias")
        own = (epsilon for ending, epsilon in self.traits.epsilons.items() if f".{source}".endswith(f".{ending}"))
        self.epsilons[name] = next(own, self.traits.epsilon)

    def with_no_norm(self, name: str, norm: str) -> Product:
        """Returns a product and the NoNorm that follows it as one product."""
        product, gain, bias = self.product(name), self.array(norm + ".weight"), self.array(norm + ".bias")
        matrix = product.matrix
        scaled = Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * gain[rows, None])
        return Product(scaled, product.bias * gain + bias)

    def bottleneck(self, name: str) -> Product:
        return self.with_no_norm(name + ".dense", name + ".norm")

    def take_residual_product(self, name: str, source: str, product: str, norm: str) -> None:
        """Takes a product that a residual is added to, and the norm that follows it or the addition, if any does."""
        if self.traits.norm == "no_norm":
            self.products[name] = self.with_no_norm(source + product, source + norm)
            self.vectors[name + ".gain"] = self.array(f"{source}{norm}.weight")
        else:
            self.products[name] = self.product(source + product)
            if self.norm_last:
                self.take_norm(name + ".norm", source + (f"{product}_norm" if self.norm_first else norm))

    def take_tables(self) -> None:
        traits, source = self.traits.embedding, "encoder.embeddings."
        words = self.table if traits.scale == 1 else _times(self.table, traits.scale)
        tables = {}
        if traits.positions:
            tables["embeddings.position"] = self.array(source + "position.weight")[traits.position_offset :]
        if traits.token_types:
            tables["embeddings.token_type"] = self.array(source + "token_type.weight")
        elif source + "token_type.weight" in self.weights:
            (row,) = self.array(source + "token_type.weight")
            if traits.positions:
                tables["embeddings.position"] = tables["embeddings.position"] + row
            else:
                plain = words
                words = Computed(plain.shape, plain.dtype, lambda rows: plain[rows] + row)
        if traits.norm == "no_norm":
            gain = self.array(source + "norm.weight")
            self.products["embeddings.projection"] = self.with_no_norm(source + "projection", source + "norm")
            tables = {name: table * gain for name, table in tables.items()}
        else:
            if traits.norm != "none":
                self.take_norm("embeddings.norm", source + "norm")
            if traits.projection != "none":
                self.products["embeddings.projection"] = self.product(source + "projection")
        self.vectors |= tables
        self.words = words

    def take_position_bias(self, bias: PositionBias) -> None:
        longest = self.sizes.positions
        table = self.array("encoder.position_bias.weight")  # (buckets, A)
        self.vectors["position_bias"] = table[[bias.bucket(d) for d in range(1 - longest, longest)]].T

    def take_distances(self, name: str, source: str, relative: RelativeTraits, scale: float) -> None:
        """Takes what a layer makes of the table of distances, which is the same for every text."""
        table = self.array("encoder.relative.weight")
        if relative.norm:
            weight, bias = (self.array(f"encoder.relative_norm.{part}") for part in ("weight", "bias"))
            centred = table - table.mean(1, keepdims=True)
            variance = (centred**2).mean(1, keepdims=True)
            table = centred / np.sqrt(variance + self.traits.epsilon) * weight + bias
        prefix = "" if relative.shared else "relative_"
        for part, factor, is_read in (("key", 1, relative.to_positions), ("query", scale, relative.from_positions)):
            if is_read:
                product = self.product(source + prefix + part)
                self.vectors[f"{name}relative_{part}"] = (table @ product.weight.T + product.bias) * factor

    def relative(self, name: str) -> Relative | None:
        if not self.traits.relative:
            return None
        key, query = (f"{name}relative_{part}" for part in ("key", "query"))
        return Relative("relative_rows", key if key in self.vectors else None, query if query in self.vectors else None)

    def take_rotations(self) -> None:
        for part in dict.fromkeys(replace(part, window=None) for part in self.traits.attention if part.theta):
            self.vectors[_rotation(part.theta)] = part.turns(self.sizes.positions, self.depth)

    def take_layers(self, layers: Sequence[str], take: Callable[[str, str], None]) -> list[str]:
        """Takes a part of each distinct layer once. Returns the new name of each layer."""
        names = {layer: f"layers.{i}." for i, layer in enumerate(dict.fromkeys(layers))}
        for layer, name in names.items():
            take(name, f"encoder.{layer}.")
        return [names[layer] for layer in layers]

    def take_feed_forward(self, name: str, source: str) -> None:
        for j, network in enumerate(self.traits.feed_forward):
            to = f"{name}feed_forward.{j}."
            inner = [self.product(source + part) for part in (network.gate, network.inner) if part]
            self.products[to + "inner"] = _stack(*inner)
            if self.norm_first:
                self.take_norm(to + "norm", source + network.norm)
            self.take_residual_product(to + "outer", source, network.outer, network.norm)

    def take_attention(self, name: str, source: str) -> None:
        bottleneck = self.traits.bottleneck
        if bottleneck:
            self.take_residual_product(name + "leave", source, "leave", "leave_norm")
        query, key, value = (self.product(source + part) for part in ("query", "key", "value"))
        if self.kept:
            for inner in filter(None, {self.kept.residual, self.kept.query_key, self.kept.value}):
                self.products[name + inner] = self.product(f"{source}{inner}.dense")
                self.take_norm(f"{name}{inner}.norm", f"{source}{inner}.norm")
            self.products |= {name + "key": key, name + "value": value}
            self.products[name + "query"] = _scale(query, self.scale)
            self.take_residual_product(name + "output", source, "output", "attention_norm")
            return
        if bottleneck and bottleneck.query_key:
            entry = self.bottleneck(source + bottleneck.query_key)
            query, key = _compose(query, entry), _compose(key, entry)
        if bottleneck and bottleneck.value:
            value = _compose(value, self.bottleneck(source + bottleneck.value))
        self.products[name + "key_value"] = _stack(key, value)
        scale = self.scale
        if relative := self.traits.relative:
            scale /= math.sqrt(1 + relative.to_positions + relative.from_positions)
            self.take_distances(name, source, relative, scale)
        if self.traits.head_norm:
            for part, factor in (("query_norm", scale), ("key_norm", 1)):
                self.vectors[name + part] = (self.array(f"{source}{part}.weight") + self.traits.norm_offset) * factor
        else:
            query = _scale(query, scale)
        if bottleneck:
            query = _stack(query, self.bottleneck(source + bottleneck.residual))
        self.products[name + "query_residual"] = query
        if self.norm_first and source + "attention_norm.weight" in self.weights:
            self.take_norm(name + "attention_norm", source + "attention_norm")
        self.take_residual_product(name + "output", source, "output", "attention_norm")

    # ---- steps

    def place(self, value: str) -> Place:
        return Place(value, 0, self.widths[value])

    def norm(self, out: str, x: str, name: str, residual: Place | None = None) -> Norm:
        self.widths[out] = self.widths[x]
        return Norm(out, x, name, self.epsilons[name], name + ".bias" in self.vectors, residual)

    def multiply(self, out: str, x: str, name: str, activation: str | None = None, *, exact: bool = False) -> Multiply:
        self.widths[out] = self.products[name].matrix.shape[0]
        return Multiply(out, x, name, activation=activation, exact=exact)

    def turned(self, attention: AttentionTraits, place: Place, norm: str) -> Iterator[Step]:
        """Yields what follows a query or a key."""
        heads = place.width // self.depth
        if self.traits.head_norm:
            yield NormHeads(place, norm, heads, self.traits.epsilon)
        if attention.theta:
            yield Rotate(place, _rotation(attention.theta), heads)

    def add_and_norm(self, out: str, x: str, name: str, residual: Place) -> Iterator[Step]:
        """Yields a product with a residual, and the norm that follows it or the addition, if there is one."""
        if self.norm_first and self.norm_last:
            yield self.multiply("projected", x, name)
            yield self.norm(out, "projected", name + ".norm", residual)
            return
        gain = name + ".gain" if self.traits.norm == "no_norm" else None
        yield replace(self.multiply(out, x, name), residual=residual, gain=gain)
        if self.norm_last:
            yield self.norm(out, out, name + ".norm")

    def fold_encoder(self, pooling: Pooling | Literal["late"] | None) -> None:
        """Folds the encoder. Without a pooling, its rows stay those of all tokens."""
        traits = self.traits
        self.take_tables()
        if traits.position_bias:
            self.take_position_bias(traits.position_bias)
        if traits.relative:
            self.vectors["relative_rows"] = traits.relative.rows(self.sizes.positions).astype(np.float32)
        self.take_rotations()
        self.blocks.append(Block(tuple(self.embeddings())))
        attention_names = self.take_layers(traits.attention_of or traits.layers, self.take_attention)
        network_names = self.take_layers(traits.feed_forward_of or traits.layers, self.take_feed_forward)
        attention = traits.attention or (AttentionTraits(),) * len(traits.layers)
        layers = list(zip(attention_names, network_names, attention, strict=True))
        pools = pooling not in ("cls", "last")  # of all tokens
        for layer, run in groupby(layers if pools else layers[:-1]):
            self.blocks.append(Block(tuple(self.layer(*layer)), len(list(run))))
        if not pools:
            self.blocks.append(Block(tuple(self.layer(*layers[-1], reads=True))))
        end: list[Step] = []
        if self.norm_first:
            self.take_norm("final_norm", "encoder.norm")
            end.append(self.norm("hidden", "hidden", "final_norm"))
        if pooling == "mean" or pooling == "max":
            end.append(Read("hidden", "hidden", pooling))
        if end:
            self.blocks.append(Block(tuple(end)))

    def fold_given(self, pooling: Pooling | Literal["late"] | None) -> None:
        """Takes the hidden states from the caller, and not from an encoder."""
        steps: list[Step] = [LookUp(self.place("hidden"), GIVEN, "given")]
        if pooling in ("mean", "max"):
            steps.append(Read("hidden", "hidden", pooling))
        elif pooling in ("cls", "last"):
            steps.append(Read("hidden", "hidden"))
        self.blocks.append(Block(tuple(steps)))

    def embeddings(self) -> Iterator[Step]:
        traits, width = self.traits.embedding, self.sizes.embedding
        value = "hidden" if traits.projection == "none" else "words"
        self.widths[value] = traits.window * width
        words: tuple[Index, ...] = ("next_word", "word", "previous_word") if traits.window > 1 else ("word",)
        for i, word in enumerate(words):
            yield LookUp(Place(value, i * width, width), WORDS, word)
        projects_words = traits.projection == "words"
        to = self.place("hidden" if projects_words else value)
        if traits.positions:
            yield LookUp(to, "embeddings.position", "position", adds=not projects_words)
        if traits.token_types:
            yield LookUp(to, "embeddings.token_type", "token_type", adds=True)
        if projects_words:
            yield replace(self.multiply("hidden", "words", "embeddings.projection"), residual=to)
        if "embeddings.norm" in self.epsilons:
            yield self.norm(to.value, to.value, "embeddings.norm")
        if traits.projection == "sum":
            yield self.multiply("hidden", "words", "embeddings.projection")

    def layer(self, name: str, networks: str, attention: AttentionTraits, *, reads: bool = False) -> Iterator[Step]:
        """Yields the steps of a layer, whose feed-forward networks may be those of another, `networks`.

        If it is the last one, the head `reads` a part of its rows.
        """
        traits, width = self.traits, self.sizes.keys
        query, key, value = (
            Place("query", 0, self.sizes.attended),
            Place("key_value", 0, width),
            Place("key_value", width, width),
        )
        residual = Place("query", query.width, query.width) if traits.bottleneck else self.place("hidden")
        if self.kept:
            yield from self.narrow_inputs(name, self.kept, reads=reads)
            key, value = Place("key", 0, width), Place("value", 0, width)
            residual = Place(f"narrow.{self.kept.residual}", 0, query.width)
        else:
            has_norm = name + "attention_norm.weight" in self.vectors
            x = "normed" if has_norm else "hidden"
            preceding = [self.norm(x, "hidden", name + "attention_norm")] if has_norm else []
            turn_key = list(self.turned(attention, key, name + "key_norm"))
            turn_query = list(self.turned(attention, query, name + "query_norm"))
            yield from preceding
            yield self.multiply("key_value", x, name + "key_value")
            if reads:
                yield from turn_key
                yield Read("hidden", "hidden")
                yield from preceding
            yield self.multiply("query", x, name + "query_residual")
            yield from turn_query if reads else [*turn_key, *turn_query]
        yield Attend(
            "attended",
            query=query,
            key=key,
            value=value,
            heads=traits.heads,
            key_heads=self.key_heads,
            causal=traits.causal,
            window=attention.window,
            bias="position_bias" if traits.position_bias else None,
            relative=self.relative(name),
        )
        stream = "inner" if traits.bottleneck else "hidden"
        yield from self.add_and_norm(stream, "attended", name + "output", residual)
        for j, parts in enumerate(traits.feed_forward):
            network, x = f"{networks}feed_forward.{j}.", stream
            if self.norm_first:
                x = "normed"
                yield self.norm(x, stream, network + "norm")
            yield self.multiply("widened", x, network + "inner", None if parts.gate else traits.activation)
            if parts.gate:
                self.widths["gated"] = self.sizes.intermediate
                yield Gate("gated", "widened", traits.activation)
            yield from self.add_and_norm(
                stream, "gated" if parts.gate else "widened", network + "outer", self.place(stream)
            )
        if traits.bottleneck:
            yield from self.add_and_norm("hidden", "inner", name + "leave", self.place("hidden"))

    def narrow_inputs(self, name: str, bottleneck: BottleneckTraits, *, reads: bool) -> Iterator[Step]:
        """Yields the bottlenecks that have a LayerNorm, and the query, key and value that read them."""
        residual, query_key, value = astuple(bottleneck)

        def narrow(*inners: str | None) -> Iterator[Step]:
            for inner in dict.fromkeys(inners):
                if inner:
                    yield self.multiply(f"narrow.{inner}", "hidden", name + inner)
                    yield self.norm(f"narrow.{inner}", f"narrow.{inner}", f"{name}{inner}.norm")

        def reading(out: str, inner: str | None) -> Step:
            return self.multiply(out, f"narrow.{inner}" if inner else "hidden", name + out)

        yield from narrow(query_key, value)
        yield reading("key", query_key)
        yield reading("value", value)
        if reads:
            yield Read("hidden", "hidden")
        there = () if reads else (query_key, value)
        yield from narrow(*(inner for inner in (query_key, residual) if inner not in there))
        yield reading("query", query_key)

    def fold_head(self, embedding: Embedding | None) -> None:
        if embedding and not embedding.by_vocabulary:
            steps = tuple(self.vectors_of(embedding))
        else:
            self.results = ("outputs",)
            steps = tuple(self.head())
        if embedding and embedding.by_vocabulary:
            steps = (*steps, Read("outputs", "outputs", "max"))
        if steps:
            self.blocks.append(Block(steps))

    def vectors_of(self, embedding: Embedding) -> Iterator[Step]:
        """Yields the steps of the head `embedding`, and names their results."""
        self.results = ("hidden",) if embedding.vector and not embedding.dense else ()
        parts = {
            "output": embedding.vector and embedding.dense is not None,
            "terms": embedding.sparse is not None,
            "vectors": embedding.multi_vector is not None,
        }
        if embedding.dense == "unit":
            # |x| is the root mean square of x, times the root of its width.
            self.vectors["head.norm.weight"] = np.full(self.sizes.hidden, self.sizes.hidden**-0.5, np.float32)
            self.epsilons["head.norm"] = UNIT_EPSILON
            yield self.norm("hidden", "hidden", "head.norm")
        for name in (name for name, is_there in parts.items() if is_there):
            self.products[f"head.{name}"] = self.product(f"head.{name}")
            self.results += (f"outputs.{name}",)
            activation = "tanh" if name == "output" and embedding.dense == "tanh" else None
            # The vectors of all tokens are too many for an exact product.
            yield self.multiply(f"outputs.{name}", "hidden", f"head.{name}", activation, exact=name != "vectors")

    def head(self) -> Iterator[Step]:
        x, inner = "hidden", {"head.transform": self.traits.prediction_act, "head.pooler": self.traits.pooler}
        for name, act in inner.items():
            if name + ".weight" in self.weights:
                x = "transformed"
                self.products[name] = self.product(name)
                yield self.multiply(x, "hidden", name, act)
                if name == "head.pooler" and self.traits.classifier_pooling == "late":
                    yield Read(x, x, "mean")
        if "head.norm.weight" in self.weights:
            self.take_norm("head.norm", "head.norm")
            yield self.norm(x, x, "head.norm")
        if "head.bias" in self.weights:  # of a language model
            table = self.table
            if "head.extra" in self.weights:
                table = _beside(table, self.weights["head.extra"])
            self.products["head.decoder"] = Product(table, self.array("head.bias"))
            yield self.multiply("outputs", x, "head.decoder")
            return
        self.products["head.output"] = self.product("head.output")
        yield self.multiply("outputs", x, "head.output", exact=True)


def _check_widths(folded: Folded, multiple: int) -> None:
    """Raises FoldingError if a width inside the network is no multiple of `multiple`."""
    program = folded.program
    widths = {width for value, width in program.widths.items() if value == "hidden" or value not in program.results}
    widths |= {step.query.width // step.heads for step in program if isinstance(step, Attend)}
    widths |= {step.x.width // step.heads // 2 for step in program if isinstance(step, Rotate)}
    widths |= {step.x.width // step.heads for step in program if isinstance(step, NormHeads)}
    widths |= {product.matrix.shape[1] for product in folded.products.values()}
    for width in sorted(widths):
        if width % multiple:
            raise FoldingError(f"one of the widths is {width}, which is not a multiple of {multiple}")


def _rotation(theta: float | None) -> str:
    return f"rotation.{theta}"


def _times(matrix: Matrix, factor: float) -> Matrix:
    return Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * factor)


def _scale(product: Product, factor: float) -> Product:
    return Product(_times(product.matrix, factor), product.bias * factor)


def _compose(outer: Product, inner: Product) -> Product:
    """Returns outer(inner(x)) as one product, computed in double precision and rounded to the precision given."""
    w, v = outer.matrix, inner.matrix

    def rows(wanted: slice) -> Array:
        product: Array = (w[wanted].astype(np.float64) @ np.asarray(v, np.float64)).astype(w.dtype)
        return product

    bias = outer.weight.astype(np.float64) @ inner.bias.astype(np.float64) + outer.bias
    return Product(Computed((len(w), v.shape[1]), w.dtype, rows), bias.astype(outer.bias.dtype))


def _stack(*products: Product) -> Product:
    """Returns products of the same x as one."""
    if len(products) == 1:
        return products[0]
    parts = [product.matrix for product in products]
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]

    def rows(wanted: slice) -> Array:
        start, stop, _ = wanted.indices(ends[-1])
        spans = (
            slice(max(start - end + len(part), 0), max(stop - end + len(part), 0))
            for part, end in zip(parts, ends, strict=True)
        )
        return np.concatenate([part[span] for part, span in zip(parts, spans, strict=True)])

    stacked = Computed((ends[-1], parts[0].shape[1]), parts[0].dtype, rows)
    return Product(stacked, np.concatenate([product.bias for product in products]))


def _beside(left: Matrix, right: Matrix) -> Matrix:
    """Returns the columns of two matrices."""
    shape = len(left), left.shape[1] + right.shape[1]
    return Computed(shape, left.dtype, lambda rows: np.concatenate([left[rows], right[rows]], axis=1))
