"""DeBERTa v2 and v3 (He et al. 2021, arXiv:2006.03654 and arXiv:2111.09543): BERT whose attention knows distances.

Scores add the products of a query with the keys of distances, and of a key with the queries of distances. Follows
`modeling_deberta_v2.py` of transformers. mDeBERTa is the same network. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.traits import (
    MOST_POSITIONS,
    SIZE,
    Activation,
    Count,
    EmbeddingTraits,
    FeedForwardTraits,
    Positions,
    Range,
    RelativeTraits,
    Settings,
    Traits,
    check_heads,
)


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers, but for the first two. The defaults are those of transformers.

    The released v3 base has V 128100, H 768, I 3072, L 12, A 12, 256 buckets of up to 512 positions, both kinds of
    products, `share_att_key` and a norm of the distances.
    """

    c2p: bool = False  # in `pos_att_type`
    p2c: bool = False
    vocab_size: int = 128100
    hidden_size: int = 1536
    num_hidden_layers: Count = 24
    num_attention_heads: Count = 24
    intermediate_size: int = 6144
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: Positions = 512
    type_vocab_size: Annotated[int, Range(0, SIZE.most)] = 0
    layer_norm_eps: float = 1e-7
    relative_attention: bool = False
    max_relative_positions: Annotated[int, Range(-1, MOST_POSITIONS)] = -1
    position_buckets: Annotated[int, Range(-1, MOST_POSITIONS)] = -1
    share_att_key: bool = False
    norm_rel_ebd: Literal["none", "layer_norm"] = "none"
    position_biased_input: bool = True
    pooler_hidden_act: Activation = "gelu"
    pooler_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.hidden_size, self.num_attention_heads)
        if 0 < self.position_buckets // 2 >= self.longest - 1 or self.position_buckets == 1:
            raise ValueError(f"position_buckets {self.position_buckets} are too many or too few for the distances.")

    @property
    def longest(self) -> int:
        """The number of positions whose distances the table covers."""
        return self.max_relative_positions if self.max_relative_positions > 0 else self.max_position_embeddings

    def traits(self) -> Traits:
        buckets = self.position_buckets if self.position_buckets > 0 else None
        relative = RelativeTraits(
            span=buckets or self.longest,
            to_positions=self.c2p,
            from_positions=self.p2c,
            shared=self.share_att_key,
            norm=self.norm_rel_ebd == "layer_norm",
            longest=self.longest if buckets else None,
        )
        return Traits(
            layers=tuple(f"layers.{i}" for i in range(self.num_hidden_layers)),
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_eps,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm"),),
            embedding=EmbeddingTraits(positions=self.position_biased_input, token_types=self.type_vocab_size > 0),
            relative=relative if self.relative_attention else None,
        )

    # Read by the heads and the training, for every architecture.
    @property
    def pooler(self) -> Activation | None:
        """The activation of the classification head's pooler."""
        return self.pooler_hidden_act

    @property
    def embedding_size(self) -> int:
        return self.hidden_size

    @property
    def prediction_size(self) -> int:
        """The width of the masked-LM head before the vocabulary."""
        return self.hidden_size

    @property
    def prediction_act(self) -> Activation:
        """The activation of the masked-LM head."""
        return self.hidden_act


