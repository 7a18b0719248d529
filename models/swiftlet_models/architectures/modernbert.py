"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): a BERT for long texts.

Query and key are turned by their positions instead of a table of positions. Most layers attend within a window, every
few ones to all tokens. The feed-forward network has a gate (GeGLU: Shazeer 2020, arXiv:2002.05202). Norms precede, and
the embeddings' own is that of the first attention. Follows `modeling_modernbert.py` of transformers. mmBERT, Ettin,
gte-modernbert and granite-embedding-r2 are the same network. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import (
    Activation,
    AttentionTraits,
    Count,
    EmbeddingTraits,
    FeedForwardTraits,
    Positions,
    Settings,
    Theta,
    Traits,
    check_heads,
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers 4. The defaults are the released base.

    The released large model has H 1024, I 2624, L 28, A 16.
    """

    vocab_size: int = 50368
    hidden_size: int = 768
    intermediate_size: int = 1152
    num_hidden_layers: Count = 22
    num_attention_heads: Count = 12
    hidden_activation: Activation = "gelu"
    max_position_embeddings: Positions = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: Activation = "gelu"
    classifier_pooling: Literal["cls", "mean"] = "cls"
    global_attn_every_n_layers: Count = 3
    global_rope_theta: Theta = 160000.0
    local_attention: int = 128
    local_rope_theta: Theta | None = 10000.0
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    mlp_dropout: float = 0.0
    classifier_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.hidden_size, self.num_attention_heads)
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError("the width of an attention head is odd, so that its columns are no pairs.")

    def traits(self) -> Traits:
        to_all = AttentionTraits(theta=self.global_rope_theta)
        local = AttentionTraits(self.local_attention, self.local_rope_theta or self.global_rope_theta)
        apart = self.global_attn_every_n_layers
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=self.hidden_activation,
            epsilon=self.norm_eps,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm", gate="ffn_gate"),),
            embedding=EmbeddingTraits(positions=False, token_types=False),
            norm_position="before",
            attention=tuple(local if i % apart else to_all for i in range(self.num_hidden_layers)),
            first_norm=False,
            classifier_pooling=self.classifier_pooling,
            classifier_norm=True,
        )

    # Read by the heads and the training, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation in front of the outputs of the classification and the token head."""
        return self.classifier_activation

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
        return self.classifier_activation

    @property
    def hidden_act(self) -> Activation:
        return self.hidden_activation

    @property
    def hidden_dropout_prob(self) -> float:
        """The dropout in the heads."""
        return self.classifier_dropout

    @property
    def layer_norm_eps(self) -> float:
        return self.norm_eps


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, padding_bias, rotate, window_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.hidden_size)
            self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
            self.dropout = nn.Dropout(config.embedding_dropout)

        def forward(self, input_ids: Tensor) -> Tensor:
            out: Tensor = self.dropout(self.norm(self.word(input_ids)))  # (B, S, H)
            return out

    class Layer(layers.Layer):
        turns: Tensor

        def __init__(self, config: Config, turns: Tensor, *, has_norm: bool) -> None:
            super().__init__()
            h, epsilon = config.hidden_size, config.norm_eps
            self.heads = config.num_attention_heads
            self.register_buffer("turns", turns, persistent=False)
            self.act = ACTIVATIONS[config.hidden_activation]
            self.attention_norm = nn.LayerNorm(h, epsilon) if has_norm else nn.Identity()
            self.query = nn.Linear(h, h)
            self.key = nn.Linear(h, h)
            self.value = nn.Linear(h, h)
            self.output = nn.Linear(h, h)
            self.ffn_norm = nn.LayerNorm(h, epsilon)
            self.ffn_gate = nn.Linear(h, config.intermediate_size)
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.attention_dropout = nn.Dropout(config.attention_dropout)
            self.dropout = nn.Dropout(config.mlp_dropout)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            y = self.attention_norm(x)
            query, key = (rotate(part(y), self.turns, self.heads) for part in (self.query, self.key))
            attended = self.output(attend(query, key, self.value(y), self.heads, bias))
            x = x + self.attention_dropout(attended)
            y = self.ffn_norm(x)
            out: Tensor = x + self.ffn_out(self.dropout(self.act(self.ffn_gate(y)) * self.ffn_in(y)))
            return out

    class Encoder(layers.Encoder):
        config: Config
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.attention = config.traits().attention
            depth = config.hidden_size // config.num_attention_heads
            turns = {part: torch.tensor(part.turns(config.max_position_embeddings, depth)) for part in self.attention}
            self.layers = nn.ModuleList(
                Layer(config, turns[part], has_norm=i > 0) for i, part in enumerate(self.attention)
            )
            self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: ARG002
            x = self.embeddings(input_ids)
            to_all = padding_bias(mask, x.dtype)
            local = torch.minimum(to_all, window_bias(x.shape[1], self.config.local_attention, x))
            features = [x]
            for layer, part in zip(self.layers, self.attention, strict=True):
                features.append(layer(features[-1], to_all if part.window is None else local))
            return [*features[:-1], self.norm(features[-1])]


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint with those of transformers 5 under the names of version 4.

    Raises:
        ValueError: the layers or the angles have a form that is not implemented.
    """
    own = dict(settings)
    rotations = settings.get("rope_parameters") or {}
    if not isinstance(rotations, dict) or not all(isinstance(part or {}, dict) for part in rotations.values()):
        raise ValueError("rope_parameters has an invalid value.")
    for kind, name in (("full_attention", "global_rope_theta"), ("sliding_attention", "local_rope_theta")):
        rotation = dict(rotations.get(kind) or {})
        if rotation.pop("rope_type", "default") != "default" or rotation.keys() - {"rope_theta"}:
            raise ValueError("rope_parameters has a rope_type or a setting that is not supported, only 'default' is.")
        if "rope_theta" in rotation:
            own[name] = rotation["rope_theta"]
    if (kinds := settings.get("layer_types")) is not None:
        full, local = "full_attention", "sliding_attention"
        count = len(kinds) if isinstance(kinds, list) else 0
        apart = next((n for n in range(1, count + 1) if kinds == [local if i % n else full for i in range(count)]), 0)
        if not apart or count != settings.get("num_hidden_layers", count):
            raise ValueError(f"layer_types is not supported unless every few layers, from the first on, have {full}.")
        own["global_attn_every_n_layers"] = apart
    return own


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
_LAYER: Final = r"^(model\.)?layers\.(\d+)\."
NAMES: Final = (
    (r"^(model\.)?embeddings\.tok_embeddings\.", r"encoder.embeddings.word."),
    (r"^(model\.)?embeddings\.norm\.", r"encoder.embeddings.norm."),
    (r"^(model\.)?final_norm\.", r"encoder.norm."),
    (_LAYER + r"attn_norm\.", r"encoder.layers.\2.attention_norm."),
    (_LAYER + r"attn\.(query|key|value)\.", r"encoder.layers.\2.\3."),
    (_LAYER + r"attn\.Wo\.", r"encoder.layers.\2.output."),
    (_LAYER + r"mlp_norm\.", r"encoder.layers.\2.ffn_norm."),
    (_LAYER + r"mlp\.ffn_(gate|in)\.", r"encoder.layers.\2.ffn_\3."),
    (_LAYER + r"mlp\.Wo\.", r"encoder.layers.\2.ffn_out."),
    (r"^head\.dense\.", r"classification.pooler."),
    (r"^head\.norm\.", r"classification.norm."),
    (r"^classifier\.", r"classification.output."),
    (r"^decoder\.bias$", r"masked_lm.bias"),
    (r"^decoder\.", r"masked_lm.decoder."),
)

# The names in other heads than the one that classifies texts, which has the same.
OF_HEAD: Final = {
    "token": (
        (r"^head\.dense\.", r"token.transform."),
        (r"^head\.norm\.", r"token.norm."),
        (r"^classifier\.", r"token.output."),
    ),
    "masked_lm": ((r"^head\.dense\.", r"masked_lm.transform."), (r"^head\.norm\.", r"masked_lm.norm.")),
}

# Tensors that hold several parameters side by side, as (pattern, the names of its parts).
FUSED: Final = ((r"\.Wqkv\.", (".query.", ".key.", ".value.")), (r"\.Wi\.", (".ffn_gate.", ".ffn_in.")))

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {"tie_word_embeddings": True, "rope_scaling": None}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = ()

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()

# Patterns of parameters that a checkpoint leaves out because they are zero, each with the setting that adds them.
OMITTED: Final = (
    (r"(encoder|classification|token|masked_lm)\.(.*\.)?(\w+_)?norm\.bias", "norm_bias"),
    (r"encoder\.layers\.\d+\.(query|key|value|output)\.bias", "attention_bias"),
    (r"encoder\.layers\.\d+\.(ffn_gate|ffn_in|ffn_out)\.bias", "mlp_bias"),
    (r"classification\.pooler\.bias|(token|masked_lm)\.transform\.bias", "classifier_bias"),
    (r"masked_lm\.bias", "decoder_bias"),
)
