"""GTE (Zhang et al. 2024, arXiv:2407.19669): BERT for long texts in many languages.

Query and key are turned by their positions instead of a table of positions. The feed-forward network has a gate
(GeGLU). Follows `modeling_gte.py` of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import (
    LABELS_OF_TOKENS,
    LAYERS,
    Checkpoints,
    embedding_names,
    norm_names,
    translate_rotary,
)
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Rows, Theta
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard
from .standard import GATED


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers. The defaults are the released gte-multilingual-base."""

    vocab_size: int = 250048
    hidden_act: Activation = "gelu"
    rope_theta: Theta = 160000.0
    type_vocab_size: Rows = 1
    layer_norm_epsilon: float = 1e-12

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_epsilon),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False, token_types=self.type_vocab_size > 1),
            attention=self.rotated,
            pooler="tanh",
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names(r"\w+", "word|token_type"),
        (r"\.attention\.o_proj\.", r".self_attn.o_proj."),
        *LAYERS,
        *norm_names(attention_norm="(?:post_attention_layernorm|attn_ln)", ffn_norm="(?:post_mlp_layernorm|mlp_ln)"),
        (r"^(\w+\.)?pooler\.dense\.", r"classification.pooler."),
        (r"^classifier\.", r"classification.output."),
        (r"^lm_head\.dense\.", r"masked_lm.transform."),
        (r"^lm_head\.(layer_norm|norm)\.", r"masked_lm.norm."),
        (r"^lm_head\.decoder\.", r"masked_lm.decoder."),
    ),
    of_head=LABELS_OF_TOKENS,
    fused=(
        (r"\.attention\.qkv_proj\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),
        (r"\.mlp\.up_gate_proj\.", (".mlp.up_proj.", ".mlp.gate_proj.")),
    ),
    omitted=((r"encoder\.layers\.\d+\.(ffn_gate|ffn_in)\.bias", None),),
    fixed={"rope_scaling": None},
    translate=translate_rotary,
)
