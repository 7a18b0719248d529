"""Traits: the structure of an architecture, described without torch.

Folding, the ONNX graph and the C++ engine build their layers from `Traits`. None of them knows an architecture by name.

Parameters have the same names in every architecture. LAYER, BOTTLENECK and FEED_FORWARD stand for names in `Traits`;
every `norm` has a weight and a bias, and so has every linear map:

    encoder.embeddings.word.weight, .position.weight, .token_type.weight, .norm, .projection (as the traits say)
    encoder.position_bias.weight                of the scores of attention, in all layers
    encoder.LAYER.query, .key, .value, .output, .attention_norm
    encoder.LAYER.BOTTLENECK.dense, .norm       maps the hidden states to the width inside the layer
    encoder.LAYER.leave, .leave_norm            maps them back, if the layer has a bottleneck
    encoder.LAYER.INNER, .OUTER, .NORM          of each feed-forward network
    encoder.norm                                after the last layer, if the norms precede
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

Norm = Literal["layer_norm", "no_norm"]
"""NoNorm is an element-wise linear map in the place of LayerNorm (MobileBERT, section 3.3)."""
NORMS: Final[tuple[Norm, ...]] = get_args(Norm)


@dataclass(frozen=True)
class EmbeddingTraits:
    """The sum of the embeddings of word, position and token type, and its norm."""

    norm: Norm | Literal["none"] = "layer_norm"
    projection: Literal["none", "words", "sum"] = "none"
    """The linear map from the embedding size E to the hidden size H. It maps the words before positions and token types
    are added (MobileBERT), or the normalised sum (ALBERT's factorised embedding)."""
    window: int = 1
    """The number of tokens whose word embeddings are concatenated: 1, or 3 for a trigram (next, own, previous)."""
    position_offset: int = 0
    """The row of the position table that belongs to a sequence's first token."""
    token_types: bool = True
    """Whether the network tells token types apart. If not, there is no table of token types, or its only row belongs to
    every token."""


@dataclass(frozen=True)
class PositionBias:
    """A number for each attention head that is added to the scores, chosen by the distance of the key from the query.

    Its table (2 * (K + 1), A) has a row for each bucket of distances: K + 1 for keys up to the query, then as many for
    keys after it. `boundaries` are the K distances at which the next bucket begins, in ascending order.
    """

    boundaries: tuple[int, ...]

    @property
    def buckets(self) -> int:
        return 2 * (len(self.boundaries) + 1)

    def bucket(self, distance: int) -> int:
        """Returns the row of the table for a key at the query's position plus `distance`."""
        bucket = bisect_right(self.boundaries, abs(distance))
        return bucket + (len(self.boundaries) + 1 if distance > 0 else 0)


@dataclass(frozen=True)
class BottleneckTraits:
    """The linear maps in front of a layer that is narrower than the hidden states.

    The residual inside the layer passes through `residual`. Query and key, and value, pass through the bottleneck named
    here, or read the hidden states directly if it is None.
    """

    residual: str
    query_key: str | None
    value: str | None


@dataclass(frozen=True)
class FeedForwardTraits:
    """The names of one feed-forward network's parameters within a layer."""

    inner: str
    outer: str
    norm: str


@dataclass(frozen=True)
class Traits:
    """The structure of a network. Sizes are not part of it: they are the shapes of the parameters."""

    layers: tuple[str, ...]
    """The names of the layers in the order of their application. A shared layer is named once for each application."""
    heads: int
    activation: str
    epsilon: float | None
    """Of every LayerNorm; None if they differ."""
    feed_forward: tuple[FeedForwardTraits, ...]
    """The feed-forward networks of each layer, in order."""
    embedding: EmbeddingTraits = field(default_factory=EmbeddingTraits)
    bottleneck: BottleneckTraits | None = None
    norm: Norm = "layer_norm"
    norm_position: Literal["after", "before"] = "after"
    """Whether a norm follows the residual addition, or precedes the attention and feed-forward networks."""
    causal: bool = False
    """Whether a token attends only to itself and the tokens before it."""
    position_bias: PositionBias | None = None
    """Shared by all layers."""


def check_heads(width: int, heads: int) -> None:
    """Checks that every attention head gets an equal share of the width.

    Raises:
        ValueError: the number of heads does not divide the width.
    """
    if width % heads:
        raise ValueError(f"num_attention_heads {heads} does not divide the width {width}.")
