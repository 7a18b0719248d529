"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): a BERT for long texts.

Query and key are turned by their positions instead of a table of positions. Most layers attend within a window, every
few ones to all tokens. The feed-forward network has a gate (GeGLU: Shazeer 2020, arXiv:2002.05202). Norms precede, and
the embeddings' own is that of the first attention. Follows `modeling_modernbert.py` of transformers. mmBERT, Ettin,
gte-modernbert and granite-embedding-r2 are the same network. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from swiftlet_models.architectures.checkpoints import Checkpoints
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions, Theta
from swiftlet_models.architectures.traits import Activation, AttentionTraits, EmbeddingTraits, Traits

from . import standard
from .standard import GATED, same_as


@dataclass(frozen=True)
class Config(standard.Config):
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

    hidden_dropout_prob = same_as("classifier_dropout")  # of the heads

    def traits(self) -> Traits:
        to_all = AttentionTraits(theta=self.global_rope_theta)
        local = AttentionTraits(self.local_attention, self.local_rope_theta or self.global_rope_theta)
        apart = self.global_attn_every_n_layers
        return replace(
            self.plain(self.hidden_activation, self.norm_eps),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False, token_types=False),
            norm_position="before",
            attention=tuple(local if i % apart else to_all for i in range(self.num_hidden_layers)),
            first_norm=False,
            classifier_pooling=self.classifier_pooling,
            pooler=self.classifier_activation,
            classifier_norm=True,
            prediction_act=self.classifier_activation,
        )


if not describing(__name__):
    from torch import Tensor, nn

    class Layer(standard.LayerInOrder):
        ffn_gate: nn.Linear

        def __init__(self, config: Config, traits: Traits) -> None:
            super().__init__(config, traits)
            self.dropout = nn.Dropout(config.attention_dropout)
            self.ffn_dropout = nn.Dropout(config.mlp_dropout)

        def widened(self, x: Tensor) -> Tensor:
            out: Tensor = self.ffn_out(self.ffn_dropout(self.act(self.ffn_gate(x)) * self.ffn_in(x)))
            return out

    class Encoder(standard.Encoder):
        LAYER = Layer

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.embeddings.dropout = nn.Dropout(config.embedding_dropout)


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
        apart = next((number for number in range(1, count) if kinds[number] == full), count)
        regular = [local if number % apart else full for number in range(count)]
        if not count or kinds != regular or count != settings.get("num_hidden_layers", count):
            raise ValueError(f"layer_types is not supported unless every few layers, from the first on, have {full}.")
        own["global_attn_every_n_layers"] = apart
    return own


_LAYER: Final = r"^(model\.)?layers\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
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
    ),
    of_head={
        "token": (
            (r"^head\.dense\.", r"token.transform."),
            (r"^head\.norm\.", r"token.norm."),
            (r"^classifier\.", r"token.output."),
        ),
        "masked_lm": ((r"^head\.dense\.", r"masked_lm.transform."), (r"^head\.norm\.", r"masked_lm.norm.")),
    },
    fused=((r"\.Wqkv\.", (".query.", ".key.", ".value.")), (r"\.Wi\.", (".ffn_gate.", ".ffn_in."))),
    omitted=(
        (r"(encoder|classification|token|masked_lm)\.(.*\.)?(\w+_)?norm\.bias", "norm_bias"),
        (r"encoder\.layers\.\d+\.(query|key|value|output)\.bias", "attention_bias"),
        (r"encoder\.layers\.\d+\.(ffn_gate|ffn_in|ffn_out)\.bias", "mlp_bias"),
        (r"classification\.pooler\.bias|(token|masked_lm)\.transform\.bias", "classifier_bias"),
        (r"masked_lm\.bias", "decoder_bias"),
    ),
    fixed={"tie_word_embeddings": True, "rope_scaling": None},
    translate=translate,
)
