"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500): an encoder with the layers of Llama.

RMSNorms precede, query and key are turned by their positions, and the feed-forward network has a gate (SwiGLU). Follows
`modeling_eurobert.py` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from swiftlet_models.architectures.checkpoints import (
    LABELS_OF_TOKENS,
    LAYERS,
    Checkpoints,
    norm_names,
    translate_rotary,
)
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Theta
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard
from .standard import GATED

_POOLINGS: Final[Mapping[str, Literal["cls", "mean", "late"]]] = {"bos": "cls", "mean": "mean", "late": "late"}


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings, named as in transformers. The defaults are the released 210m.

    The other released shapes are 610m (H 1152, I 4096, L 26, A 18, 6 heads of keys) and 2.1B (H 2304, I 6144, L 32, A
    18, 6).
    """

    vocab_size: int = 128256
    hidden_act: Activation = "silu"
    rope_theta: Theta = 250000.0
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    classifier_pooling: Literal["bos", "mean", "late"] = "late"

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.rms_norm_eps),
            feed_forward=(GATED,),
            embedding=EmbeddingTraits(positions=False, norm="none", token_types=False),
            norm="rms_norm",
            norm_position="before",
            key_heads=self.num_key_value_heads,
            attention=self.rotated,
            classifier_pooling=_POOLINGS[self.classifier_pooling],
            pooler="gelu",
            prediction_map=False,
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

CHECKPOINTS: Final = Checkpoints(
    (
        (r"^(model\.)?embed_tokens\.", r"encoder.embeddings.word."),
        (r"^(model\.)?norm\.", r"encoder.norm."),
        *LAYERS,
        *norm_names(attention_norm="input_layernorm", ffn_norm="post_attention_layernorm"),
        (r"^dense\.", r"classification.pooler."),
        (r"^classifier\.", r"classification.output."),
        (r"^lm_head\.bias$", r"masked_lm.bias"),
        (r"^lm_head\.weight$", r"masked_lm.decoder.weight"),
    ),
    of_head=LABELS_OF_TOKENS,
    omitted=(
        (r"encoder\.layers\.\d+\.(query|key|value|output)\.bias", "attention_bias"),
        (r"encoder\.layers\.\d+\.(ffn_gate|ffn_in|ffn_out)\.bias|masked_lm\.bias", "mlp_bias"),
    ),
    fixed={"rope_scaling": None, "tie_word_embeddings": True, "pretraining_tp": 1},
    implied={"rope_theta": 10000.0},
    translate=translate_rotary,
)
