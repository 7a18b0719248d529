"""BERT (Devlin et al. 2018, arXiv:1810.04805): a transformer encoder with a norm after each residual addition.

Follows `modeling_bert.py` of transformers, which follows google-research/bert. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import (
    Activation,
    Count,
    FeedForwardTraits,
    Settings,
    Traits,
    check_heads,
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released base.

    The other released shape is large (H 1024, L 24, A 16, I 4096).
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
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
        """The activation of the masked-LM head."""
        return self.hidden_act


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, padding_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.hidden_size)
            self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
            self.norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            x = self.word(input_ids) + self.token_type(token_type_ids) + self.position(positions)  # (B, S, H)
            out: Tensor = self.dropout(self.norm(x))
            return out

    class LayerConfig(layers.Config, Protocol):
        """The settings that a layer reads. RoBERTa, ELECTRA, DistilBERT and MPNet have such layers."""

        @property
        def num_hidden_layers(self) -> int: ...
        @property
        def num_attention_heads(self) -> int: ...
        @property
        def intermediate_size(self) -> int: ...

    class Layer(layers.Layer):
        def __init__(self, config: LayerConfig) -> None:
            super().__init__()
            h = config.hidden_size
            self.heads = config.num_attention_heads
            self.act = ACTIVATIONS[config.hidden_act]
            self.query = nn.Linear(h, h)
            self.key = nn.Linear(h, h)
            self.value = nn.Linear(h, h)
            self.output = nn.Linear(h, h)
            self.attention_norm = nn.LayerNorm(h, config.layer_norm_eps)
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.ffn_norm = nn.LayerNorm(h, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            attended = self.output(attend(self.query(x), self.key(x), self.value(x), self.heads, bias))
            x = self.attention_norm(x + self.dropout(attended))
            widened = self.act(self.ffn_in(x))  # (B, S, I)
            out: Tensor = self.ffn_norm(x + self.dropout(self.ffn_out(widened)))
            return out

    class LayerStack(layers.Encoder):
        """Embeddings, and L layers with their own parameters."""

        def __init__(self, config: LayerConfig, embeddings: layers.Embeddings) -> None:
            super().__init__()
            self.config = config
            self.embeddings = embeddings
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x = self.embeddings(input_ids, token_type_ids)
            bias = padding_bias(mask, x.dtype)
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1], bias))
            return features

    class Encoder(LayerStack):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__(config, Embeddings(config))


def encoder_names(prefix: str) -> tuple[tuple[str, str], ...]:
    """Returns the names of the encoder's parameters. RoBERTa and ELECTRA have the same, with prefixes of their own."""
    layer = rf"^({prefix}\.)?encoder\.layer\.(\d+)\."
    return (
        (rf"^({prefix}\.)?embeddings\.(word|position|token_type)_embeddings\.", r"encoder.embeddings.\2."),
        (rf"^({prefix}\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
        (layer + r"attention\.self\.", r"encoder.layers.\2."),
        (layer + r"attention\.output\.dense\.", r"encoder.layers.\2.output."),
        (layer + r"attention\.output\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
        (layer + r"intermediate\.dense\.", r"encoder.layers.\2.ffn_in."),
        (layer + r"output\.dense\.", r"encoder.layers.\2.ffn_out."),
        (layer + r"output\.LayerNorm\.", r"encoder.layers.\2.ffn_norm."),
    )


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
NAMES: Final = (
    *encoder_names("bert"),
    (r"^(bert\.)?pooler\.dense\.", r"classification.pooler."),
    (r"^classifier\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^cls\.predictions\.transform\.dense\.", r"masked_lm.transform."),
    (r"^cls\.predictions\.transform\.LayerNorm\.", r"masked_lm.norm."),
    (r"^cls\.predictions\.bias$", r"masked_lm.bias"),
    (r"^cls\.predictions\.decoder\.", r"masked_lm.decoder."),
    (r"^cls\.seq_relationship\.", r"pretraining.sentence."),
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
