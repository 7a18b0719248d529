"""MobileBERT (Sun et al. 2020, arXiv:2004.02984): layers narrower than the hidden states, between bottlenecks.

The hidden states between layers are H wide. Inside a layer they are C wide ("intra-bottleneck", 128 in the released
models), and several feed-forward networks per layer balance the share of attention (section 3.1, table 1). NoNorm
replaces LayerNorm, and ReLU replaces GELU (section 3.3). The word table is V x E, and a trigram of word embeddings is
projected to the hidden size (section 3.2). IB-BERT, the teacher, is the same network with other settings: LayerNorm,
GELU, one feed-forward network, C larger than H.

Follows `modeling_mobilebert.py` of transformers, including the LayerNorm epsilons that it leaves at torch's default.
One difference: beyond the end of a sequence, the trigram's neighbours are always zero. A row then does not depend on
the padding beside it. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from swiftlet_models.architectures.checkpoints import OUTPUTS, PREDICTIONS, Checkpoints, embedding_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import Count, Settings, check_heads
from swiftlet_models.architectures.traits import (
    Activation,
    BottleneckTraits,
    EmbeddingTraits,
    FeedForwardTraits,
    Traits,
)

TORCH_EPS: Final = 1e-5  # the reference passes no epsilon to some LayerNorms


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are google/mobilebert-uncased.

    Its classifier has no activation, unlike the default of transformers' class. MobileBERT-tiny has
    `num_feedforward_networks` 2 and `use_bottleneck_attention`.
    """

    vocab_size: int = 30522
    embedding_size: int = 128
    hidden_size: int = 512
    intra_bottleneck_size: int = 128
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 4
    intermediate_size: int = 512
    num_feedforward_networks: Count = 4
    hidden_act: Activation = "relu"
    normalization_type: Literal["layer_norm", "no_norm"] = "no_norm"
    trigram_input: bool = True
    use_bottleneck: bool = True
    use_bottleneck_attention: bool = False
    key_query_shared_bottleneck: bool = True
    classifier_activation: bool = False
    hidden_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.bottlenecked_attention or self.shared_key_query) and self.inner_size != self.hidden_size:
            raise ValueError("without a bottleneck before key and query, intra_bottleneck_size must equal hidden_size.")
        check_heads(self.inner_size, self.num_attention_heads)

    @property
    def inner_size(self) -> int:
        """The width inside a layer, C."""
        return self.intra_bottleneck_size if self.use_bottleneck else self.hidden_size

    @property
    def prediction_size(self) -> int:
        return self.hidden_size

    @property
    def bottlenecked_attention(self) -> bool:
        """Whether query, key and value all read the residual's bottleneck (MobileBERT-tiny)."""
        return self.use_bottleneck and self.use_bottleneck_attention

    @property
    def shared_key_query(self) -> bool:
        """Whether key and query share a bottleneck of their own, and value reads the hidden states (MobileBERT)."""
        return self.use_bottleneck and self.key_query_shared_bottleneck and not self.use_bottleneck_attention

    @property
    def projected_words(self) -> bool:
        """Whether the words are projected. The reference always has a projection, and skips it if it is not needed."""
        return self.trigram_input or self.embedding_size != self.hidden_size

    def traits(self) -> Traits:
        bottleneck = None
        if self.use_bottleneck:
            query_key = "enter_attention" if self.shared_key_query else None
            bottleneck = BottleneckTraits(residual="enter", query_key=query_key, value=None)
        if self.bottlenecked_attention:
            bottleneck = BottleneckTraits(residual="enter", query_key="enter", value="enter")
        norm = self.normalization_type
        names = [*(f"ffns.{i}" for i in range(self.num_feedforward_networks - 1)), "last_ffn"]
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_eps,
            feed_forward=tuple(FeedForwardTraits(f"{n}.dense_in", f"{n}.dense_out", f"{n}.norm") for n in names),
            embedding=EmbeddingTraits(
                norm=norm,
                projection="words" if self.projected_words else "none",
                window=3 if self.trigram_input else 1,
            ),
            bottleneck=bottleneck,
            norm=norm,
            epsilons={"embeddings.norm": TORCH_EPS, "last_ffn.norm": TORCH_EPS},
            pooler="tanh" if self.classifier_activation else None,
            prediction_act=self.hidden_act,
        )


