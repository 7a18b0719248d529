"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): half of BERT's layers, without token types.

The classification head has a ReLU where BERT's pooler has a tanh. Positions may be sinusoidal: a checkpoint stores them
like learned ones. Follows `modeling_distilbert.py` of transformers. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import OUTPUTS, Checkpoints, embedding_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard
from .standard import same_as

EPSILON: Final = 1e-12  # of every LayerNorm; the reference has no setting for it


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released base."""

    vocab_size: int = 30522
    dim: int = 768
    n_layers: Count = 6
    n_heads: Count = 12
    hidden_dim: int = 3072
    activation: Activation = "gelu"
    dropout: float = 0.1
    max_position_embeddings: int = 512

    hidden_size = same_as("dim")
    num_hidden_layers = same_as("n_layers")
    num_attention_heads = same_as("n_heads")
    intermediate_size = same_as("hidden_dim")
    hidden_dropout_prob = same_as("dropout")

    def traits(self) -> Traits:
        return replace(
            self.plain(self.activation, EPSILON),
            embedding=EmbeddingTraits(token_types=False),
            pooler="relu",
            prediction_act=self.activation,
        )


if not describing(__name__):
    from .standard import Encoder as Encoder

_LAYER: Final = r"^(distilbert\.)?transformer\.layer\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names("distilbert", "word|position"),
        (_LAYER + r"attention\.q_lin\.", r"encoder.layers.\2.query."),
        (_LAYER + r"attention\.k_lin\.", r"encoder.layers.\2.key."),
        (_LAYER + r"attention\.v_lin\.", r"encoder.layers.\2.value."),
        (_LAYER + r"attention\.out_lin\.", r"encoder.layers.\2.output."),
        (_LAYER + r"sa_layer_norm\.", r"encoder.layers.\2.attention_norm."),
        (_LAYER + r"ffn\.lin1\.", r"encoder.layers.\2.ffn_in."),
        (_LAYER + r"ffn\.lin2\.", r"encoder.layers.\2.ffn_out."),
        (_LAYER + r"output_layer_norm\.", r"encoder.layers.\2.ffn_norm."),
        (r"^pre_classifier\.", r"classification.pooler."),
        *OUTPUTS,
        (r"^vocab_transform\.", r"masked_lm.transform."),
        (r"^vocab_layer_norm\.", r"masked_lm.norm."),
        (r"^vocab_projector\.bias$", r"masked_lm.bias"),
        (r"^vocab_projector\.weight$", r"masked_lm.decoder.weight"),
    ),
    fixed={"tie_word_embeddings": True},
)
