"""Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, section 3.1), drawn anew each time a row is seen.

Of the real tokens 15 % are to be predicted: 80 % of those are replaced by the mask, 10 % by any word, 10 % stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

SHARE: Final = 0.15
MASKED: Final = 0.8
RANDOM: Final = 0.1


@dataclass(frozen=True)
class Masked:
    """Rows with holes, and what was in them."""

    input_ids: Tensor  # (B, S)
    focus: Tensor  # (N,): positions b * S + s to predict
    targets: Tensor  # (N,): the ids that were there


def mask(rows: Tensor, *, special: int, mask_id: int, vocab_size: int, generator: torch.Generator) -> Masked:
    """Makes holes in rows (B, S). Ids below `special` are special tokens: never chosen, never put in."""
    chosen = (torch.rand(rows.shape, generator=generator) < SHARE) & (rows >= special)
    if not chosen.any():  # every row needs something to learn from
        chosen.flatten()[(rows >= special).flatten().nonzero()[0]] = True
    how = torch.rand(rows.shape, generator=generator)
    words = torch.randint(special, vocab_size, rows.shape, generator=generator)
    holed = torch.where(chosen & (how < MASKED), mask_id, rows)
    holed = torch.where(chosen & (how >= MASKED) & (how < MASKED + RANDOM), words, holed)
    focus = chosen.flatten().nonzero()[:, 0]
    return Masked(holed, focus, rows.flatten()[focus])
