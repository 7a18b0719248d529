"""The networks whose layers have one form, which their traits describe: attention, then a feed-forward network.

A family derives its `Config` from one of those here, and has this `Encoder`, or one that changes a part of it. Shape
letters: see `layers.py`; D may differ from H / A, and C = A D from H.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions, Settings, Theta, check_heads
from swiftlet_models.architectures.traits import Activation, AttentionTraits, FeedForwardTraits, PositionBias, Traits

GATED: Final = FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm", "ffn_gate")
PLAIN: Final = FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm")


def same_as(setting: str) -> Any:
    """Returns a property: the common name of a setting that a family names otherwise."""
    return property(attrgetter(setting))


@dataclass(frozen=True)
class Config(Settings, ABC):
    """What the configuration of such a network tells, in every family."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim is None:
            check_heads(self.hidden_size, self.num_attention_heads)
        if self.depth % 2 and any(part.theta for part in self.traits().attention):
            raise ValueError("the width of an attention head is odd, so that its columns are no pairs.")

    @property
    @abstractmethod
    def num_hidden_layers(self) -> int: ...
    @property
    @abstractmethod
    def num_attention_heads(self) -> int: ...
    @property
    @abstractmethod
    def intermediate_size(self) -> int: ...
    @property
    def head_dim(self) -> int | None:
        """D; None: H / A."""
        return None

    @property
    def depth(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def plain(self, activation: Activation, epsilon: float) -> Traits:
        """Returns the traits of BERT's encoder, from which a family's differ."""
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=activation,
            epsilon=epsilon,
            feed_forward=(PLAIN,),
        )


@dataclass(frozen=True)
class RotaryConfig(Config, ABC):
    """The settings that the newer families share, named as in transformers. Most turn query and key by positions."""

    vocab_size: int = 30528
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    num_key_value_heads: Count | None = None
    head_dim: int | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Positions = 8192
    rope_theta: Theta = 10000.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        heads, key_heads = self.num_attention_heads, self.num_key_value_heads
        if key_heads is not None and heads % key_heads:
            raise ValueError(f"num_key_value_heads {key_heads} does not divide num_attention_heads {heads}.")

    @property
    def rotated(self) -> tuple[AttentionTraits, ...]:
        """The attention of each layer: to all tokens, turned by `rope_theta`."""
        return (AttentionTraits(theta=self.rope_theta),) * self.num_hidden_layers


