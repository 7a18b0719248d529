"""GTE (Zhang et al. 2024, arXiv:2407.19669): BERT for long texts in many languages.

Query and key are turned by their positions instead of a table of positions. The feed-forward network has a gate
(GeGLU). Follows `modeling_gte.py` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import SIZE, Activation, EmbeddingTraits, Range, Traits

from . import standard
from .standard import FIXED as FIXED
from .standard import IMPLIED as IMPLIED
from .standard import TRANSPOSED as TRANSPOSED
from .standard import UNREAD as UNREAD
from .standard import translate as translate


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released gte-multilingual-base."""

    vocab_size: int = 250048
    hidden_act: Activation = "gelu"
    rope_theta: standard.Theta = 160000.0
    type_vocab_size: Annotated[int, Range(0, SIZE.most)] = 1
    layer_norm_epsilon: float = 1e-12

    def traits(self) -> Traits:
        return Traits(
            layers=self.layers,
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_epsilon,
            feed_forward=(standard.GATED,),
            embedding=EmbeddingTraits(positions=False, token_types=self.type_vocab_size > 1),
            attention=self.rotated,
        )

    @property
    def pooler(self) -> Activation | None:
        return "tanh"


if not describing(__name__):
    from .standard import Encoder as Encoder

NAMES: Final = (
    (r"^(\w+\.)?embeddings\.word_embeddings\.", r"encoder.embeddings.word."),
    (r"^(\w+\.)?embeddings\.token_type_embeddings\.", r"encoder.embeddings.token_type."),
    (r"^(\w+\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
    (r"\.attention\.o_proj\.", r".self_attn.o_proj."),
    *standard.LAYERS,
    *standard.norms(attention_norm="(?:post_attention_layernorm|attn_ln)", ffn_norm="(?:post_mlp_layernorm|mlp_ln)"),
    (r"^(\w+\.)?pooler\.dense\.", r"classification.pooler."),
    (r"^classifier\.", r"classification.output."),
    (r"^lm_head\.dense\.", r"masked_lm.transform."),
    (r"^lm_head\.(layer_norm|norm)\.", r"masked_lm.norm."),
    (r"^lm_head\.decoder\.", r"masked_lm.decoder."),
)
OF_HEAD: Final = {"token": ((r"^classifier\.", r"token.output."),)}
# Tensors that hold several parameters side by side, as (pattern, the names of its parts).
FUSED: Final = (
    (r"\.attention\.qkv_proj\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),
    (r"\.mlp\.up_gate_proj\.", (".mlp.up_proj.", ".mlp.gate_proj.")),
)
# Patterns of parameters that a checkpoint leaves out because they are zero, each with the setting that adds them.
OMITTED: Final = ((r"encoder\.layers\.\d+\.(ffn_gate|ffn_in)\.bias", None),)
