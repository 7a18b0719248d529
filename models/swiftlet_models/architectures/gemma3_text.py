"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786) as an encoder: EmbeddingGemma (Vera et al. 2025, arXiv:2509.20354).

RMSNorms precede attention and feed-forward networks, follow them before the addition, and follow each head's query and
key. Most layers attend within a window, every few ones to all tokens. Several heads of the query share keys and values.
The feed-forward network has a gate (GeGLU). Follows `modeling_gemma3.py` of transformers, with attention in both
directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from swiftlet_models.architectures.checkpoints import LAYERS, Checkpoints, norm_names, rotation
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions, Range, Theta
from swiftlet_models.architectures.traits import Activation, AttentionTraits, EmbeddingTraits, Traits

from . import standard
from .standard import GATED


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers 4. The defaults are the released EmbeddingGemma."""

    vocab_size: int = 262144
    intermediate_size: int = 1152
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 3
    num_key_value_heads: Count | None = 1
    head_dim: int | None = 256
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Positions = 2048
    rope_theta: Theta = 1000000.0
    rope_local_base_freq: Theta = 10000.0
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    query_pre_attn_scalar: Annotated[float, Range(1, 1 << 24)] = 256
    sliding_window: int = 512
    full_attention_layers: str = "000001" * 4
    """For each layer, 1 if it attends to all tokens, and 0 if only within the window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.full_attention_layers) != self.num_hidden_layers:
            raise ValueError("layer_types does not name each layer.")

    def traits(self) -> Traits:
        to_all = AttentionTraits(theta=self.rope_theta)
        local = AttentionTraits(self.sliding_window, self.rope_local_base_freq)
        return replace(
            self.plain(self.hidden_act, self.rms_norm_eps),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False, norm="none", token_types=False, scale=self.hidden_size**0.5),
            norm="rms_norm",
            norm_position="around",
            norm_offset=1,
            key_heads=self.num_key_value_heads,
            head_norm=True,
            score_scale=self.query_pre_attn_scalar**-0.5,
            attention=tuple(to_all if kind == "1" else local for kind in self.full_attention_layers),
        )


if not describing(__name__):
    from .standard import Encoder as Encoder


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, of transformers 4 or 5, under the names of `Config`.

    Raises:
        ValueError: the layers or the angles have a form that is not implemented.
    """
    own = dict(settings)
    if not settings.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is not true, and generators of text are not supported.")
    own["hidden_act"] = settings.get("hidden_activation", "gelu_pytorch_tanh")
    for kind, name in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq")):
        if angles := rotation(settings, kind):
            own[name] = angles["rope_theta"]
    count = settings.get("num_hidden_layers", 26)
    every = settings.get("sliding_window_pattern", settings.get("_sliding_window_pattern", 6))
    kinds = settings.get("layer_types")
    if kinds is None and type(count) is int and type(every) is int and every > 0:
        kinds = [("sliding" if (i + 1) % every else "full") + "_attention" for i in range(min(count, 1 << 10))]
    known = {"full_attention": "1", "sliding_attention": "0"}
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in known for kind in kinds):
        raise ValueError(f"layer_types is not supported, only a list of {' and '.join(known)} is.")
    own["full_attention_layers"] = "".join(known[kind] for kind in kinds)
    return own


CHECKPOINTS: Final = Checkpoints(
    (
        (r"^(model\.)?embed_tokens\.", r"encoder.embeddings.word."),
        (r"^(model\.)?norm\.", r"encoder.norm."),
        *LAYERS,
        *norm_names(
            attention_norm="input_layernorm",
            output_norm="post_attention_layernorm",
            ffn_norm="pre_feedforward_layernorm",
            ffn_out_norm="post_feedforward_layernorm",
        ),
        (r"^score\.", r"classification.output."),
    ),
    omitted=(
        (r"encoder\.layers\.\d+\.(query|key|value|output)\.bias", "attention_bias"),
        (r"encoder\.layers\.\d+\.(ffn_gate|ffn_in|ffn_out)\.bias|classification\.output\.bias", None),
    ),
    fixed={"rope_scaling": None, "attn_logit_softcapping": None},
    implied={
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "full_attention_layers": ("000001" * 5)[:26],
    },
    translate=translate,
)