if not describing(__name__):
    import math

    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import (
        ACTIVATIONS,
        attend,
        causal_bias,
        linear_bias,
        padding_bias,
        position_bias,
        rotate,
        window_bias,
    )

    class RMSNorm(nn.Module):
        """x / the root mean square of x, times a weight and an offset."""

        def __init__(self, width: int, epsilon: float, offset: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width) - offset)
            self.epsilon, self.offset = epsilon, offset

        def forward(self, x: Tensor) -> Tensor:
            return F.rms_norm(x, self.weight.shape, self.weight + self.offset, self.epsilon)

    def norm(traits: Traits, width: int) -> nn.Module:
        """Returns a norm of a network."""
        if traits.norm == "rms_norm":
            return RMSNorm(width, traits.epsilon, traits.norm_offset)
        return nn.LayerNorm(width, traits.epsilon)

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config, traits: Traits) -> None:
            super().__init__()
            e, types = config.embedding_size, getattr(config, "type_vocab_size", 0)
            own = self.traits = traits.embedding
            self.word = nn.Embedding(config.vocab_size, e)
            if own.positions:
                self.position = nn.Embedding(config.max_position_embeddings, e)
            self.token_type = nn.Embedding(types, e) if types else None
            self.norm = norm(traits, e) if own.norm != "none" else nn.Identity()
            self.dropout = nn.Dropout(config.hidden_dropout_prob)
            self.projection = nn.Linear(e, config.hidden_size) if own.projection == "sum" else nn.Identity()

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            own, x = self.traits, self.word(input_ids)  # (B, S, E)
            if own.scale != 1:
                x = x * own.scale
            if self.token_type is not None:
                x = x + (self.token_type(token_type_ids) if own.token_types else self.token_type.weight[0])
            if own.positions:  # no text contains padding, so that positions follow one another
                first, size = own.position_offset, input_ids.shape[1]
                x = x + self.position(torch.arange(first, first + size, device=input_ids.device))
            out: Tensor = self.projection(self.dropout(self.norm(x)))  # (B, S, H)
            return out

    class Layer(layers.Layer):
        def __init__(self, config: Config, traits: Traits) -> None:
            super().__init__()
            h, depth = config.hidden_size, config.depth
            (network,) = traits.feed_forward
            self.heads, self.key_heads = traits.heads, traits.key_heads or traits.heads
            width, keys = self.heads * depth, self.key_heads * depth
            self.norm_position = traits.norm_position
            self.scale = 1.0 if traits.score_scale is None else traits.score_scale * math.sqrt(depth)
            self.act = ACTIVATIONS[traits.activation]
            self.query = nn.Linear(h, width)
            self.key = nn.Linear(h, keys)
            self.value = nn.Linear(h, keys)
            self.wide_norm = traits.wide_norm
            has_norm = traits.head_norm or traits.wide_norm
            self.query_norm = norm(traits, width if traits.wide_norm else depth) if has_norm else None
            self.key_norm = norm(traits, keys if traits.wide_norm else depth) if has_norm else None
            self.output = nn.Linear(width, h)
            self.attention_norm = norm(traits, h)
            self.second_norm = norm(traits, h) if traits.second_norm else None
            self.ffn_gate = nn.Linear(h, config.intermediate_size) if network.gate else None
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.ffn_norm = norm(traits, h)
            around = traits.norm_position == "around"
            self.output_norm = norm(traits, h) if around else nn.Identity()
            self.ffn_out_norm = norm(traits, h) if around else nn.Identity()
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def attended(self, x: Tensor, bias: Tensor, positions: Any) -> Tensor:
            query, key, value = self.query(x), self.key(x), self.value(x)
            if self.query_norm is not None and self.key_norm is not None:
                query = self.normed(self.query_norm, query, self.heads)
                key = self.normed(self.key_norm, key, self.key_heads)
            if positions is not None:
                query, key = rotate(query, positions, self.heads), rotate(key, positions, self.key_heads)
            if self.key_heads != self.heads:
                key, value = self.for_each_head(key), self.for_each_head(value)
            if self.scale != 1:
                query = query * self.scale
            attended = attend(query, key, value, self.heads, bias)
            out: Tensor = self.dropout(self.output_norm(self.output(attended)))
            return out

        def normed(self, norm: nn.Module, x: Tensor, heads: int) -> Tensor:
            """Returns the norm of all columns of x (B, S, .), or of each head's."""
            out: Tensor = norm(x) if self.wide_norm else norm(x.view(*x.shape[:2], heads, -1)).flatten(2)
            return out

        def for_each_head(self, x: Tensor) -> Tensor:
            """Repeats keys or values (B, S, .) for each head of the query that they serve: (B, S, C)."""
            parts = x.view(*x.shape[:2], self.key_heads, -1)
            return parts.repeat_interleave(self.heads // self.key_heads, 2).flatten(2)

        def widened(self, x: Tensor) -> Tensor:
            inner = self.ffn_in(x)  # (B, S, I)
            inner = self.act(inner) if self.ffn_gate is None else self.act(self.ffn_gate(x)) * inner
            out: Tensor = self.dropout(self.ffn_out_norm(self.ffn_out(inner)))
            return out

        def forward(self, x: Tensor, bias: Tensor, positions: Any = None) -> Tensor:
            """x (B, S, H) -> (B, S, H). `positions` are the angles of query and key, if they are turned."""
            if self.norm_position == "after":
                attended = self.attention_norm(x + self.attended(x, bias, positions))
                x = attended if self.second_norm is None else self.second_norm(x + attended)
                out: Tensor = self.ffn_norm(x + self.widened(x))
                return out
            x = x + self.attended(self.attention_norm(x), bias, positions)
            return x + self.widened(self.ffn_norm(x))

    class LayerInOrder(Layer):
        """A layer that lists its parameters in the order of their use, as the states of optimisers have them."""

        def __init__(self, config: Config, traits: Traits) -> None:
            super().__init__(config, traits)
            used = ("attention_norm", "query", "key", "value", "output", "ffn_norm", "ffn_gate", "ffn_in", "ffn_out")
            for name in used:
                if name in self._modules:
                    self._modules[name] = self._modules.pop(name)

    class Encoder(layers.Encoder):
        LAYER: type[Layer] = Layer
        config: Config
        embeddings: Embeddings
        slopes: Tensor

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            traits = self.traits = config.traits()
            self.embeddings = Embeddings(config, traits)
            self.layers = nn.ModuleList(self.LAYER(config, traits) for _ in traits.layers)
            if not traits.first_norm:
                self.layers[0].attention_norm = nn.Identity()
            self.norm = nn.Identity() if traits.norm_position == "after" else norm(traits, config.hidden_size)
            if isinstance(traits.position_bias, PositionBias):
                self.position_bias = nn.Embedding(traits.position_bias.buckets, traits.heads)
            elif traits.position_bias:
                self.register_buffer(
                    "slopes", torch.tensor(traits.position_bias.slopes(traits.heads)), persistent=False
                )
            for theta in {part.theta for part in traits.attention if part.theta}:
                turns = AttentionTraits(theta=theta).turns(config.max_position_embeddings, config.depth)
                self.register_buffer(_turns(theta), torch.tensor(turns), persistent=False)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x, size, traits = self.embeddings(input_ids, token_type_ids), input_ids.shape[1], self.traits
            bias = padding_bias(mask, x.dtype)
            if traits.causal:
                bias = torch.minimum(bias, causal_bias(size, x))
            if isinstance(traits.position_bias, PositionBias):
                bias = bias + position_bias(self.position_bias.weight, traits.position_bias.boundaries, size)
            elif traits.position_bias:
                bias = bias + linear_bias(self.slopes, size)
            attention = traits.attention or (AttentionTraits(),) * len(self.layers)
            read = {part: (within(part.window, bias, x), self.positions(part)) for part in set(attention)}
            features = [x]
            for layer, part in zip(self.layers, attention, strict=True):
                features.append(layer(features[-1], *read[part]))
            return [*features[:-1], self.norm(features[-1])]

        def positions(self, part: AttentionTraits) -> Any:
            """Returns what a layer reads of positions."""
            return getattr(self, _turns(part.theta)) if part.theta else None

    def within(window: int | None, bias: Tensor, x: Tensor) -> Tensor:
        """Returns the bias of a layer that attends within a window."""
        return bias if window is None else torch.minimum(bias, window_bias(x.shape[1], window, x))

    def _turns(theta: float) -> str:
        """Returns the name of the buffer with the angles of a theta."""
        return f"turns_{theta}".replace(".", "_")
