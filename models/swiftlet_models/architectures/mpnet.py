"""MPNet (Song et al. 2020, arXiv:2004.09297): BERT without token types and with a relative position bias.

Follows `modeling_mpnet.py` of transformers. All layers share the bias. Its buckets are T5's (Raffel et al. 2019,
arXiv:1910.10683, section 2.1), in both directions. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import LM_HEAD, Checkpoints, embedding_names, feed_forward_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, PositionBias, Traits

from . import standard

OFFSET: Final = 2  # the first rows of the position table belong to padding
# The first distances of the buckets 1 to 15 of a direction: every distance up to 8, and above in steps of a factor
# 2^(1/2).
BUCKETS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released base."""

    vocab_size: int = 30527
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_eps),
            embedding=EmbeddingTraits(position_offset=OFFSET, token_types=False),
            position_bias=PositionBias(BUCKETS),
            pooler="tanh",
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

_LAYER: Final = r"^(mpnet\.)?encoder\.layer\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names("mpnet", "word|position"),
        (r"^(mpnet\.)?encoder\.relative_attention_bias\.", r"encoder.position_bias."),
        *(
            (_LAYER + rf"attention\.attn\.{name[0]}\.", rf"encoder.layers.\2.{name}.")
            for name in ("query", "key", "value", "output")
        ),
        (_LAYER + r"attention\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
        *feed_forward_names("mpnet"),
        (r"^classifier\.dense\.", r"classification.pooler."),
        (r"^classifier\.out_proj\.", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        *LM_HEAD,
    ),
    fixed={"relative_attention_num_buckets": 32, "tie_word_embeddings": True},  # the code has 32 with any setting
    unread=(r"^(mpnet\.)?pooler\.",),
)