if not describing(__name__):
    import math

    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import bert, layers
    from swiftlet_models.architectures.layers import attend, padding_bias, relative_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            h = config.hidden_size
            self.word = nn.Embedding(config.vocab_size, h)
            self.has_positions = config.position_biased_input
            if self.has_positions:
                self.position = nn.Embedding(config.max_position_embeddings, h)
            self.token_type = nn.Embedding(config.type_vocab_size, h) if config.type_vocab_size else None
            self.norm = nn.LayerNorm(h, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            x = self.word(input_ids)
            if self.has_positions:
                x = x + self.position(torch.arange(input_ids.shape[1], device=input_ids.device))
            if self.token_type is not None:
                x = x + self.token_type(token_type_ids)
            out: Tensor = self.dropout(self.norm(x))  # (B, S, H)
            return out

    class Layer(bert.Layer):
        """A layer of BERT with other scores. `relative` are the rows of distances and their table, if there are any."""

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.config, h = config, config.hidden_size
            self.key_map, self.query_map = "key", "query"  # of distances
            if not config.share_att_key:
                self.key_map, self.query_map = "relative_key", "relative_query"
                if config.c2p:
                    self.relative_key = nn.Linear(h, h)
                if config.p2c:
                    self.relative_query = nn.Linear(h, h)

        def forward(self, x: Tensor, bias: Tensor, relative: tuple[Tensor, Tensor] | None = None) -> Tensor:
            config, parts = self.config, self.config.c2p + self.config.p2c
            query, key = self.query(x) / math.sqrt(1 + parts), self.key(x)
            if relative is not None:
                rows, table = relative
                keys = self.get_submodule(self.key_map)(table) if config.c2p else None
                queries = self.get_submodule(self.query_map)(table) if config.p2c else None
                scale = math.sqrt(query.shape[2] / self.heads)
                if queries is not None:
                    queries = queries / (scale * math.sqrt(1 + parts))
                bias = bias + relative_bias(query / scale, key, self.heads, rows, keys, queries)
            x = self.attention_norm(x + self.dropout(self.output(attend(query, key, self.value(x), self.heads, bias))))
            out: Tensor = self.ffn_norm(x + self.dropout(self.ffn_out(self.act(self.ffn_in(x)))))
            return out

    class Encoder(layers.Encoder):
        config: Config
        embeddings: Embeddings
        rows: Tensor

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
            traits = config.traits().relative
            if traits is not None:
                self.relative = nn.Embedding(2 * traits.span, config.hidden_size)
                if traits.norm:
                    self.relative_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
                rows = torch.tensor(traits.rows(config.max_position_embeddings))
                self.register_buffer("rows", rows, persistent=False)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x = self.embeddings(input_ids, token_type_ids)
            bias, relative = padding_bias(mask, x.dtype), None
            if self.config.relative_attention:
                table = self.relative.weight
                relative = self.rows, self.relative_norm(table) if self.config.norm_rel_ebd != "none" else table
            features = [x]
            for layer in self.layers:
                features.append(layer(features[-1], bias, relative))
            return features


def translate(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a checkpoint with lists in words as settings of their own.

    Raises:
        ValueError: a setting changes the computation in a way that is not implemented.
    """
    own = dict(settings)

    def words(name: str) -> set[str]:
        value = settings.get(name)
        parts = value.lower().split("|") if isinstance(value, str) else [] if value is None else value
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{name} has an invalid value.")
        return {part.strip() for part in parts if part.strip()} - {"none"}

    kinds, norms = words("pos_att_type"), words("norm_rel_ebd")
    for name, found, known in (("pos_att_type", kinds, {"c2p", "p2c"}), ("norm_rel_ebd", norms, {"layer_norm"})):
        if found - known:
            raise ValueError(f"{name} has a part that is not supported, only {', '.join(sorted(known))}.")
    own |= {"c2p": "c2p" in kinds, "p2c": "p2c" in kinds, "norm_rel_ebd": "layer_norm" if norms else "none"}
    if kinds and not settings.get("relative_attention", False):
        raise ValueError("relative_attention false is not supported with a pos_att_type.")
    if settings.get("conv_kernel_size") not in (None, 0):
        raise ValueError("conv_kernel_size is not supported: a convolution follows the first layer.")
    for name in ("embedding_size", "pooler_hidden_size"):
        if settings.get(name) not in (None, settings.get("hidden_size")):
            raise ValueError(f"{name} is not supported unless it is the hidden_size.")
    return own


# The names of the parameters in transformers, as (pattern, replacement), applied in order. A head has its own prefix.
_LAYER: Final = r"^(deberta\.)?encoder\.layer\.(\d+)\."
NAMES: Final = (
    (r"^(deberta\.)?embeddings\.(word|position|token_type)_embeddings\.", r"encoder.embeddings.\2."),
    (r"^(deberta\.)?embeddings\.LayerNorm\.", r"encoder.embeddings.norm."),
    (r"^(deberta\.)?encoder\.rel_embeddings\.", r"encoder.relative."),
    (r"^(deberta\.)?encoder\.LayerNorm\.", r"encoder.relative_norm."),
    (_LAYER + r"attention\.self\.pos_(query|key)_proj\.", r"encoder.layers.\2.relative_\3."),
    (_LAYER + r"attention\.self\.(query|key|value)_proj\.", r"encoder.layers.\2.\3."),
    (_LAYER + r"attention\.output\.dense\.", r"encoder.layers.\2.output."),
    (_LAYER + r"attention\.output\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
    (_LAYER + r"intermediate\.dense\.", r"encoder.layers.\2.ffn_in."),
    (_LAYER + r"output\.dense\.", r"encoder.layers.\2.ffn_out."),
    (_LAYER + r"output\.LayerNorm\.", r"encoder.layers.\2.ffn_norm."),
    (r"^pooler\.dense\.", r"classification.pooler."),
    (r"^classifier\.", r"classification.output."),
    (r"^qa_outputs\.", r"token.output."),
    (r"^(cls\.predictions\.transform|lm_predictions\.lm_head)\.dense\.", r"masked_lm.transform."),
    (r"^(cls\.predictions\.transform|lm_predictions\.lm_head)\.LayerNorm\.", r"masked_lm.norm."),
    (r"^(cls\.predictions|lm_predictions\.lm_head)\.bias$", r"masked_lm.bias"),
    (r"^cls\.predictions\.decoder\.", r"masked_lm.decoder."),
    (r"^mask_predictions\.", r"pretraining."),
)

# Tensors that hold several parameters side by side, as (pattern, the names of its parts).
FUSED: Final = ()

# Settings of transformers that change the computation, with the only values that are implemented here.
FIXED: Final[Mapping[str, Any]] = {"tie_word_embeddings": True}

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {}

# Parameters that the reference always has but does not always read.
UNREAD: Final[tuple[str, ...]] = (r"^(deberta\.)?embeddings\.position_embeddings\.",)

# Parameters, by their new names, that the reference stores transposed.
TRANSPOSED: Final[tuple[str, ...]] = ()
