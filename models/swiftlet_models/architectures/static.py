"""Static embeddings: a vector for each token, and their mean (model2vec, StaticEmbedding of sentence-transformers).

A network without layers. `static_embeddings.py` reads the files of both packages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from swiftlet_models.architectures.checkpoints import Checkpoints
from swiftlet_models.architectures.descriptions import describing
from swiftlet_models.architectures.settings import MOST_POSITIONS, Settings
from swiftlet_models.architectures.traits import EmbeddingTraits, Traits


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the table."""

    vocab_size: int = 30522
    hidden_size: int = 256
    max_position_embeddings: int = MOST_POSITIONS

    def traits(self) -> Traits:
        table = EmbeddingTraits(positions=False, norm="none", token_types=False)
        return Traits(layers=(), heads=1, activation="gelu", epsilon=0, feed_forward=(), embedding=table)


if not describing(__name__):
    from torch import Tensor, nn

    from swiftlet_models.architectures import layers

    class Embeddings(layers.Embeddings):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.word = nn.Embedding(config.vocab_size, config.hidden_size)

    class Encoder(layers.Encoder):
        def __init__(self, config: Config) -> None:
            super().__init__()
            self.config = config
            self.embeddings = Embeddings(config)

        def features(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> list[Tensor]:  # noqa: ARG002
            return [self.embeddings.word(input_ids)]


CHECKPOINTS: Final = Checkpoints(((r"^embedding\.weight$", "encoder.embeddings.word.weight"),))
