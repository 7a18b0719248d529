"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"): a causal transformer.

A token attends only to itself and the tokens before it. A norm precedes each attention and feed-forward network, and
another one follows the last layer. Follows `modeling_gpt2.py` of transformers. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.checkpoints import Checkpoints
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, Traits

from . import standard
from .standard import same_as


@dataclass(frozen=True)
class Config(standard.Config):
    """The settings, named as in transformers. The defaults are the released small model.

    The other released shapes are medium (H 1024, L 24, A 16), large (1280, 36, 20) and xl (1600, 48, 25).
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: Count = 12
    n_head: Count = 12
    n_inner: int | None = None  # 4 H if it is None
    activation_function: Activation = "gelu_new"
    resid_pdrop: float = 0.1
    layer_norm_epsilon: float = 1e-5

    max_position_embeddings = same_as("n_positions")
    hidden_size = same_as("n_embd")
    num_hidden_layers = same_as("n_layer")
    num_attention_heads = same_as("n_head")
    hidden_dropout_prob = same_as("resid_pdrop")

    @property
    def intermediate_size(self) -> int:
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    def traits(self) -> Traits:
        return replace(
            self.plain(self.activation_function, self.layer_norm_epsilon),
            embedding=EmbeddingTraits(norm="none", token_types=False),
            norm_position="before",
            causal=True,
            classifies_last=True,
            prediction_act=self.activation_function,
        )


if not describing(__name__):

    class Encoder(standard.Encoder):
        LAYER = standard.LayerInOrder


_LAYER: Final = r"^(transformer\.)?h\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
        (r"^(transformer\.)?wte\.", r"encoder.embeddings.word."),
        (r"^(transformer\.)?wpe\.", r"encoder.embeddings.position."),
        (r"^(transformer\.)?ln_f\.", r"encoder.norm."),
        (_LAYER + r"ln_1\.", r"encoder.layers.\2.attention_norm."),
        (_LAYER + r"attn\.(query|key|value)\.", r"encoder.layers.\2.\3."),
        (_LAYER + r"attn\.c_proj\.", r"encoder.layers.\2.output."),
        (_LAYER + r"ln_2\.", r"encoder.layers.\2.ffn_norm."),
        (_LAYER + r"mlp\.c_fc\.", r"encoder.layers.\2.ffn_in."),
        (_LAYER + r"mlp\.c_proj\.", r"encoder.layers.\2.ffn_out."),
        (r"^score\.", r"classification.output."),
        (r"^qa_outputs\.", r"token.output."),
        (r"^lm_head\.weight$", r"causal_lm.decoder.weight"),
    ),
    fused=((r"\.c_attn\.", (".query.", ".key.", ".value.")),),
    transposed=(r"encoder\.layers\.\d+\.(query|key|value|output|ffn_in|ffn_out)\.weight",),
    omitted=((r"classification\.output\.bias|causal_lm\.bias", None),),
    unread=(r"^(transformer\.)?h\.\d+\.attn\.(masked_)?bias$",),  # the masks of attention in older checkpoints
    fixed={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
)
