"""The networks whose layers have one form, which their traits describe: attention, then a feed-forward network.

A family derives its `Config` from the one here, and names its parameters. Shape letters: see `layers.py`; D is also
`head_dim`, and C = A D may differ from H.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import (
    Activation,
    AttentionTraits,
    Count,
    FeedForwardTraits,
    Settings,
    Traits,
)
from swiftlet_models.architectures.traits import Positions as Positions
from swiftlet_models.architectures.traits import Theta as Theta

GATED: Final = FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm", "ffn_gate")
PLAIN: Final = FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm")


@dataclass(frozen=True)
class Config(Settings, ABC):
    """The settings that the families share, named as in transformers."""

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
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(f"num_attention_heads {heads} does not divide the width {self.hidden_size}.")
        if key_heads is not None and heads % key_heads:
            raise ValueError(f"num_key_value_heads {key_heads} does not divide num_attention_heads {heads}.")
        if self.depth % 2 and any(part.theta for part in self.traits().attention):
            raise ValueError("the width of an attention head is odd, so that its columns are no pairs.")

    @abstractmethod
    def traits(self) -> Traits:
        """Returns the structure of the network."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers."""
        return tuple(f"layers.{i}" for i in range(self.num_hidden_layers))

    @property
    def rotated(self) -> tuple[AttentionTraits, ...]:
        """The attention of each layer: to all tokens, turned by `rope_theta`."""
        return (AttentionTraits(theta=self.rope_theta),) * self.num_hidden_layers

    @property
    def depth(self) -> int:
        """D."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    # Read by the heads and the training, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler; None without a pooler."""
        return None

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.hidden_size

    @property
    def prediction_act(self) -> Activation:
        """The activation of the masked-LM head."""
        return "gelu"

    @property
    def hidden_dropout_prob(self) -> float:
        return 0.0

    @property
    def layer_norm_eps(self) -> float:
        """The epsilon of a head's norms."""
        return self.traits().epsilon


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
            h, own, types = config.hidden_size, traits.embedding, getattr(config, "type_vocab_size", 0)
            self.scale, self.tells_types = own.scale, own.token_types
            self.word = nn.Embedding(config.vocab_size, h)
            self.token_type = nn.Embedding(types, h) if types else None
            self.norm = norm(traits, h) if own.norm != "none" else nn.Identity()
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            x = self.word(input_ids) * self.scale
            if self.token_type is not None:
                x = x + self.token_type(token_type_ids if self.tells_types else torch.zeros_like(input_ids))
            out: Tensor = self.dropout(self.norm(x))  # (B, S, H)
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
            self.query_norm = norm(traits, depth) if traits.head_norm else nn.Identity()
            self.key_norm = norm(traits, depth) if traits.head_norm else nn.Identity()
            self.output = nn.Linear(width, h)
            self.attention_norm = norm(traits, h)
            self.ffn_gate = nn.Linear(h, config.intermediate_size) if network.gate else None
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.ffn_norm = norm(traits, h)
            around = traits.norm_position == "around"
            self.output_norm = norm(traits, h) if around else nn.Identity()
            self.ffn_out_norm = norm(traits, h) if around else nn.Identity()
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def attended(self, x: Tensor, bias: Tensor, turns: Tensor | None) -> Tensor:
            by_head = (
                own_norm(own(x).unflatten(2, (heads, -1)))
                for own, own_norm, heads in (
                    (self.query, self.query_norm, self.heads),
                    (self.key, self.key_norm, self.key_heads),
                )
            )
            query, key = (part.flatten(2) for part in by_head)
            if turns is not None:
                query, key = rotate(query, turns, self.heads), rotate(key, turns, self.key_heads)
            key, value = (self.for_each_head(part) for part in (key, self.value(x)))
            attended = attend(query * self.scale, key, value, self.heads, bias)
            out: Tensor = self.dropout(self.output_norm(self.output(attended)))
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

        def forward(self, x: Tensor, bias: Tensor, turns: Tensor | None) -> Tensor:
            if self.norm_position == "after":
                x = self.attention_norm(x + self.attended(x, bias, turns))
                out: Tensor = self.ffn_norm(x + self.widened(x))
                return out
            x = x + self.attended(self.attention_norm(x), bias, turns)
            return x + self.widened(self.ffn_norm(x))

    class Encoder(layers.Encoder):
        config: Config
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            traits = self.traits = config.traits()
            self.embeddings = Embeddings(config, traits)
            self.layers = nn.ModuleList(Layer(config, traits) for _ in traits.layers)
            self.norm = nn.Identity() if traits.norm_position == "after" else norm(traits, config.hidden_size)
            if traits.position_bias:
                self.position_bias = nn.Embedding(traits.position_bias.buckets, traits.heads)
            for theta in {part.theta for part in traits.attention if part.theta}:
                turns = AttentionTraits(theta=theta).turns(config.max_position_embeddings, config.depth)
                self.register_buffer(_turns(theta), torch.tensor(turns), persistent=False)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x, size, traits = self.embeddings(input_ids, token_type_ids), input_ids.shape[1], self.traits
            bias = padding_bias(mask, x.dtype)
            if traits.causal:
                bias = torch.minimum(bias, causal_bias(size, x))
            if traits.position_bias:
                bias = bias + position_bias(self.position_bias.weight, traits.position_bias.boundaries, size)
            features = [x]
            attention = traits.attention or (AttentionTraits(),) * len(self.layers)
            for layer, own in zip(self.layers, attention, strict=True):
                within = bias if own.window is None else torch.minimum(bias, window_bias(size, own.window, x))
                turns = getattr(self, _turns(own.theta)) if own.theta else None
                features.append(layer(features[-1], within, turns))
            return [*features[:-1], self.norm(features[-1])]

    def _turns(theta: float) -> str:
        """Returns the name of the buffer with the angles of a theta."""
        return f"turns_{theta}".replace(".", "_")


