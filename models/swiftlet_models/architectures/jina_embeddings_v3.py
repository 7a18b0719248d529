"""Jina Embeddings v3 (Sturua et al. 2024, arXiv:2409.10173): XLM-RoBERTa for long texts.

Query and key are turned by their positions instead of a table of positions. Follows `modeling_jina_embeddings_v3.py` of
transformers. The adapter of a task is merged as any other (`swiftlet_models/adapters.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import (
    LABELS_OF_TOKENS,
    LAYERS,
    LM_HEAD,
    Checkpoints,
    embedding_names,
    norm_names,
    translate_rotary,
)
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions, Theta
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers. The defaults are the released model."""

    vocab_size: int = 250002
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 16
    hidden_act: Activation = "gelu"
    max_position_embeddings: Positions = 8194
    rope_theta: Theta = 20000.0
    type_vocab_size: int = 1
    layer_norm_epsilon: float = 1e-5

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_epsilon),
            embedding=EmbeddingTraits(positions=False, token_types=self.type_vocab_size > 1),
            attention=self.rotated,
            pooler="tanh",
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names(r"\w+", "word|token_type"),
        (r"^(\w+\.)?emb_ln\.", r"encoder.embeddings.norm."),
        (r"\.mixer\.out_proj\.", r".self_attn.o_proj."),
        (r"\.mlp\.fc1\.", r".mlp.up_proj."),
        (r"\.mlp\.fc2\.", r".mlp.down_proj."),
        *LAYERS,
        *norm_names(attention_norm="(?:post_attention_layernorm|norm1)", ffn_norm="(?:post_mlp_layernorm|norm2)"),
        (r"^(\w+\.)?pooler\.", r"pretraining.pooler."),
        (r"^classifier\.dense\.", r"classification.pooler."),
        (r"^classifier\.out_proj\.", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        *LM_HEAD,
    ),
    of_head=LABELS_OF_TOKENS,
    fused=((r"\.mixer\.Wqkv\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),),
    fixed={"rope_scaling": None},
    translate=translate_rotary,
)
