"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): BERT's network, trained longer, without a sentence objective.

The network differs from BERT's in its embeddings: there is one token type, and the rows of the position table that
belong to tokens follow the row of the padding token. Follows `modeling_roberta.py` of transformers. Shape letters: see
`layers.py`.
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
    Id,
    Settings,
    Traits,
    check_heads,
)

from .bert import encoder_names


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released base.

    The other released shapes are large (H 1024, L 24, A 16, I 4096) and distilroberta-base (L 6).
    """

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: Id = 1

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
            embedding=EmbeddingTraits(position_offset=self.pad_token_id + 1, token_types=self.type_vocab_size > 1),
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

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.bert import LayerStack

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.offset = config.pad_token_id + 1
            self.one_type = config.type_vocab_size == 1
            self.word = nn.Embedding(config.vocab_size, config.hidden_size)
            self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
            self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            # No text contains the padding token, so that positions follow one another.
            positions = torch.arange(self.offset, self.offset + input_ids.shape[1], device=input_ids.device)
            types = self.token_type.weight[0] if self.one_type else self.token_type(token_type_ids)
            out: Tensor = self.dropout(self.norm(self.word(input_ids) + types + self.position(positions)))  # (B, S, H)
            return out

    class Encoder(LayerStack):
        def __init__(self, config: Config) -> None:
            super().__init__(config, Embeddings(config))


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
NAMES: Final = (
    *encoder_names("roberta"),
    (r"^(roberta\.)?pooler\.dense\.", r"pretraining.pooler."),
    (r"^classifier\.dense\.", r"classification.pooler."),
    (r"^classifier\.(out_proj\.)?", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^lm_head\.dense\.", r"masked_lm.transform."),
    (r"^lm_head\.layer_norm\.", r"masked_lm.norm."),
    (r"^lm_head\.bias$", r"masked_lm.bias"),
    (r"^lm_head\.decoder\.", r"masked_lm.decoder."),
)

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = ()

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()
