"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): a causal transformer.

A token attends only to itself and the tokens before it. A norm precedes each attention and feed-forward network, and
another one follows the last layer. Follows `modeling_gpt2.py` of transformers. Shape letters: see `layers.py`.
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


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released small model.

    The other released shapes are medium (H 1024, L 24, A 16), large (1280, 36, 20) and xl (1600, 48, 25).
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: Count = 12
    n_head: Count = 12
    n_inner: int | None = None  # 4 H if it is None
    activation_function: Activation = "gelu_new"
    resid_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.n_embd, self.n_head)

    def traits(self) -> Traits:
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.n_layer)),
            heads=self.n_head,
            activation=self.activation_function,
            epsilon=self.layer_norm_epsilon,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm"),),
            embedding=EmbeddingTraits(norm="none", token_types=False),
            norm_position="before",
            causal=True,
        )

    # Read by the heads and the training, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler; None without a pooler."""
        return None

    @property
    def hidden_size(self) -> int:
        return self.n_embd

    @property
    def embedding_size(self) -> int:
        return self.n_embd

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.n_embd

    @property
    def prediction_act(self) -> Activation:
        """The activation of the masked-LM head."""
        return self.activation_function

    @property
    def intermediate_size(self) -> int:
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def max_position_embeddings(self) -> int:
        return self.n_positions

    @property
    def hidden_act(self) -> Activation:
        return self.activation_function

    @property
    def hidden_dropout_prob(self) -> float:
        return self.resid_pdrop

    @property
    def layer_norm_eps(self) -> float:
        return self.layer_norm_epsilon


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, causal_bias, padding_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.n_embd)
            self.position = nn.Embedding(config.n_positions, config.n_embd)
            self.dropout = nn.Dropout(config.resid_pdrop)

        def forward(self, input_ids: Tensor) -> Tensor:
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            out: Tensor = self.dropout(self.word(input_ids) + self.position(positions))  # (B, S, H)
            return out

    class Layer(layers.Layer):
        def __init__(self, config: Config) -> None:
            super().__init__()
            h = config.n_embd
            self.heads = config.n_head
            self.act = ACTIVATIONS[config.activation_function]
            self.attention_norm = nn.LayerNorm(h, config.layer_norm_epsilon)
            self.query = nn.Linear(h, h)
            self.key = nn.Linear(h, h)
            self.value = nn.Linear(h, h)
            self.output = nn.Linear(h, h)
            self.ffn_norm = nn.LayerNorm(h, config.layer_norm_epsilon)
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.dropout = nn.Dropout(config.resid_pdrop)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            y = self.attention_norm(x)
            attended = self.output(attend(self.query(y), self.key(y), self.value(y), self.heads, bias))
            x = x + self.dropout(attended)
            widened = self.act(self.ffn_in(self.ffn_norm(x)))  # (B, S, I)
            out: Tensor = x + self.dropout(self.ffn_out(widened))
            return out

    class Encoder(layers.Encoder):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))
            self.norm = nn.LayerNorm(config.n_embd, config.layer_norm_epsilon)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: ARG002
            x = self.embeddings(input_ids)
            bias = torch.minimum(padding_bias(mask, x.dtype), causal_bias(x.shape[1], x))
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1], bias))
            return [*features[:-1], self.norm(features[-1])]


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
_LAYER: Final = r"^(transformer\.)?h\.(\d+)\."
NAMES: Final = (
    (r"^(transformer\.)?wte\.", r"encoder.embeddings.word."),
    (r"^(transformer\.)?wpe\.", r"encoder.embeddings.position."),
    (r"^(transformer\.)?ln_f\.", r"encoder.norm."),
    (_LAYER + r"ln_1\.", r"encoder.layers.\2.attention_norm."),
    (_LAYER + r"attn\.(query|key|value)\.", r"encoder.layers.\2.\3."),
    (_LAYER + r"attn\.c_proj\.", r"encoder.layers.\2.output."),
    (_LAYER + r"ln_2\.", r"encoder.layers.\2.ffn_norm."),
    (_LAYER + r"mlp\.c_fc\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"mlp\.c_proj\.", r"encoder.layers.\2.ffn_out."),
    (r"^score\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^lm_head\.weight$", r"causal_lm.decoder.weight"),
)

# Tensors that hold several parameters side by side, as (pattern, the names of its parts).
FUSED: Final = ((r"\.c_attn\.", (".query.", ".key.", ".value.")),)

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read: in older checkpoints, the masks of attention.
UNREAD: Final[tuple[str, ...]] = (r"^(transformer\.)?h\.\d+\.attn\.(masked_)?bias$",)

# Parameters, by patterns of their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = (r"encoder\.layers\.\d+\.(query|key|value|output|ffn_in|ffn_out)\.weight",)

# Patterns of parameters that a checkpoint leaves out because they are zero, each with the setting that adds them.
OMITTED: Final = ((r"classification\.output\.bias|causal_lm\.bias", None),)
