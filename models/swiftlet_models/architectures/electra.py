"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): BERT's layers, pre-trained to detect replaced tokens.

The released discriminators are encoders for all tasks; a generator fills masks. The embedding is factorised like
ALBERT's where its width differs from the layers' (small models, section 3.2). The classification head has a GELU
where BERT's pooler has a tanh. Follows `modeling_electra.py` of transformers. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import Checkpoints, encoder_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import bert, standard


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released small discriminator.

    The other released discriminators are base (E 768, H 768, A 12, I 3072) and large (E 1024, H 1024, L 24, A 16,
    I 4096). Each has a generator with narrower layers.
    """

    vocab_size: int = 30522
    embedding_size: int = 128
    hidden_size: int = 256
    num_hidden_layers: Count = 12
    num_attention_heads: Count = 4
    intermediate_size: int = 1024
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_eps),
            embedding=EmbeddingTraits(projection="none" if self.embedding_size == self.hidden_size else "sum"),
            pooler="gelu",
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

CHECKPOINTS: Final = Checkpoints(
    (
        *encoder_names("electra"),
        (r"^(electra\.)?embeddings_project\.", r"encoder.embeddings.projection."),
        (r"^classifier\.dense\.", r"classification.pooler."),
        (r"^classifier\.(out_proj\.)?", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        (r"^generator_predictions\.dense\.", r"masked_lm.transform."),
        (r"^generator_predictions\.LayerNorm\.", r"masked_lm.norm."),
        (r"^generator_lm_head\.bias$", r"masked_lm.bias"),
        (r"^generator_lm_head\.weight$", r"masked_lm.decoder.weight"),
        (r"^discriminator_predictions\.", r"pretraining.discriminator."),
    ),
    fixed=bert.FIXED,
)
