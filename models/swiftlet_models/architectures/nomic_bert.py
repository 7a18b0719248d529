"""Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613): BERT for long texts.

Query and key are turned by their positions instead of a table of positions. The feed-forward network has a gate
(SwiGLU). Layers have no biases. Follows `modeling_nomic_bert.py` of transformers, and reads the names of the original
checkpoints, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftlet_models.architectures.checkpoints import (
    LABELS_OF_TOKENS,
    LAYERS,
    Checkpoints,
    embedding_names,
    masked_lm_names,
    norm_names,
    translate_rotary,
)
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Positions, Theta
from swiftlet_models.architectures.traits import EmbeddingTraits, Traits

from . import standard
from .standard import GATED


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers. The defaults are the released nomic-embed-text-v1.5."""

    max_position_embeddings: Positions = 8192
    rope_theta: Theta = 1000.0
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_epsilon),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False),
            attention=self.rotated,
            pooler="tanh",
            prediction_act=self.hidden_act,
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

# The settings of original checkpoints that have other names, and those with the only values that are implemented here.
_ORIGINAL: Final = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "layer_norm_epsilon": "layer_norm_eps",
}
_ORIGINAL_FIXED: Final[Mapping[str, Any]] = {
    "activation_function": "swiglu",
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None,
    "parallel_block": False,
    "use_rms_norm": False,
    "num_experts": 0,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, an original one or one of transformers, under the names of `Config`.

    Raises:
        ValueError: the angles or the layers have a form that is not implemented.
    """
    own = dict(settings)
    if "n_embd" in settings:
        for name, only in _ORIGINAL_FIXED.items():
            if settings.get(name, only) != only:
                raise ValueError(f"{name} {settings[name]!r} is not supported, only {only!r}.")
        own |= {name: settings[original] for original, name in _ORIGINAL.items() if original in settings}
        own["hidden_act"] = "silu"
    return translate_rotary(own)


CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names(r"\w+", "word|token_type"),
        (r"^(\w+\.)?emb_ln\.", r"encoder.embeddings.norm."),
        (r"\.attn\.out_proj\.", r".self_attn.o_proj."),
        (r"\.mlp\.fc11\.", r".mlp.up_proj."),
        (r"\.mlp\.fc12\.", r".mlp.gate_proj."),
        (r"\.mlp\.fc2\.", r".mlp.down_proj."),
        *LAYERS,
        *norm_names(attention_norm="(?:post_attention_layernorm|norm1)", ffn_norm="(?:post_mlp_layernorm|norm2)"),
        (r"^(\w+\.)?pooler\.dense\.", r"classification.pooler."),
        (r"^classifier\.", r"classification.output."),
        *masked_lm_names(r"cls\.predictions\.transform", r"cls\.predictions", "layer_norm"),
    ),
    of_head=LABELS_OF_TOKENS,
    fused=((r"\.attn\.Wqkv\.", tuple(f".self_attn.{part}_proj." for part in "qkv")),),
    omitted=((r"encoder\.layers\.\d+\.(query|key|value|output|ffn_gate|ffn_in|ffn_out)\.bias", None),),
    fixed={"rope_scaling": None},
    implied={"max_position_embeddings": 2048},
    translate=translate,
)
