"""Folding: a network's parameters as the few matrix products that the CPU engines run.

Every rewrite is exact:

- The scale of the attention scores, 1 / sqrt(D), is folded into the query. Key and value are one product.
- NoNorm needs no pass of its own. In y = g x + b after x = W v + c + r, a product and a residual, g scales the rows of
  the product, g c + b is its bias, and the residual is multiplied by g (the "gain").
- A query, key or value that reads a bottleneck has no nonlinearity in front of it: two matrices become one.
- The residual inside a layer with a bottleneck comes from the same product as the query.
- A position bias is looked up for every distance between a query and a key, so that a query's row is a slice of it.
- The row of the only token type, if the network has one, is part of every position.
- Positions and token types that are added to projected words are scaled by the gain of the NoNorm that follows.
- The masked-LM head's word table and its extra columns are one matrix.

Products and words are computed from the parameters when they are read, rows by rows, so that a network in fp32 is never
in memory as a whole.

`Folded.products` are (N, K) with a bias (N,), `vectors` all other parameters, and `words` the word table (V, E). I is
the number of a layer and J the number of a feed-forward network:

    embeddings.position, .token_type and .projection (if there is one), .norm (LayerNorm only)
    position_bias (A, 2 P - 1) for P positions: the distance d from a query to a key has the column P - 1 + d
    layers.I.key_value, .query_residual (the residual only with a bottleneck), .output, .leave (with a bottleneck)
    layers.I.feed_forward.J.inner, .outer
    head.transform, .norm (if there is one), .decoder; or head.pooler (if there is one), .output, .output_bias. A
    head that only pools has neither.

Each product that ends in a residual addition, X, has the vector X.gain (NoNorm) or the vectors X.norm (LayerNorm). If
the norms precede, it has neither, and there are layers.I.attention_norm, .feed_forward.J.norm and final_norm. A norm is
two vectors, `weight` and `bias`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from swiftlet_models import architectures
from swiftlet_models.architectures.traits import FeedForwardTraits, PositionBias, Traits
from swiftlet_models.artifact import Artifact, Embedding, Pooling
from swiftlet_models.errors import ModelError
from swiftlet_models.parameters import Sizes, check_artifact, check_parameters, configure

Array = NDArray[np.floating[Any]]

BLOCK_NUMBERS: Final = 1 << 20  # of a matrix to read at a time
MULTIPLE: Final = 16  # the native engine needs widths that are multiples of its widest vector, 16 floats


class FoldingError(ModelError):
    """Raised when folding does not support a network. The message is a clause that gives the reason."""


class Matrix(Protocol):
    """An array, or an object that reads like one: `matrix[start:stop]` has some rows, and `np.asarray(matrix)` all."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Array: ...
    def __array__(self) -> Array: ...


Weights = Mapping[str, Matrix]


