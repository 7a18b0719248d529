"""A toy architecture. `tests/models/test_new_architecture.py` adds this file to the architectures.

Its combination of traits occurs in no other architecture: projected words under a LayerNorm, positions with an offset,
no token types, shared layers without a bottleneck, NoNorm, two feed-forward networks per layer, and heads with other
activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from swiftlet_models.architectures.checkpoints import Checkpoints
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Settings, check_heads
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, FeedForwardTraits, Traits

OFFSET: Final = 2


@dataclass(frozen=True)
class Config(Settings):
    """The settings."""

    vocab_size: int = 211
    embedding_size: int = 32
    hidden_size: int = 64
    num_hidden_layers: Count = 3
    num_attention_heads: Count = 4
    intermediate_size: int = 48
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.hidden_size, self.num_attention_heads)

    def traits(self) -> Traits:
        return Traits(
            layers=tuple(f"layers.{min(depth, 1)}" for depth in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_eps,
            feed_forward=tuple(FeedForwardTraits(f"inner.{i}", f"outer.{i}", f"norms.{i}") for i in range(2)),
            embedding=EmbeddingTraits(projection="words", position_offset=OFFSET, token_types=False),
            norm="no_norm",
            pooler="gelu",
            prediction_act="relu",
        )


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, padding_bias
    from swiftlet_models.architectures.mobilebert import NoNorm

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.embedding_size)
            self.position = nn.Embedding(config.max_position_embeddings + OFFSET, config.hidden_size)
            self.projection = nn.Linear(config.embedding_size, config.hidden_size)
            self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

        def forward(self, input_ids: Tensor) -> Tensor:
            positions = torch.arange(OFFSET, input_ids.shape[1] + OFFSET, device=input_ids.device)
            out: Tensor = self.norm(self.projection(self.word(input_ids)) + self.position(positions))
            return out

    class Layer(layers.Layer):
        def __init__(self, config: Config) -> None:
            super().__init__()
            h, i = config.hidden_size, config.intermediate_size
            self.heads = config.num_attention_heads
            self.act = ACTIVATIONS[config.hidden_act]
            self.query, self.key, self.value, self.output = (nn.Linear(h, h) for _ in range(4))
            self.attention_norm = NoNorm(h, config.layer_norm_eps)
            self.inner = nn.ModuleList(nn.Linear(h, i) for _ in range(2))
            self.outer = nn.ModuleList(nn.Linear(i, h) for _ in range(2))
            self.norms = nn.ModuleList(NoNorm(h, config.layer_norm_eps) for _ in range(2))

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            attended = self.output(attend(self.query(x), self.key(x), self.value(x), self.heads, bias))
            x = self.attention_norm(x + attended)
            for inner, outer, norm in zip(self.inner, self.outer, self.norms, strict=True):
                x = norm(x + outer(self.act(inner(x))))
            return x

    class Encoder(layers.Encoder):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(2))

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            features = [self.embeddings(input_ids)]
            bias = padding_bias(mask, features[0].dtype)
            for layer in self.applied_layers():
                features.append(layer(features[-1], bias))
            return features


CHECKPOINTS: Final = Checkpoints(((r"^toy\.", r"encoder."),))