if not describing(__name__):
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, padding_bias

    class NoNorm(nn.Module):
        """An element-wise linear map that replaces LayerNorm (section 3.3). It ignores the epsilon."""

        def __init__(self, size: int, eps: float) -> None:  # noqa: ARG002  # the signature of LayerNorm
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))
            self.bias = nn.Parameter(torch.zeros(size))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.bias

    NORM_CLASSES: Final[Mapping[str, type[NoNorm] | type[nn.LayerNorm]]] = {
        "no_norm": NoNorm,
        "layer_norm": nn.LayerNorm,
    }

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.trigram = config.trigram_input
            window = 3 * config.embedding_size if self.trigram else config.embedding_size
            self.word = nn.Embedding(config.vocab_size, config.embedding_size)
            self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
            self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
            self.projection = nn.Linear(window, config.hidden_size) if config.projected_words else None
            self.norm = NORM_CLASSES[config.normalization_type](config.hidden_size, TORCH_EPS)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> Tensor:
            x = self.word(input_ids)  # (B, S, E)
            if self.trigram:
                x = self.window(x * mask[:, :, None].to(x.dtype))  # padding is never a neighbour
            if self.projection is not None:
                x = self.projection(x)  # (B, S, H)
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            out: Tensor = self.dropout(self.norm(x + self.position(positions) + self.token_type(token_type_ids)))
            return out

        @staticmethod
        def window(x: Tensor) -> Tensor:
            """Concatenates the embeddings of the next, the own and the previous token, (B, S, E) to (B, S, 3E)."""
            following, preceding = F.pad(x[:, 1:], (0, 0, 0, 1)), F.pad(x[:, :-1], (0, 0, 1, 0))
            return torch.cat([following, x, preceding], dim=2)

    class Bottleneck(nn.Module):
        """A linear map from the hidden states to the width inside a layer, and its norm."""

        def __init__(self, config: Config, size_in: int, size_out: int) -> None:
            super().__init__()
            self.dense = nn.Linear(size_in, size_out)
            self.norm = NORM_CLASSES[config.normalization_type](size_out, config.layer_norm_eps)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(self.dense(x))
            return out

    class FeedForward(nn.Module):
        def __init__(self, config: Config, eps: float) -> None:
            super().__init__()
            self.act = ACTIVATIONS[config.hidden_act]
            self.dense_in = nn.Linear(config.inner_size, config.intermediate_size)
            self.dense_out = nn.Linear(config.intermediate_size, config.inner_size)
            self.norm = NORM_CLASSES[config.normalization_type](config.inner_size, eps)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm(self.dense_out(self.act(self.dense_in(x))) + x)
            return out

    class Layer(layers.Layer):
        def __init__(self, config: Config) -> None:
            super().__init__()
            h, c, eps = config.hidden_size, config.inner_size, config.layer_norm_eps
            norm = NORM_CLASSES[config.normalization_type]
            self.heads = config.num_attention_heads
            self.bottlenecked_attention = config.bottlenecked_attention
            self.enter = Bottleneck(config, h, c) if config.use_bottleneck else None
            self.enter_attention = Bottleneck(config, h, c) if config.shared_key_query else None
            self.query = nn.Linear(c, c)
            self.key = nn.Linear(c, c)
            self.value = nn.Linear(c if config.use_bottleneck_attention else h, c)
            self.output = nn.Linear(c, c)
            self.attention_norm = norm(c, eps)
            self.ffns = nn.ModuleList(FeedForward(config, eps) for _ in range(config.num_feedforward_networks - 1))
            self.last_ffn = FeedForward(config, TORCH_EPS)  # separate, as in the reference and its checkpoints
            self.leave = nn.Linear(c, h) if config.use_bottleneck else None
            self.leave_norm = norm(h, eps) if config.use_bottleneck else None

        def forward(self, stream: Tensor, bias: Tensor) -> Tensor:
            """stream (B, S, H) -> (B, S, H)."""
            x: Tensor = stream if self.enter is None else self.enter(stream)  # (B, S, C)
            values = x if self.bottlenecked_attention else stream
            key_query = values if self.enter_attention is None else self.enter_attention(stream)
            attended = attend(self.query(key_query), self.key(key_query), self.value(values), self.heads, bias)
            x = self.attention_norm(self.output(attended) + x)
            for ffn in [*self.ffns, self.last_ffn]:
                x = ffn(x)
            if self.leave is None or self.leave_norm is None:
                return x
            out: Tensor = self.leave_norm(self.leave(x) + stream)
            return out

    class Encoder(layers.Encoder):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x = self.embeddings(input_ids, token_type_ids, mask)
            bias = padding_bias(mask, x.dtype)
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1], bias))
            return features


_LAYER: Final = r"^(mobilebert\.)?encoder\.layer\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names("mobilebert"),
        (r"^(mobilebert\.)?embeddings\.embedding_transformation\.", r"encoder.embeddings.projection."),
        (_LAYER + r"bottleneck\.input\.dense\.", r"encoder.layers.\2.enter.dense."),
        (_LAYER + r"bottleneck\.input\.LayerNorm\.", r"encoder.layers.\2.enter.norm."),
        (_LAYER + r"bottleneck\.attention\.dense\.", r"encoder.layers.\2.enter_attention.dense."),
        (_LAYER + r"bottleneck\.attention\.LayerNorm\.", r"encoder.layers.\2.enter_attention.norm."),
        (_LAYER + r"attention\.self\.", r"encoder.layers.\2."),
        (_LAYER + r"attention\.output\.dense\.", r"encoder.layers.\2.output."),
        (_LAYER + r"attention\.output\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
        (_LAYER + r"ffn\.(\d+)\.intermediate\.dense\.", r"encoder.layers.\2.ffns.\3.dense_in."),
        (_LAYER + r"ffn\.(\d+)\.output\.dense\.", r"encoder.layers.\2.ffns.\3.dense_out."),
        (_LAYER + r"ffn\.(\d+)\.output\.LayerNorm\.", r"encoder.layers.\2.ffns.\3.norm."),
        (_LAYER + r"intermediate\.dense\.", r"encoder.layers.\2.last_ffn.dense_in."),
        (_LAYER + r"output\.dense\.", r"encoder.layers.\2.last_ffn.dense_out."),
        (_LAYER + r"output\.LayerNorm\.", r"encoder.layers.\2.last_ffn.norm."),
        (_LAYER + r"output\.bottleneck\.dense\.", r"encoder.layers.\2.leave."),
        (_LAYER + r"output\.bottleneck\.LayerNorm\.", r"encoder.layers.\2.leave_norm."),
        (r"^(mobilebert\.)?pooler\.dense\.", r"classification.pooler."),
        *OUTPUTS,
        *PREDICTIONS,
        (r"^cls\.predictions\.dense\.weight$", r"masked_lm.extra"),
        (r"^cls\.seq_relationship\.", r"pretraining.sentence."),
    ),
    transposed=("masked_lm.extra",),
    unread=(r"^encoder\.layers\.\d+\.enter_attention\.", r"^encoder\.embeddings\.projection\."),
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "tie_word_embeddings": True},
    implied={"classifier_activation": True},
)
