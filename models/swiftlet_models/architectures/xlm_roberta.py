"""XLM-RoBERTa (Conneau et al. 2019, arXiv:1911.02116): RoBERTa with a vocabulary of a hundred languages.

The network and the names of its parameters are RoBERTa's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from swiftlet_models.architectures.descriptions import describing

from . import roberta


@dataclass(frozen=True)
class Config(roberta.Config):
    """The settings of RoBERTa. The defaults are the released base.

    The other released shape is large (H 1024, L 24, A 16, I 4096).
    """

    vocab_size: int = 250002


if not describing(__name__):
    from .roberta import Encoder as Encoder

CHECKPOINTS: Final = replace(roberta.CHECKPOINTS, implied={**roberta.CHECKPOINTS.implied, "vocab_size": 30522})
