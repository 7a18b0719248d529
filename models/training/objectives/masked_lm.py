"""Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, section 3.1), drawn anew each time a row is seen.

Of the real tokens 15 % are to be predicted: 80 % of those are replaced by the mask, 10 % by any word, 10 % stay.
What is hidden together is told by spans: a token alone, a whole word, or a few words in a row. Each span is hidden
with a chance of 15 %, whatever its length, so that 15 % is the share of the tokens too. A larger share tells a small
model that is trained for a short time more (Wettig et al. 2022, arXiv:2202.08005, section 3), so that it can be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

SHARE: Final = 0.15
MASKED: Final = 0.8
RANDOM: Final = 0.1
LONGEST: Final = 3  # words in an n-gram


@dataclass(frozen=True)
class Masked:
    """Rows with holes, and what was in them."""

    input_ids: Tensor  # (B, S)
    focus: Tensor  # (N,): positions b * S + s to predict
    targets: Tensor  # (N,): the ids that were there


def mask(
    rows: Tensor,
    *,
    special: int,
    mask_id: int,
    vocab_size: int,
    generator: torch.Generator,
    spans: Tensor | None = None,
    share: float = SHARE,
) -> Masked:
    """Makes holes in rows (B, S). Ids below `special` are special tokens: never chosen, never put in.

    `spans` (B, S) numbers what is hidden together, as `words` and `ngrams` do; without it each token stands alone.
    """
    real = rows >= special
    if spans is None:
        spans = torch.arange(rows.shape[1]).expand(rows.shape)
    drawn = torch.rand(rows.shape, generator=generator) < share
    chosen = real & drawn.gather(1, spans)
    if not chosen.any():  # every batch needs something to learn from
        row, place = real.nonzero()[0]
        chosen[row] = real[row] & (spans[row] == spans[row, place])
    how = torch.rand(rows.shape, generator=generator)
    others = torch.randint(special, vocab_size, rows.shape, generator=generator)
    holed = torch.where(chosen & (how < MASKED), mask_id, rows)
    holed = torch.where(chosen & (how >= MASKED) & (how < MASKED + RANDOM), others, holed)
    focus = chosen.flatten().nonzero()[:, 0]
    return Masked(holed, focus, rows.flatten()[focus])


def words(rows: Tensor, *, special: int, continues: Tensor) -> Tensor:
    """Spans (B, S) for whole-word masking: the number, from 0 on, of the word that each token of its row is part of.

    `continues` (V,) tells which pieces go on with a word. A special token is a word of its own, and a piece after it
    begins one.
    """
    real = rows >= special
    going_on = continues[rows] & real
    going_on[:, 1:] &= real[:, :-1]
    going_on[:, 0] = False
    return (~going_on).cumsum(1) - 1


def ngrams(rows: Tensor, *, special: int, continues: Tensor, generator: torch.Generator) -> Tensor:
    """Spans (B, S) of n whole words each, p(n) ∝ 1/n up to 3 (Lan et al. 2019, arXiv:1909.11942, section 4.1).

    A row is laid out with spans from its first word on. One that would reach over a special token, or past the end,
    is cut there.
    """
    real, whole = rows >= special, words(rows, special=special, continues=continues)
    begins = real & (whole != whole.roll(1, dims=1))
    begins[:, 0] = real[:, 0]
    numbers = (begins.cumsum(1) - 1).clamp(min=0)  # of the words that are not special tokens
    chances = 1 / torch.arange(1.0, LONGEST + 1)
    lengths = 1 + torch.multinomial(chances, rows.numel(), replacement=True, generator=generator).view(rows.shape)
    found = torch.searchsorted(lengths.cumsum(1), numbers, right=True)
    # Neither number falls along a row, so their sum is the same only where both are: no span goes over a special token.
    return found + (~real).cumsum(1) - (~real).long()
