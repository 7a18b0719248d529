"""DeBERTa v2 and v3 (He et al. 2021, arXiv:2006.03654 and arXiv:2111.09543): BERT whose attention knows distances.

Scores add the products of a query with the keys of distances, and of a key with the queries of distances. Follows
`modeling_deberta_v2.py` of transformers. mDeBERTa is the same network. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

from swiftlet_models.architectures.checkpoints import OUTPUTS, Checkpoints, embedding_names, feed_forward_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import MOST_POSITIONS, Count, Positions, Range, Rows
from swiftlet_models.architectures.traits import (
    Activation,
    AttentionTraits,
    EmbeddingTraits,
    RelativeTraits,
    Traits,
)

from . import standard


@dataclass(frozen=True)
class Config(standard.Config):
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
    type_vocab_size: Rows = 0
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
        return replace(
            self.plain(self.hidden_act, self.layer_norm_eps),
            embedding=EmbeddingTraits(positions=self.position_biased_input, token_types=self.type_vocab_size > 0),
            relative=relative if self.relative_attention else None,
            pooler=self.pooler_hidden_act,
            prediction_act=self.hidden_act,
        )


if not describing(__name__):
    import math

    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures.layers import attend, relative_bias

    class Layer(standard.Layer):
        """A layer of BERT with other scores. `positions` are the rows of distances and their table, if any."""

        def __init__(self, config: Config, traits: Traits) -> None:
            super().__init__(config, traits)
            self.config, h = config, config.hidden_size
            self.key_map, self.query_map = "key", "query"  # of distances
            if not config.share_att_key:
                self.key_map, self.query_map = "relative_key", "relative_query"
                if config.c2p:
                    self.relative_key = nn.Linear(h, h)
                if config.p2c:
                    self.relative_query = nn.Linear(h, h)

        def attended(self, x: Tensor, bias: Tensor, positions: tuple[Tensor, Tensor] | None) -> Tensor:
            config, parts = self.config, self.config.c2p + self.config.p2c
            query, key = self.query(x) / math.sqrt(1 + parts), self.key(x)
            if positions is not None:
                rows, table = positions
                keys = self.get_submodule(self.key_map)(table) if config.c2p else None
                queries = self.get_submodule(self.query_map)(table) if config.p2c else None
                scale = math.sqrt(query.shape[2] / self.heads)
                if queries is not None:
                    queries = queries / (scale * math.sqrt(1 + parts))
                bias = bias + relative_bias(query / scale, key, self.heads, rows, keys, queries)
            out: Tensor = self.dropout(self.output(attend(query, key, self.value(x), self.heads, bias)))
            return out

    class Encoder(standard.Encoder):
        LAYER = Layer
        rows: Tensor

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            relative = self.traits.relative
            if relative:
                self.relative = nn.Embedding(2 * relative.span, config.hidden_size)
                self.relative_norm = standard.norm(self.traits, config.hidden_size) if relative.norm else nn.Identity()
                rows = torch.tensor(relative.rows(config.max_position_embeddings))
                self.register_buffer("rows", rows, persistent=False)

        def positions(self, part: AttentionTraits) -> tuple[Tensor, Tensor] | None:  # noqa: ARG002  # all are alike
            return (self.rows, self.relative_norm(self.relative.weight)) if self.traits.relative else None


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
        raise ValueError("conv_kernel_size is not supported: it adds a convolution. Fine-tune DeBERTa v3.")
    for name in ("embedding_size", "pooler_hidden_size"):
        if settings.get(name) not in (None, settings.get("hidden_size")):
            raise ValueError(f"{name} is not supported unless it is the hidden_size.")
    return own


_LAYER: Final = r"^(deberta\.)?encoder\.layer\.(\d+)\."
_TRANSFORM: Final = r"^(cls\.predictions\.transform|lm_predictions\.lm_head)\."
CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names("deberta"),
        (r"^(deberta\.)?encoder\.rel_embeddings\.", r"encoder.relative."),
        (r"^(deberta\.)?encoder\.LayerNorm\.", r"encoder.relative_norm."),
        (_LAYER + r"attention\.self\.pos_(query|key)_proj\.", r"encoder.layers.\2.relative_\3."),
        (_LAYER + r"attention\.self\.(query|key|value)_proj\.", r"encoder.layers.\2.\3."),
        (_LAYER + r"attention\.output\.dense\.", r"encoder.layers.\2.output."),
        (_LAYER + r"attention\.output\.LayerNorm\.", r"encoder.layers.\2.attention_norm."),
        *feed_forward_names("deberta"),
        (r"^pooler\.dense\.", r"classification.pooler."),
        *OUTPUTS,
        (_TRANSFORM + r"dense\.", r"masked_lm.transform."),
        (_TRANSFORM + r"LayerNorm\.", r"masked_lm.norm."),
        (r"^(cls\.predictions|lm_predictions\.lm_head)\.bias$", r"masked_lm.bias"),
        (r"^cls\.predictions\.decoder\.", r"masked_lm.decoder."),
        (r"^mask_predictions\.", r"pretraining."),
    ),
    unread=(r"^encoder\.embeddings\.position\.",),
    fixed={"tie_word_embeddings": True},
    translate=translate,
)