def rotation(settings: Mapping[str, Any], kind: str | None = None) -> dict[str, Any]:
    """Returns the settings of the angles in `rope_parameters` of transformers 5, or those of one kind of layers.

    Raises:
        ValueError: the angles have a form that is not implemented.
    """
    given = settings.get("rope_parameters") or {}
    if kind and isinstance(given, dict):
        given = given.get(kind) or {}
    if not isinstance(given, dict):
        raise ValueError("rope_parameters has an invalid value.")  # noqa: TRY004  # of a file
    plain = {"rope_type": "default", "partial_rotary_factor": 1.0, "rope_theta": 0}
    if {**plain, **given, "rope_theta": 0} != plain:
        raise ValueError("rope_parameters has a rope_type or a setting that is not supported, only 'default' is.")
    return {"rope_theta": given["rope_theta"]} if "rope_theta" in given else {}


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, of transformers 4 or 5, under the names of `Config`.

    Raises:
        ValueError: the angles have a form that is not implemented.
    """
    own = {**settings, **rotation(settings)}
    if "layer_norm_eps" in own:  # which is a property here
        own["layer_norm_epsilon"] = own["layer_norm_eps"]
    return own


# The values that most families share. `architectures/__init__.py` says what each name means.
FIXED: Final[Mapping[str, Any]] = {"rope_scaling": None}
IMPLIED: Final[Mapping[str, Any]] = {}
UNREAD: Final[tuple[str, ...]] = ()
TRANSPOSED: Final[tuple[str, ...]] = ()
_LAYER: Final = r"^((?:\w+\.)*)layers?\.(\d+)\."
# The parameters of a layer in transformers, as (pattern, replacement), without its norms.
LAYERS: Final = (
    *(
        (_LAYER + rf"self_attn\.{name[0]}_proj\.", rf"encoder.layers.\2.{name}.")
        for name in ("query", "key", "value", "output")
    ),
    *((_LAYER + rf"self_attn\.{name[0]}_norm\.", rf"encoder.layers.\2.{name}_norm.") for name in ("query", "key")),
    (_LAYER + r"mlp\.gate_proj\.", r"encoder.layers.\2.ffn_gate."),
    (_LAYER + r"mlp\.up_proj\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"mlp\.down_proj\.", r"encoder.layers.\2.ffn_out."),
)


def norms(**names: str) -> tuple[tuple[str, str], ...]:
    """Returns the patterns of a layer's norms: their names here, and in transformers."""
    return tuple((_LAYER + rf"{theirs}\.", rf"encoder.layers.\2.{ours}.") for ours, theirs in names.items())
