"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT's layers, pre-trained to detect replaced tokens.

The released discriminators are encoders for all tasks; a generator fills masks. The embedding is factorised like
ALBERT's where its width differs from the layers' (small models, section 3.2). The classification head has a GELU
where BERT's pooler has a tanh. Follows `modeling_electra.py` of transformers. Shape letters: see `layers.py`.
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
    Settings,
    Traits,
    check_heads,
)

from .bert import encoder_names


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released small discriminator.

    The other released discriminators are base (E 768, H 768, A 12, I 3072) and large (E 1024, H 1024, L 24, A 16,
    I 4096). Each has a generator with narrower layers.
    """

    vocab_size: int = 30522
    embedding_size: int = 128
    hidden_size: int = 256
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 4
    intermediate_size: int = 1024
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
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
            embedding=EmbeddingTraits(projection="none" if self.embedding_size == self.hidden_size else "sum"),
        )

    # Read by the heads, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler; None without a pooler."""
        return "gelu"

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.embedding_size

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
            e, h = config.embedding_size, config.hidden_size
            self.word = nn.Embedding(config.vocab_size, e)
            self.position = nn.Embedding(config.max_position_embeddings, e)
            self.token_type = nn.Embedding(config.type_vocab_size, e)
            self.norm = nn.LayerNorm(e, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)
            self.projection = nn.Linear(e, h) if e != h else None

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            x = self.word(input_ids) + self.token_type(token_type_ids) + self.position(positions)  # (B, S, E)
            x = self.dropout(self.norm(x))
            out: Tensor = x if self.projection is None else self.projection(x)  # (B, S, H)
            return out

    class Encoder(LayerStack):
        def __init__(self, config: Config) -> None:
            super().__init__(config, Embeddings(config))


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
NAMES: Final = (
    *encoder_names("electra"),
    (r"^(electra\.)?embeddings_project\.", r"encoder.embeddings.projection."),
    (r"^classifier\.dense\.", r"classification.pooler."),
    (r"^classifier\.(out_proj\.)?", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^generator_predictions\.dense\.", r"masked_lm.transform."),
    (r"^generator_predictions\.LayerNorm\.", r"masked_lm.norm."),
    (r"^generator_lm_head\.bias$", r"masked_lm.bias"),
    (r"^generator_lm_head\.weight$", r"masked_lm.decoder.weight"),
    (r"^discriminator_predictions\.", r"pretraining.discriminator."),
)

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = ()

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()
