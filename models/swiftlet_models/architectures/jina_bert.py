"""JinaBERT (Günther et al. 2023, arXiv:2310.19923): BERT for long texts, of jina-embeddings-v2 and jina-reranker-v1.

The distance from a query to a key lowers its score instead of a table of positions (ALiBi). The feed-forward network
has a gate (GeGLU or ReGLU), or is BERT's. Checkpoints say `"model_type": "bert"`, and have the code of the network,
which is not run. It is not part of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from swiftlet_models.architectures.checkpoints import (
    LABELS_OF_TOKENS,
    OUTPUTS,
    PREDICTIONS,
    Checkpoints,
    encoder_names,
)
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Positions
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, LinearBias, Traits

from . import standard
from .standard import GATED, PLAIN


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in the checkpoints. The defaults are the released base.

    Another released shape is small (H 512, L 4, A 8, I 2048).
    """

    vocab_size: int = 30528
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: Positions = 8192
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    feed_forward_type: Literal["original", "geglu", "reglu"] = "geglu"
    wide_norm: bool = False
    second_norm: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the feed-forward network has no gate."""
        return self.feed_forward_type == "original"

    def traits(self) -> Traits:
        gates: Mapping[str, Activation] = {"geglu": "gelu", "reglu": "relu"}
        return replace(
            self.plain(gates.get(self.feed_forward_type, self.hidden_act), self.layer_norm_eps),
            feed_forward=(PLAIN if self.is_plain else GATED,),
            embedding=EmbeddingTraits(positions=False),
            position_bias=LinearBias(),
            wide_norm=self.wide_norm,
            second_norm=self.second_norm,
            pooler="tanh",
            prediction_act=self.hidden_act,
        )


if not describing(__name__):
    from .standard import Encoder as Encoder


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint, and the form of the network, which the name of its code tells.

    In `jina-bert-v2-qk-devlin-norm-1e-2` (of the German, Spanish and Chinese models) norms follow query and key. In
    `jina-bert-v2-qk-post-norm` (of the model for code) a second norm follows the attention, too.
    """
    code = f"{settings.get('auto_map')} {settings.get('_name_or_path')}"
    return {**settings, "wide_norm": "jina-bert-v2-qk-" in code, "second_norm": "jina-bert-v2-qk-post-norm" in code}


_LAYER: Final = r"^(bert\.)?encoder\.layer\.(\d+)\."
_MLP: Final = _LAYER + r"mlp\."
CHECKPOINTS: Final = Checkpoints(
    (
        *encoder_names("bert"),
        (_MLP + r"(?:wo|down_layer)\.", r"encoder.layers.\2.ffn_out."),
        (_LAYER + r"(?:mlp\.layernorm|layer_norm_2)\.", r"encoder.layers.\2.ffn_norm."),
        (_LAYER + r"layer_norm_1\.", r"encoder.layers.\2.second_norm."),
        (_MLP + r"(ffn_gate|ffn_in)\.", r"encoder.layers.\2.\3."),
        (r"^(encoder\.layers\.\d+)\.layer_norm_q\.", r"\1.query_norm."),
        (r"^(encoder\.layers\.\d+)\.layer_norm_k\.", r"\1.key_norm."),
        (r"^(bert\.)?pooler\.dense\.", r"classification.pooler."),
        *OUTPUTS,
        *PREDICTIONS,
        (r"^cls\.seq_relationship\.", r"pretraining.sentence."),
    ),
    of_head=LABELS_OF_TOKENS,
    fused=(
        (r"\.mlp\.gated_layers\.", (".mlp.ffn_gate.", ".mlp.ffn_in.")),
        (r"\.mlp\.up_gated_layer\.", (".mlp.ffn_in.", ".mlp.ffn_gate.")),
    ),
    omitted=((r"encoder\.layers\.\d+\.(ffn_gate|ffn_in)\.bias", "is_plain"),),
    fixed={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
    implied={"max_position_embeddings": 512, "vocab_size": 30522, "feed_forward_type": "original"},
    translate=translate,
    said_by={"model_type": "bert", "position_embedding_type": "alibi"},
)
