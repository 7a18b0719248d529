"""Qwen3 (Yang et al. 2025, arXiv:2505.09388) as a model of vectors and of classes: a causal transformer.

RMSNorms precede, and follow each head's query and key. Several heads of the query share keys and values. The
feed-forward network has a gate (SwiGLU). Follows `modeling_qwen3.py` of transformers. Qwen3-Embedding is this network,
with the last token's row as the vector (Zhang et al. 2025, arXiv:2506.05176).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftlet_models.architectures.checkpoints import LAYERS, Checkpoints, norm_names, translate_rotary
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions, Theta
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard
from .standard import GATED


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers 4. The defaults are the released 0.6B."""

    vocab_size: int = 151936
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: Count = 28
    num_attention_heads: Count = 16
    num_key_value_heads: Count | None = 8
    head_dim: int | None = 128
    hidden_act: Activation = "silu"
    max_position_embeddings: Positions = 32768
    rope_theta: Theta = 1000000.0
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    is_causal: bool = True  # false: tokens attend in both directions

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.rms_norm_eps),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False, norm="none", token_types=False),
            norm="rms_norm",
            norm_position="before",
            key_heads=self.num_key_value_heads,
            head_norm=True,
            causal=self.is_causal,
            classifies_last=True,
            attention=self.rotated,
        )


if not describing(__name__):
    from .standard import Encoder as Encoder


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint with those of transformers 5 under the names of version 4.

    Raises:
        ValueError: the layers or the angles have a form that is not implemented.
    """
    kinds = settings.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ValueError("layer_types is not supported, only layers with full_attention are.")
    return translate_rotary(settings)


CHECKPOINTS: Final = Checkpoints(
    (
        (r"^(\w+\.)?embed_tokens\.", r"encoder.embeddings.word."),
        (r"^(\w+\.)?norm\.", r"encoder.norm."),
        *LAYERS,
        *norm_names(attention_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        (r"^score\.", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        (r"^lm_head\.weight$", r"causal_lm.decoder.weight"),
    ),
    omitted=(
        (r"encoder\.layers\.\d+\.(query|key|value|output)\.bias", "attention_bias"),
        (r"encoder\.layers\.\d+\.(ffn_gate|ffn_in|ffn_out)\.bias|classification\.output\.bias|causal_lm\.bias", None),
    ),
    fixed={"rope_scaling": None, "use_sliding_window": False, "tie_word_embeddings": True},
    implied={
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rope_theta": 10000.0,
    },
    translate=translate,
)
