"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): half of BERT's layers, without token types.

The classification head has a ReLU where BERT's pooler has a tanh. Positions may be sinusoidal: a checkpoint stores them
like learned ones. Follows `modeling_distilbert.py` of transformers. Shape letters: see `layers.py`.
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

EPSILON: Final = 1e-12  # of every LayerNorm; the reference has no setting for it


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released base."""

    vocab_size: int = 30522
    dim: int = 768
    n_layers: Count = 6
    n_heads: Count = 12
    hidden_dim: int = 3072
    activation: Activation = "gelu"
    dropout: float = 0.1
    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.dim, self.n_heads)

    def traits(self) -> Traits:
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.n_layers)),
            heads=self.n_heads,
            activation=self.activation,
            epsilon=EPSILON,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm"),),
            embedding=EmbeddingTraits(token_types=False),
        )

    # Read by the heads, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler; None without a pooler."""
        return "relu"

    @property
    def hidden_size(self) -> int:
        return self.dim

    @property
    def embedding_size(self) -> int:
        return self.dim

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.dim

    @property
    def prediction_act(self) -> Activation:
        """The activation of the masked-LM head."""
        return self.activation

    # Read by the layers, which are BERT's.
    @property
    def num_hidden_layers(self) -> int:
        return self.n_layers

    @property
    def num_attention_heads(self) -> int:
        return self.n_heads

    @property
    def intermediate_size(self) -> int:
        return self.hidden_dim

    @property
    def hidden_act(self) -> Activation:
        return self.activation

    @property
    def hidden_dropout_prob(self) -> float:
        return self.dropout

    @property
    def layer_norm_eps(self) -> float:
        return EPSILON


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.bert import LayerStack

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.dim)
            self.position = nn.Embedding(config.max_position_embeddings, config.dim)
            self.norm = nn.LayerNorm(config.dim, EPSILON)
            self.dropout = nn.Dropout(config.dropout)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:  # noqa: ARG002  # there are none
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            out: Tensor = self.dropout(self.norm(self.word(input_ids) + self.position(positions)))  # (B, S, H)
            return out

    class Encoder(LayerStack):
        def __init__(self, config: Config) -> None:
            super().__init__(config, Embeddings(config))


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
_LAYER = r"^(distilbert\.)?transformer\.layer\.(\d+)\."
NAMES: Final = (
    (r"^(distilbert\.)?embeddings\.(word|position)_embeddings\.", r"encoder.embeddings.\2."),
    (r"^(distilbert\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
    (_LAYER + r"attention\.q_lin\.", r"encoder.layers.\2.query."),
    (_LAYER + r"attention\.k_lin\.", r"encoder.layers.\2.key."),
    (_LAYER + r"attention\.v_lin\.", r"encoder.layers.\2.value."),
    (_LAYER + r"attention\.out_lin\.", r"encoder.layers.\2.output."),
    (_LAYER + r"sa_layer_norm\.", r"encoder.layers.\2.attention_norm."),
    (_LAYER + r"ffn\.lin1\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"ffn\.lin2\.", r"encoder.layers.\2.ffn_out."),
    (_LAYER + r"output_layer_norm\.", r"encoder.layers.\2.ffn_norm."),
    (r"^pre_classifier\.", r"classification.pooler."),
    (r"^classifier\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^vocab_transform\.", r"masked_lm.transform."),
    (r"^vocab_layer_norm\.", r"masked_lm.norm."),
    (r"^vocab_projector\.bias$", r"masked_lm.bias"),
    (r"^vocab_projector\.weight$", r"masked_lm.decoder.weight"),
)

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {"tie_word_embeddings": True}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = ()

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()
