"""Jina Embeddings v3 (Sturua et al. 2024, arXiv:2409.10173): XLM-RoBERTa for long texts.

Query and key are turned by their positions instead of a table of positions. Follows `modeling_jina_embeddings_v3.py` of
transformers. The adapter of a task is merged as any other (`swiftlet_models/adapters.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import Activation, Count, EmbeddingTraits, Traits

from . import standard
from .gte import OF_HEAD as OF_HEAD
from .standard import FIXED as FIXED
from .standard import IMPLIED as IMPLIED
from .standard import TRANSPOSED as TRANSPOSED
from .standard import UNREAD as UNREAD
from .standard import translate as translate


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released model."""

    vocab_size: int = 250002
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 16
    hidden_act: Activation = "gelu"
    max_position_embeddings: standard.Positions = 8194
    rope_theta: standard.Theta = 20000.0
    type_vocab_size: int = 1
    layer_norm_epsilon: float = 1e-5

    def traits(self) -> Traits:
        return Traits(
            layers=self.layers,
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_epsilon,
            feed_forward=(standard.PLAIN,),
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
    (r"^(\w+\.)?(embeddings\.LayerNorm|emb_ln)\.", r"encoder.embeddings.norm."),
    (r"\.mixer\.out_proj\.", r".self_attn.o_proj."),
    (r"\.mlp\.fc1\.", r".mlp.up_proj."),
    (r"\.mlp\.fc2\.", r".mlp.down_proj."),
    *standard.LAYERS,
    *standard.norms(attention_norm="(?:post_attention_layernorm|norm1)", ffn_norm="(?:post_mlp_layernorm|norm2)"),
    (r"^(\w+\.)?pooler\.", r"pretraining.pooler."),
    (r"^classifier\.dense\.", r"classification.pooler."),
    (r"^classifier\.out_proj\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^lm_head\.dense\.", r"masked_lm.transform."),
    (r"^lm_head\.layer_norm\.", r"masked_lm.norm."),
    (r"^lm_head\.decoder\.", r"masked_lm.decoder."),
    (r"^lm_head\.bias$", r"masked_lm.bias"),
)
# Tensors that hold several parameters side by side, as (pattern, the names of its parts).
FUSED: Final = ((r"\.mixer\.Wqkv\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),)
