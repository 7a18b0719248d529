"""RoBERTa (Liu et al. 2019, arXiv:1907.11692): BERT's network, trained longer, without a sentence objective.

The network differs from BERT's in its embeddings: there is one token type, and the rows of the position table that
belong to tokens follow the row of the padding token. Follows `modeling_roberta.py` of transformers. Shape letters: see
`layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import LM_HEAD, Checkpoints, encoder_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Id
from swiftlet_models.architectures.traits import EmbeddingTraits, Traits

from . import bert


@dataclass(frozen=True)
class Config(bert.Config):
    """The settings, named as in transformers. The defaults are the released base.

    The other released shapes are large (H 1024, L 24, A 16, I 4096) and distilroberta-base (L 6).
    """

    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: Id = 1

    def traits(self) -> Traits:
        return replace(
            self.plain(self.hidden_act, self.layer_norm_eps),
            embedding=EmbeddingTraits(position_offset=self.pad_token_id + 1, token_types=self.type_vocab_size > 1),
            pooler="tanh",
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

CHECKPOINTS: Final = Checkpoints(
    (
        *encoder_names("roberta"),
        (r"^(roberta\.)?pooler\.dense\.", r"pretraining.pooler."),
        (r"^classifier\.dense\.", r"classification.pooler."),
        (r"^classifier\.(out_proj\.)?", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        *LM_HEAD,
    ),
    fixed=bert.FIXED,
    implied={"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12},
)
