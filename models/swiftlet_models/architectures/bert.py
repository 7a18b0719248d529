"""BERT (Devlin et al. 2018, arXiv:1810.04805): a transformer encoder with a norm after each residual addition.

Follows `modeling_bert.py` of transformers, which follows google-research/bert. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from swiftlet_models.architectures.checkpoints import OUTPUTS, PREDICTIONS, Checkpoints, encoder_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Activation, Traits

from . import standard


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released base.

    The other released shape is large (H 1024, L 24, A 16, I 4096).
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    def traits(self) -> Traits:
        return replace(self.plain(self.hidden_act, self.layer_norm_eps), pooler="tanh", prediction_act=self.hidden_act)


if not describing(__name__):
    from .standard import Encoder as Encoder

FIXED: Final[Mapping[str, Any]] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
CHECKPOINTS: Final = Checkpoints(
    (
        *encoder_names("bert"),
        (r"^(bert\.)?pooler\.dense\.", r"classification.pooler."),
        *OUTPUTS,
        *PREDICTIONS,
        (r"^cls\.seq_relationship\.", r"pretraining.sentence."),
    ),
    fixed=FIXED,
)
