"""ALBERT (Lan et al. 2019, arXiv:1909.11942): BERT with a factorised embedding (section 3.1) and shared layers.

The word table is V x E with E much smaller than H. One projection E -> H follows the embedding's LayerNorm. The L
layers apply G groups (`num_hidden_groups`, 1 in every released model) of `inner_group_num` layers each, so that 12
layers have the parameters of one. `shared_parameters` says what the layers of a group share (table 4). Follows
`modeling_albert.py` of transformers. Shape letters: see `layers.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from swiftlet_models.architectures.checkpoints import OUTPUTS, Checkpoints, embedding_names, masked_lm_names
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import MOST_LAYERS, Count, Settings, check_heads
from swiftlet_models.architectures.traits import Activation, EmbeddingTraits, FeedForwardTraits, Traits


@dataclass(frozen=True)
class Config(Settings):
    """The settings, named as in transformers. The defaults are the released base.

    The other released shapes are large (H 1024, L 24, A 16, I 4096), xlarge (H 2048, L 24, A 16, I 8192) and xxlarge
    (H 4096, L 12, A 64, I 16384).
    """

    vocab_size: int = 30000
    embedding_size: int = 128
    hidden_size: int = 768
    num_hidden_layers: Count = 12
    num_hidden_groups: Count = 1
    inner_group_num: Count = 1
    shared_parameters: Literal["all", "attention", "feed_forward", "none"] = "all"
    """What the layers of a group share. The reference knows only "all"."""
    num_attention_heads: Count = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu_new"
    hidden_dropout_prob: float = 0.0
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_heads(self.hidden_size, self.num_attention_heads)
        if max(self.num_hidden_layers, self.num_hidden_groups) * self.inner_group_num > MOST_LAYERS:
            raise ValueError(f"there are more than {MOST_LAYERS} layers.")

    def traits(self) -> Traits:
        # Not `depth * G // L`: for a few shapes the reference's floating-point division rounds to another group.
        layers_per_group = self.num_hidden_layers / self.num_hidden_groups
        groups = [int(depth / layers_per_group) for depth in range(self.num_hidden_layers)]

        def names(numbers: Iterable[int]) -> tuple[str, ...]:
            return tuple(f"groups.{number}.{i}" for number in numbers for i in range(self.inner_group_num))

        shared = self.shared_parameters
        first = names(bisect_left(groups, group) for group in groups)  # of each layer's group
        return Traits(
            layers=names(groups if shared == "all" else range(self.num_hidden_layers)),
            attention_of=first if shared == "attention" else (),
            feed_forward_of=first if shared == "feed_forward" else (),
            heads=self.num_attention_heads,
            activation=self.hidden_act,
            epsilon=self.layer_norm_eps,
            feed_forward=(FeedForwardTraits("ffn_in", "ffn_out", "ffn_norm"),),
            embedding=EmbeddingTraits(projection="sum"),
            pooler="tanh",
            prediction_act=self.hidden_act,
        )


if not describing(__name__):
    import torch
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers
    from swiftlet_models.architectures.layers import ACTIVATIONS, attend, padding_bias

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.embedding_size)
            self.position = nn.Embedding(config.max_position_embeddings, config.embedding_size)
            self.token_type = nn.Embedding(config.type_vocab_size, config.embedding_size)
            self.norm = nn.LayerNorm(config.embedding_size, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)
            self.projection = nn.Linear(config.embedding_size, config.hidden_size)

        def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            out: Tensor = self.projection(self.dropout(self.narrow(input_ids, token_type_ids)))  # (B, S, H)
            return out

        def narrow(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
            """Returns the normalised sum before the projection, (B, S, E)."""
            positions = torch.arange(input_ids.shape[1], device=input_ids.device)
            x: Tensor = self.norm(self.word(input_ids) + self.token_type(token_type_ids) + self.position(positions))
            return x

    class Layer(layers.Layer):
        ATTENTION: Final = ("query", "key", "value", "output", "attention_norm")
        FEED_FORWARD: Final = ("ffn_in", "ffn_out", "ffn_norm")

        def __init__(self, config: Config) -> None:
            super().__init__()
            h = config.hidden_size
            self.heads = config.num_attention_heads
            self.act = ACTIVATIONS[config.hidden_act]
            self.query = nn.Linear(h, h)
            self.key = nn.Linear(h, h)
            self.value = nn.Linear(h, h)
            self.output = nn.Linear(h, h)
            self.attention_norm = nn.LayerNorm(h, config.layer_norm_eps)
            self.ffn_in = nn.Linear(h, config.intermediate_size)
            self.ffn_out = nn.Linear(config.intermediate_size, h)
            self.ffn_norm = nn.LayerNorm(h, config.layer_norm_eps)
            self.dropout = nn.Dropout(config.hidden_dropout_prob)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            attended = self.output(attend(self.query(x), self.key(x), self.value(x), self.heads, bias))
            x = self.attention_norm(x + self.dropout(attended))
            widened = self.act(self.ffn_in(x))  # (B, S, I)
            out: Tensor = self.ffn_norm(x + self.ffn_out(widened))  # no dropout here, as in the reference
            return out

    def share(layer: nn.Module, owner: nn.Module, parts: Sequence[str]) -> None:
        """Replaces parts of a layer with those of another one, which alone lists their parameters."""
        for part in parts if layer is not owner else ():
            delattr(layer, part)
            vars(layer)[part] = getattr(owner, part)

    class Encoder(layers.Encoder):
        embeddings: Embeddings

        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)
            shares_layers = config.shared_parameters == "all"
            self.groups = nn.ModuleList(
                nn.ModuleList(Layer(config) for _ in range(config.inner_group_num))
                for _ in range(config.num_hidden_groups if shares_layers else config.num_hidden_layers)
            )
            traits = config.traits()
            for owners, parts in ((traits.attention_of, Layer.ATTENTION), (traits.feed_forward_of, Layer.FEED_FORWARD)):
                for name, owner in zip(traits.layers, owners, strict=False):
                    share(self.get_submodule(name), self.get_submodule(owner), parts)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:
            x = self.embeddings(input_ids, token_type_ids)
            bias = padding_bias(mask, x.dtype)
            features = [x]
            for layer in self.applied_layers():
                features.append(layer(features[-1], bias))
            return features


_LAYER: Final = r"^(albert\.)?encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\."
CHECKPOINTS: Final = Checkpoints(
    (
        *embedding_names("albert"),
        (r"^(albert\.)?encoder\.embedding_hidden_mapping_in\.", r"encoder.embeddings.projection."),
        (_LAYER + r"attention\.(query|key|value)\.", r"encoder.groups.\2.\3.\4."),
        (_LAYER + r"attention\.dense\.", r"encoder.groups.\2.\3.output."),
        (_LAYER + r"attention\.LayerNorm\.", r"encoder.groups.\2.\3.attention_norm."),
        (_LAYER + r"ffn\.", r"encoder.groups.\2.\3.ffn_in."),
        (_LAYER + r"ffn_output\.", r"encoder.groups.\2.\3.ffn_out."),
        (_LAYER + r"full_layer_layer_norm\.", r"encoder.groups.\2.\3.ffn_norm."),
        (r"^(albert\.)?pooler\.", r"classification.pooler."),
        *OUTPUTS,
        *masked_lm_names("predictions", "predictions"),
        (r"^sop_classifier\.classifier\.", r"pretraining.sentence."),
    ),
    fixed={"position_embedding_type": "absolute", "is_decoder": False, "tie_word_embeddings": True},
    implied={"hidden_size": 4096, "num_attention_heads": 64, "intermediate_size": 16384},
)
