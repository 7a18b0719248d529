"""T5 (Raffel et al. 2020, arXiv:1910.10683): its encoder alone, as in sentence-t5.

RMSNorms precede. The distance from a query to a key adds a number to each head's score, which is not scaled. The
feed-forward network may have a gate (T5 1.1). Follows `modeling_t5.py` of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from swiftlet_models.architectures.checkpoints import Checkpoints
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Positions, Range
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, PositionBias, Traits

from . import standard
from .standard import GATED, PLAIN


@dataclass(frozen=True)
class Config(standard.RotaryConfig):
    """The settings. The defaults are the released base.

    The other released shapes are small (H 512, I 2048, L 6, A 8) and large (H 1024, I 4096, L 24, A 16).
    """

    vocab_size: int = 32128
    head_dim: int | None = 64
    hidden_act: Activation = "relu"
    max_position_embeddings: Positions = 512
    layer_norm_epsilon: float = 1e-6
    is_gated: bool = False
    relative_attention_num_buckets: Annotated[int, Range(4, 1 << 12)] = 32
    relative_attention_max_distance: Annotated[int, Range(2, 1 << 16)] = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relative_attention_num_buckets % 4:
            raise ValueError("relative_attention_num_buckets is no multiple of 4.")
        if self.relative_attention_max_distance <= self.relative_attention_num_buckets // 4:
            raise ValueError("relative_attention_max_distance is shorter than the distances that have own buckets.")

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_epsilon),
            feed_forward=(GATED if self.is_gated else PLAIN,),
            embedding=EmbeddingTraits(positions=False, norm="none", token_types=False),
            norm="rms_norm",
            norm_position="before",
            score_scale=1,
            position_bias=PositionBias(self.boundaries()),
        )

    def boundaries(self) -> tuple[int, ...]:
        """Returns the first distances of the buckets of a direction: half of them are single distances."""
        buckets = self.relative_attention_num_buckets // 2
        single = buckets // 2
        growth = math.log(self.relative_attention_max_distance / single) / (buckets - single)
        far = (single * math.exp(growth * step) for step in range(1, buckets - single))
        return (*range(1, single + 1), *(math.ceil(round(first, 6)) for first in far))


if not describing(__name__):
    from .standard import Encoder as Encoder

_NAMES: Final = {
    "d_model": "hidden_size",
    "d_kv": "head_dim",
    "d_ff": "intermediate_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint under the names of `Config`.

    Raises:
        ValueError: the feed-forward network has a form that is not implemented.
    """
    own = {**settings, **{name: settings[theirs] for theirs, name in _NAMES.items() if theirs in settings}}
    kind, _, gated = str(settings.get("feed_forward_proj", "relu")).partition("-")
    if gated and kind != "gated":
        raise ValueError("feed_forward_proj has an invalid value.")
    activation = gated or kind
    return own | {"is_gated": bool(gated), "hidden_act": "gelu_new" if gated == "gelu" else activation}


_LAYER: Final = r"^(encoder\.)?block\.(\d+)\."
_TO: Final = r"encoder.layers.\2."
_INNER: Final = r"layer\.1\.DenseReluDense\."
CHECKPOINTS: Final = Checkpoints(
    (
        (r"^(shared|(encoder\.)?embed_tokens)\.", r"encoder.embeddings.word."),
        (r"^(encoder\.)?final_layer_norm\.", r"encoder.norm."),
        (_LAYER + r"layer\.0\.SelfAttention\.relative_attention_bias\.", r"encoder.position_bias."),
        *(
            (_LAYER + rf"layer\.0\.SelfAttention\.{name[0]}\.", rf"{_TO}{name}.")
            for name in ("query", "key", "value", "output")
        ),
        (_LAYER + r"layer\.0\.layer_norm\.", rf"{_TO}attention_norm."),
        (_LAYER + rf"{_INNER}wi_0\.", rf"{_TO}ffn_gate."),
        (_LAYER + rf"{_INNER}(wi|wi_1)\.", rf"{_TO}ffn_in."),
        (_LAYER + rf"{_INNER}wo\.", rf"{_TO}ffn_out."),
        (_LAYER + r"layer\.1\.layer_norm\.", rf"{_TO}ffn_norm."),
    ),
    omitted=((r"encoder\.layers\.\d+\.(query|key|value|output|ffn_gate|ffn_in|ffn_out)\.bias", None),),
    unread=(r"^decoder\.", r"^lm_head\."),
    fixed={"rope_scaling": None},
    implied={
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
    },
    translate=translate,
)
