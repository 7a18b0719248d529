"""A folded network: its program, and the parameters of the program's steps.

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

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.errors import ModelError
from swiftlet_models.program import GIVEN, JOIN, LookUp, Program, Read
from swiftlet_models.tensors import Adapted, Computed, Matrix

Array = NDArray[np.floating[Any]]


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
        return stack(*(self.products[part] for part in name.split(JOIN)))


def times(matrix: Matrix, factor: float) -> Matrix:
    if isinstance(matrix, Adapted):
        return Adapted(times(matrix.base, factor), np.asarray(matrix.b) * np.float32(factor), matrix.a)
    return Computed(matrix.shape, matrix.dtype, lambda rows: matrix[rows] * factor)


def scaled(product: Product, factor: float) -> Product:
    return Product(times(product.matrix, factor), product.bias * factor)


def compose(outer: Product, inner: Product) -> Product:
    """Returns outer(inner(x)) as one product, computed in double precision and rounded to the precision given."""
    w, v = outer.matrix, inner.matrix

    def rows(wanted: slice) -> Array:
        product: Array = (w[wanted].astype(np.float64) @ np.asarray(v, np.float64)).astype(w.dtype)
        return product

    bias = outer.weight.astype(np.float64) @ inner.bias.astype(np.float64) + outer.bias
    return Product(Computed((len(w), v.shape[1]), w.dtype, rows), bias.astype(outer.bias.dtype))


def stack(*products: Product) -> Product:
    """Returns products of the same x as one."""
    if len(products) == 1:
        return products[0]
    stacked = _stacked([product.matrix for product in products])
    return Product(stacked, np.concatenate([product.bias for product in products]))


def _stacked(parts: Sequence[Matrix]) -> Matrix:
    """Returns the rows of several matrices as one. What adapters add to them stays apart, with zeros between."""
    if any(isinstance(part, Adapted) for part in parts):
        pairs = [(part.b, part.a) for part in parts if isinstance(part, Adapted)]
        b = np.zeros((sum(map(len, parts)), sum(len(a) for _, a in pairs)), np.float32)
        row = column = 0
        for part in parts:
            if isinstance(part, Adapted):
                b[row : row + len(part), column : column + len(part.a)] = part.b
                column += len(part.a)
            row += len(part)
        bases = [part.base if isinstance(part, Adapted) else part for part in parts]
        return Adapted(_stacked(bases), b, np.concatenate([np.asarray(a) for _, a in pairs]))
    ends = [sum(map(len, parts[: i + 1])) for i in range(len(parts))]

    def rows(wanted: slice) -> Array:
        start, stop, _ = wanted.indices(ends[-1])
        spans = (
            slice(max(start - end + len(part), 0), max(stop - end + len(part), 0))
            for part, end in zip(parts, ends, strict=True)
        )
        return np.concatenate([part[span] for part, span in zip(parts, spans, strict=True)])

    return Computed((ends[-1], parts[0].shape[1]), parts[0].dtype, rows)


def beside(left: Matrix, right: Matrix) -> Matrix:
    """Returns the columns of two matrices."""
    shape = len(left), left.shape[1] + right.shape[1]
    return Computed(shape, left.dtype, lambda rows: np.concatenate([left[rows], right[rows]], axis=1))
