"""Traits: the structure of an architecture, described without torch.

Folding, the ONNX graph and the C++ engine build their layers from `Traits`. None of them knows an architecture by name.

Parameters have the same names in every architecture. LAYER, BOTTLENECK and FEED_FORWARD stand for names in `Traits`;
every `norm` and every linear map has a weight and a bias (an RMSNorm has no bias). A layer without an attention or
feed-forward networks of its own has no parameters of them:

    encoder.embeddings.word.weight, .position.weight, .token_type.weight, .norm, .projection (as the traits say)
    encoder.position_bias.weight                of the scores of attention, in all layers (of a PositionBias)
    encoder.relative.weight, .relative_norm     of distances, in all layers (as the traits say)
    encoder.LAYER.query, .key, .value, .output, .attention_norm
    encoder.LAYER.query_norm, .key_norm         of each head's columns, or of all (as the traits say)
    encoder.LAYER.second_norm                   after the attention's norm (as the traits say)
    encoder.LAYER.relative_key, .relative_query map the table of distances, if query and key do not
    encoder.LAYER.BOTTLENECK.dense, .norm       maps the hidden states to the width inside the layer
    encoder.LAYER.leave, .leave_norm            maps them back, if the layer has a bottleneck
    encoder.LAYER.INNER, .OUTER, .NORM, .GATE   of each feed-forward network (the gate as the traits say)
    encoder.LAYER.output_norm, .OUTER_norm      after these maps, if norms are around
    encoder.norm                                after the last layer, if norms precede
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Norm = Literal["layer_norm", "no_norm", "rms_norm"]
"""NoNorm is an element-wise linear map instead of LayerNorm (MobileBERT, section 3.3)."""
Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh"]


@dataclass(frozen=True)
class EmbeddingTraits:
    """The sum of the embeddings of word, position and token type, and its norm."""

    positions: bool = True
    """Whether there is a table of positions. If not, the configuration says how many there are."""
    norm: Norm | Literal["none"] = "layer_norm"
    projection: Literal["none", "words", "sum"] = "none"
    """The linear map from the embedding size E to the hidden size H. It maps the words before positions and token types
    are added (MobileBERT), or the normalised sum (ALBERT's factorised embedding)."""
    window: int = 1
    """The number of tokens whose word embeddings are concatenated: 1, or 3 for a trigram (next, own, previous)."""
    position_offset: int = 0
    """The row of the position table that belongs to a sequence's first token."""
    scale: float = 1
    """What the word embeddings are multiplied by. A masked-LM head reads them without it."""
    token_types: bool = True
    """Whether the network tells token types apart. If not, there is no table of token types, or its only row belongs to
    every token."""


@dataclass(frozen=True)
class PositionBias:
    """A number for each attention head that is added to the scores, chosen by the distance of the key from the query.

    Its table (2 * (K + 1), A) has a row for each bucket of distances: K + 1 for keys up to the query, then as many for
    keys after it. `boundaries` are the K distances where the next bucket begins, in ascending order.
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
class LinearBias:
    """A number that is added to the scores of each attention head: minus the distance times a slope (ALiBi).

    It has no parameters (Press et al. 2021, arXiv:2108.12409), and is the same in both directions.
    """

    def slopes(self, heads: int) -> NDArray[np.float32]:
        """Returns the slope of each head, (A,): 2^(-8 / n) to 2^-8 for the first n, the power of 2 that is not above A.

        The others have every second slope of 2 n heads.
        """
        first = 1 << heads.bit_length() - 1
        exponents = [8 * (i + 1) / first for i in range(first)]
        exponents += [8 * (2 * i + 1) / (2 * first) for i in range(heads - first)]
        return np.array([2.0**-exponent for exponent in exponents], np.float32)

    def table(self, positions: int, heads: int) -> NDArray[np.float32]:
        """Returns what is added, (A, 2 P - 1): column P - 1 + d is for the distance d from a query to a key."""
        distances = np.abs(np.arange(1 - positions, positions)).astype(np.float32)
        return -self.slopes(heads)[:, None] * distances


@dataclass(frozen=True)
class AttentionTraits:
    """How the attention of a layer depends on positions."""

    window: int | None = None
    """A token attends to tokens at a distance of at most window // 2; None: to all."""
    theta: float | None = None
    """Query and key are turned by their positions (RoPE), as `turns` tells; None: they are not."""

    def turns(self, positions: int, depth: int) -> NDArray[np.float32]:
        """Returns the table (P, D) of `program.Rotate`: angles of position / theta^(2 d / D) for d from 0 to D / 2 - 1.

        As in transformers, angles are in fp32.
        """
        if self.theta is None:
            raise ValueError("query and key are not turned")
        frequencies = (1 / self.theta ** (np.arange(0, depth, 2) / depth)).astype(np.float32)
        angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


@dataclass(frozen=True)
class RelativeTraits:
    """Distances that the scores of attention depend on, as vectors (DeBERTa: He et al. 2021, arXiv:2006.03654).

    Their table (2 K, H) has K rows for each direction.
    """

    span: int  # K
    to_positions: bool
    """Whether queries meet the keys of distances."""
    from_positions: bool
    """Whether keys meet the queries of distances."""
    shared: bool = False
    """Whether the maps of queries and keys make those of distances."""
    norm: bool = False
    """Whether a LayerNorm follows the table."""
    longest: int | None = None
    """Distances beyond K / 2 share rows, the more the longer, up to this one; None: each has its own."""

    def rows(self, positions: int) -> NDArray[np.int64]:
        """Returns rows of the table, (2 P - 1,): number P - 1 + d is for the distance d from a query to a key.

        Follows `make_log_bucket_position` of transformers, in fp32 as it does.
        """
        distances = np.arange(1 - positions, positions)
        buckets = distances
        if self.longest is not None:
            middle = self.span // 2
            far = np.maximum(np.abs(distances), middle).astype(np.float32) / np.float32(middle)
            steps = np.log(far) / np.log(np.float32((self.longest - 1) / middle)) * np.float32(middle - 1)
            beyond = np.sign(distances) * (np.ceil(steps) + middle)
            buckets = np.where(np.abs(distances) <= middle, distances, beyond).astype(np.int64)
        return np.clip(self.span - buckets, 0, 2 * self.span - 1)


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
    gate: str | None = None
    """The map whose activation multiplies the inner one's outputs, which then have none of their own (Shazeer 2020,
    arXiv:2002.05202)."""


@dataclass(frozen=True)
class Traits:
    """The structure of a network. Sizes are not part of it: they are the shapes of the parameters."""

    layers: tuple[str, ...]
    """The names of the layers in the order of their application. A shared layer is named once for each application."""
    heads: int
    activation: Activation
    epsilon: float
    """Of every norm that `epsilons` does not name."""
    feed_forward: tuple[FeedForwardTraits, ...]
    """The feed-forward networks of each layer, in order."""
    attention_of: tuple[str, ...] = ()
    """The layer whose attention, with its norm, each of `layers` has; empty: its own."""
    feed_forward_of: tuple[str, ...] = ()
    """The layer whose feed-forward networks, with their norms, each of `layers` has; empty: its own."""
    embedding: EmbeddingTraits = field(default_factory=EmbeddingTraits)
    bottleneck: BottleneckTraits | None = None
    norm: Norm = "layer_norm"
    norm_position: Literal["after", "before", "around"] = "after"
    """Whether a norm follows the residual addition, or precedes the attention and feed-forward networks, or both
    precedes them and follows them before the addition."""
    norm_offset: float = 0
    """What is added to the weights of norms."""
    key_heads: int | None = None
    """The heads of keys and values; None: as many as of the query."""
    head_norm: bool = False
    """Whether an RMSNorm of each head's columns follows query and key."""
    wide_norm: bool = False
    """Whether a LayerNorm of all columns follows query and key."""
    second_norm: bool = False
    """Whether the input of the attention is added once more after its norm, which another norm follows."""
    score_scale: float | None = None
    """The factor of the attention scores; None: 1 / sqrt(D)."""
    causal: bool = False
    """Whether a token attends only to itself and the tokens before it."""
    position_bias: PositionBias | LinearBias | None = None
    """Shared by all layers."""
    relative: RelativeTraits | None = None
    attention: tuple[AttentionTraits, ...] = ()
    """Of each of `layers`; empty: attention depends on no positions."""
    first_norm: bool = True
    """Whether a norm precedes the first layer's attention, if the norms precede."""
    classifier_pooling: Literal["cls", "mean", "late"] = "cls"
    """What the head that classifies texts reads: the token in focus, or the mean of all tokens, or late, the mean of
    what the pooler makes of each."""
    classifies_last: bool = False
    """Whether that head reads the last token of a text, and not the first one."""
    pooler: Activation | None = None
    """The activation behind a linear map in front of the outputs of the head that classifies texts; None: no map."""
    classifier_norm: bool = False
    """Whether a LayerNorm follows the pooler, and the head that classifies tokens has such a map and norm, too."""
    prediction_map: bool = True
    """Whether the masked-LM head has a linear map, an activation and a norm before the vocabulary."""
    prediction_act: Activation = "gelu"
    """That activation."""
    epsilons: Mapping[str, float] = field(default_factory=dict)
    """Of norms that have their own, by the end of their names, such as `embeddings.norm`."""

    @property
    def composes(self) -> bool:
        """Whether folding computes a matrix or a table from several parameters, and not each product from its own."""
        return self.norm == "no_norm" or self.bottleneck is not None or self.relative is not None
