"""Static masking: the masks are drawn once for all epochs (Liu et al. 2019, arXiv:1907.11692, section 4.1).

BERT masked its corpus before the training. RoBERTa's baseline holds ten copies of the corpus with ten masks, which the
epochs read in turn: in 40 epochs, each mask is seen four times. The pairs of a sentence objective are drawn once, too.
"""

from __future__ import annotations

from typing import Final

import torch

COPIES: Final = 10


def make_generator(seed: int, sequence: int, epoch: int) -> torch.Generator:
    """Returns the random generator of a sequence's instance in an epoch. It repeats every ten epochs."""
    return torch.Generator().manual_seed((seed * COPIES + epoch % COPIES) * 1_000_000_007 + sequence)
