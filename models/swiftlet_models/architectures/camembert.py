"""CamemBERT (Martin et al. 2019, arXiv:1911.03894): RoBERTa for French.

The network and the names of its parameters are RoBERTa's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from swiftlet_models.architectures.descriptions import describing

from . import roberta
from .roberta import FIXED as FIXED
from .roberta import NAMES as NAMES
from .roberta import TRANSPOSED as TRANSPOSED
from .roberta import UNREAD as UNREAD


@dataclass(frozen=True)
class Config(roberta.Config):
    """The settings of RoBERTa. The defaults are the released base.

    The other released shape is large (H 1024, L 24, A 16, I 4096).
    """

    vocab_size: int = 32005


if not describing(__name__):
    from .roberta import Encoder as Encoder

# Defaults of transformers that differ from those above.
IMPLIED: Final[Mapping[str, Any]] = {**roberta.IMPLIED, "vocab_size": 30522}
