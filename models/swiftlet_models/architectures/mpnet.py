"""MPNet (Song et al. 2020, arXiv:2004.09297): BERT without token types and with a relative position bias.

Follows `modeling_mpnet.py` of transformers. All layers share the bias. Its buckets are T5's (Raffel et al. 2019,
arXiv:1910.10683, section 2.1), in both directions. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import (
    Activation,
    Count,
    EmbeddingTraits,
    FeedForwardTraits,
    PositionBias,
    Settings,
    Traits,
    check_heads,
)

OFFSET: Final = 2  # the first rows of the position table belong to padding
# The first distances of the buckets 1 to 15 of a direction: every distance up to 8, and above in steps of a factor
# 2^(1/2).
BUCKETS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released base."""

    vocab_size: int = 30527
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.hidden_size, self.num_attention_heads)

    def traits(self) -> Traits:
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_eps,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm"),),
            embedding=EmbeddingTraits(position_offset=OFFSET, token_types=False),
            position_bias=PositionBias(BUCKETS),
        )

    # Read by the heads, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler; None without a pooler."""
        return "tanh"

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.hidden_size

    @property
    def prediction_act(self) -> Activation:
        """The activation of the masked-LM head, which ignores `hidden_act`."""
        return "gelu"


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import bert, layers
    from swiftlet_models.architectures.layers import padding_bias, position_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.hidden_size)
            self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor) -> Tensor:
            positions = torch.arange(OFFSET, OFFSET + input_ids.shape[1], device=input_ids.device)
            out: Tensor = self.dropout(self.norm(self.word(input_ids) + self.position(positions)))  # (B, S, H)
            return out

    class Encoder(layers.Encoder):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(bert.Layer(config) for _ in range(config.num_hidden_layers))
            self.position_bias = nn.Embedding(2 * (len(BUCKETS) + 1), config.num_attention_heads)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: ARG002
            x = self.embeddings(input_ids)
            bias = padding_bias(mask, x.dtype) + position_bias(self.position_bias.weight, BUCKETS, x.shape[1])
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1], bias))
            return features


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
_LAYER: Final = r"^(mpnet\.)?encoder\.layer\.(\d+)\."
NAMES: Final = (
    (r"^(mpnet\.)?embeddings\.(word|position)_embeddings\.", r"encoder.embeddings.\2."),
    (r"^(mpnet\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
    (r"^(mpnet\.)?encoder\.relative_attention_bias\.", r"encoder.position_bias."),
    (_LAYER + r"attention\.attn\.q\.", r"encoder.layers.\2.query."),
    (_LAYER + r"attention\.attn\.k\.", r"encoder.layers.\2.key."),
    (_LAYER + r"attention\.attn\.v\.", r"encoder.layers.\2.value."),
    (_LAYER + r"attention\.attn\.o\.", r"encoder.layers.\2.output."),
    (_LAYER + r"attention\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
    (_LAYER + r"intermediate\.dense\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"output\.dense\.", r"encoder.layers.\2.ffn_out."),
    (_LAYER + r"output\.LayerNorm\.", r"encoder.layers.\2.ffn_norm."),
    (r"^classifier\.dense\.", r"classification.pooler."),
    (r"^classifier\.out_proj\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^lm_head\.dense\.", r"masked_lm.transform."),
    (r"^lm_head\.layer_norm\.", r"masked_lm.norm."),
    (r"^lm_head\.bias$", r"masked_lm.bias"),
    (r"^lm_head\.decoder\.", r"masked_lm.decoder."),
)

# Settings of transformers that change the computation, with the only values that are implemented here. The code of
# transformers has 32 buckets with any setting.
FIXED: Final[Mapping[str, Any]] = {"relative_attention_num_buckets": 32, "tie_word_embeddings": True}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = (r"^(mpnet\.)?pooler\.",)

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()