@dataclass(frozen=True)
class Computed:
    """A matrix whose rows are computed each time they are read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: Callable[[slice], Array]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        return self.rows(rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # always a copy
        return self.rows(slice(None)).astype(self.dtype if dtype is None else dtype, copy=False)


@dataclass(frozen=True)
class Product:
    """y = x W^T + b."""

    matrix: Matrix  # W (N, K)
    bias: Array  # (N,)

    @property
    def weight(self) -> Array:
        """W as an array, which is not kept."""
        return np.asarray(self.matrix)


def blocks(matrix: Matrix) -> Iterator[slice]:
    """Yields spans of a matrix's rows: few enough rows in each to take little memory."""
    step = max(1, BLOCK_NUMBERS // max(1, math.prod(matrix.shape[1:])))
    yield from (slice(start, min(start + step, len(matrix))) for start in range(0, len(matrix), step))


@dataclass
class Folded:
    """A folded network, ready to be quantised."""

    traits: Traits
    hidden: int
    inner: int  # the width inside a layer
    intermediate: int
    epsilon: float  # of every LayerNorm
    order: tuple[int, ...]  # the number of the layer at each depth
    words: Matrix  # (V, E)
    outputs: int
    head_activation: str | None = None  # of the pooler or the transform, if the head has one
    pooling: Pooling = "cls"  # how the head reads the tokens of a sequence; "cls" reads the positions in focus
    dense: str | None = None  # the activation of the head's output
    products: dict[str, Product] = field(default_factory=dict)
    vectors: dict[str, Array] = field(default_factory=dict)


def fold(
    architecture: str,
    config: Mapping[str, Any],
    weights: Weights,
    multiple: int = MULTIPLE,
    embedding: Embedding | None = None,
) -> Folded:
    """Folds a network. Its parameters are named as in `architectures.traits` and `heads`.

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
    folded = _fold_encoder(traits, sizes, weights)
    _fold_head(folded, weights, own.pooler, own.prediction_act, embedding)
    _check_widths(folded, multiple)
    return folded


def fold_artifact(artifact: Artifact, weights: Weights, multiple: int = MULTIPLE) -> Folded:
    """Folds the network of an artifact from the parameters of one of its files.

    Raises:
        FoldingError: the network is not supported.
        ArtifactError: the parameters do not fit the network that the manifest describes.
    """
    check_artifact(artifact, {name: weight.shape for name, weight in weights.items()})
    manifest = artifact.manifest
    return fold(manifest.architecture, manifest.config, weights, multiple, manifest.embedding)


def _check_traits(traits: Traits) -> None:
    """Raises FoldingError for traits that folding and the CPU engines do not support."""
    embedding = traits.embedding
    unsupported = {
        "a NoNorm or a bottleneck is preceded by a norm": traits.norm_position == "before"
        and (traits.norm == "no_norm" or traits.bottleneck is not None),
        "the bottlenecks have a LayerNorm": traits.bottleneck is not None and traits.norm != "no_norm",
        "the LayerNorms have different epsilons": traits.epsilon is None,
        "the embeddings have a NoNorm without a projection in front": embedding.norm == "no_norm"
        and embedding.projection != "words",
        "the trigram is not projected": embedding.window > 1 and embedding.projection != "words",
    }
    for reason, is_present in unsupported.items():
        if is_present:
            raise FoldingError(reason)


def _fold_encoder(traits: Traits, sizes: Sizes, weights: Weights) -> Folded:
    names = list(dict.fromkeys(traits.layers))  # of distinct layers
    folded = Folded(
        traits=traits,
        hidden=sizes.hidden,
        inner=sizes.inner,
        intermediate=sizes.intermediate,
        epsilon=float(traits.epsilon or 0),
        order=tuple(names.index(name) for name in traits.layers),
        words=weights["encoder.embeddings.word.weight"],
        outputs=sizes.outputs,
    )
    _fold_embeddings(folded, weights)
    if traits.position_bias:
        _fold_position_bias(folded, traits.position_bias, weights)
    if traits.norm_position == "before":
        _take_norm(folded, "final_norm", weights, "encoder.norm")
    for i, name in enumerate(names):
        _fold_attention(folded, weights, f"layers.{i}.", f"encoder.{name}.")
        for j, network in enumerate(traits.feed_forward):
            _fold_feed_forward(folded, weights, f"layers.{i}.feed_forward.{j}.", f"encoder.{name}.", network)
        if traits.bottleneck:
            _add_residual_product(folded, f"layers.{i}.leave", weights, f"encoder.{name}.", "leave", "leave_norm")
    return folded


def _fold_embeddings(folded: Folded, weights: Weights) -> None:
    traits, source = folded.traits.embedding, "encoder.embeddings."
    tables = {"embeddings.position": _array(weights, source + "position.weight")[traits.position_offset :]}
    if traits.token_types:
        tables["embeddings.token_type"] = _array(weights, source + "token_type.weight")
    elif source + "token_type.weight" in weights:
        (row,) = _array(weights, source + "token_type.weight")
        tables["embeddings.position"] = tables["embeddings.position"] + row
    if traits.norm == "no_norm":
        gain = _array(weights, source + "norm.weight")
        folded.products["embeddings.projection"] = _with_no_norm(weights, source + "projection", source + "norm")
        tables = {name: table * gain for name, table in tables.items()}
    else:
        if traits.norm == "layer_norm":
            _take_norm(folded, "embeddings.norm", weights, source + "norm")
        if traits.projection != "none":
            folded.products["embeddings.projection"] = _product(weights, source + "projection")
    folded.vectors |= tables


def _fold_position_bias(folded: Folded, bias: PositionBias, weights: Weights) -> None:
    longest = len(folded.vectors["embeddings.position"])
    table = _array(weights, "encoder.position_bias.weight")  # (buckets, A)
    folded.vectors["position_bias"] = table[[bias.bucket(d) for d in range(1 - longest, longest)]].T


def _fold_attention(folded: Folded, weights: Weights, name: str, source: str) -> None:
    bottleneck = folded.traits.bottleneck
    query, key, value = (_product(weights, source + part) for part in ("query", "key", "value"))
    if bottleneck and bottleneck.query_key:
        entry = _bottleneck(weights, source + bottleneck.query_key)
        query, key = _compose(query, entry), _compose(key, entry)
    if bottleneck and bottleneck.value:
        value = _compose(value, _bottleneck(weights, source + bottleneck.value))
    folded.products[name + "key_value"] = _stack(key, value)
    query = _scale(query, 1 / math.sqrt(len(query.bias) / folded.traits.heads))
    if bottleneck:
        query = _stack(query, _bottleneck(weights, source + bottleneck.residual))
    folded.products[name + "query_residual"] = query
    if folded.traits.norm_position == "before":
        _take_norm(folded, name + "attention_norm", weights, source + "attention_norm")
    _add_residual_product(folded, name + "output", weights, source, "output", "attention_norm")


def _fold_feed_forward(folded: Folded, weights: Weights, name: str, source: str, network: FeedForwardTraits) -> None:
    folded.products[name + "inner"] = _product(weights, source + network.inner)
    if folded.traits.norm_position == "before":
        _take_norm(folded, name + "norm", weights, source + network.norm)
    _add_residual_product(folded, name + "outer", weights, source, network.outer, network.norm)


def _add_residual_product(folded: Folded, name: str, weights: Weights, source: str, product: str, norm: str) -> None:
    """Adds a product that a residual is added to, and the norm that follows, unless the norms precede."""
    if folded.traits.norm == "no_norm":
        folded.products[name] = _with_no_norm(weights, source + product, source + norm)
        folded.vectors[name + ".gain"] = _array(weights, f"{source}{norm}.weight")
    else:
        folded.products[name] = _product(weights, source + product)
        if folded.traits.norm_position == "after":
            _take_norm(folded, name + ".norm", weights, source + norm)


def _fold_head(
    folded: Folded, weights: Weights, pooler: str | None, prediction_act: str, embedding: Embedding | None
) -> None:
    if embedding:
        folded.pooling, folded.dense = embedding.pooling, "tanh" if embedding.dense == "tanh" else None
        if not embedding.dense:
            return
    if "head.bias" in weights and "head.transform.weight" not in weights:  # of a causal language model
        folded.products["head.decoder"] = Product(folded.words, _array(weights, "head.bias"))
        return
    if "head.transform.weight" in weights:
        folded.products["head.transform"] = _product(weights, "head.transform")
        folded.head_activation = prediction_act
        _take_norm(folded, "head.norm", weights, "head.norm")
        table = folded.words
        if "head.extra" in weights:
            table = _beside(table, weights["head.extra"])
        folded.products["head.decoder"] = Product(table, _array(weights, "head.bias"))
        return
    if "head.pooler.weight" in weights:
        folded.products["head.pooler"] = _product(weights, "head.pooler")
        folded.head_activation = pooler
    folded.vectors["head.output"] = _array(weights, "head.output.weight")
    folded.vectors["head.output_bias"] = _array(weights, "head.output.bias")


def _check_widths(folded: Folded, multiple: int) -> None:
    """Raises FoldingError if a width inside the network is no multiple of `multiple`."""
    widths = [size for product in folded.products.values() for size in product.matrix.shape]
    if "head.decoder" in folded.products:
        widths.remove(folded.outputs)  # nothing reads them
    for width in (folded.inner // folded.traits.heads, folded.words.shape[1], *widths):
        if width % multiple:
            raise FoldingError(f"one of the widths is {width}, which is not a multiple of {multiple}")


def _array(weights: Weights, name: str) -> Array:
    return np.asarray(weights[name])


def _product(weights: Weights, name: str) -> Product:
    return Product(weights[name + ".weight"], _array(weights, name + ".bias"))


def _bottleneck(weights: Weights, name: str) -> Product:
    return _with_no_norm(weights, name + ".dense", name + ".norm")


def _with_no_norm(weights: Weights, name: str, norm: str) -> Product:
    """Returns a product and the NoNorm that follows it as one product."""
    product, gain, bias = _product(weights, name), _array(weights, norm + ".weight"), _array(weights, norm + ".bias")
    matrix = product.matrix
    scaled = Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * gain[rows, None])
    return Product(scaled, product.bias * gain + bias)


def _scale(product: Product, factor: float) -> Product:
    matrix = product.matrix
    return Product(Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * factor), product.bias * factor)


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


def _take_norm(folded: Folded, name: str, weights: Weights, source: str) -> None:
    for part in (".weight", ".bias"):
        folded.vectors[name + part] = _array(weights, source + part)
