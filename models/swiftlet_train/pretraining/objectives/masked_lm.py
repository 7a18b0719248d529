"""Masked language modelling (Devlin et al. 2018, arXiv:1810.04805, section 3.1), with new masks in every batch.

15 % of the tokens are predicted: 80 % of these are replaced by [MASK], 10 % by a random token, and 10 % stay. A span is
masked as a whole: one token, one word, or an n-gram of words. Each span is chosen with a probability of 15 %, so that
15 % of the tokens are chosen. A higher probability teaches more to a small model with short
training (Wettig et al. 2022, arXiv:2202.08005, section 3), so it can be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

MASK_PROBABILITY: Final = 0.15
REPLACED_BY_MASK: Final = 0.8
REPLACED_BY_RANDOM: Final = 0.1
MAX_NGRAM: Final = 3  # words


@dataclass(frozen=True)
class Masked:
    """Masked sequences and the original tokens."""

    input_ids: Tensor
    """(B, S)"""
    focus: Tensor
    """The positions b * S + s to predict, (N,)."""
    targets: Tensor
    """The original ids there, (N,)."""


def mask(
    sequences: Tensor,
    *,
    first_word_id: int,
    mask_id: int,
    vocab_size: int,
    generator: torch.Generator,
    spans: Tensor | None = None,
    probability: float = MASK_PROBABILITY,
) -> Masked:
    """Masks sequences (B, S).

    Ids below `first_word_id` are special tokens, which are neither masked nor used as replacements. `spans` (B, S)
    holds the number of each token's span, from `word_spans` or `ngram_spans`. By default each token is a span.
    """
    maskable = sequences >= first_word_id
    if spans is None:
        spans = torch.arange(sequences.shape[1]).expand(sequences.shape)
    drawn = torch.rand(sequences.shape, generator=generator) < probability
    chosen = maskable & drawn.gather(1, spans)
    if not chosen.any():  # every batch needs a target
        row, position = maskable.nonzero()[0]
        chosen[row] = maskable[row] & (spans[row] == spans[row, position])
    kind = torch.rand(sequences.shape, generator=generator)
    random_ids = torch.randint(first_word_id, vocab_size, sequences.shape, generator=generator)
    masked = torch.where(chosen & (kind < REPLACED_BY_MASK), mask_id, sequences)
    is_random = (kind >= REPLACED_BY_MASK) & (kind < REPLACED_BY_MASK + REPLACED_BY_RANDOM)
    masked = torch.where(chosen & is_random, random_ids, masked)
    focus = chosen.flatten().nonzero()[:, 0]
    return Masked(masked, focus, sequences.flatten()[focus])


def word_spans(sequences: Tensor, *, first_word_id: int, continues: Tensor) -> Tensor:
    """Numbers the words of each sequence from 0, for whole-word masking. Returns the word of each token, (B, S).

    `continues` (V,) is true for pieces that continue a word. A special token is a word of its own, and the piece after
    it starts a new one.
    """
    maskable = sequences >= first_word_id
    continued = continues[sequences] & maskable
    continued[:, 1:] &= maskable[:, :-1]
    continued[:, 0] = False
    return (~continued).cumsum(1) - 1


def ngram_spans(sequences: Tensor, *, first_word_id: int, continues: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers spans of n whole words, p(n) ∝ 1/n up to 3 (Lan et al. 2019, arXiv:1909.11942, section 4.1), (B, S).

    Spans are laid out from the first word of a sequence. A span ends before a special token and at the sequence's end.
    """
    maskable = sequences >= first_word_id
    words = word_spans(sequences, first_word_id=first_word_id, continues=continues)
    starts = maskable & (words != words.roll(1, dims=1))
    starts[:, 0] = maskable[:, 0]
    word_numbers = (starts.cumsum(1) - 1).clamp(min=0)  # without special tokens
    weights = 1 / torch.arange(1.0, MAX_NGRAM + 1)
    drawn = torch.multinomial(weights, sequences.numel(), replacement=True, generator=generator)
    lengths = 1 + drawn.view(sequences.shape)
    ngrams = torch.searchsorted(lengths.cumsum(1), word_numbers, right=True)
    # Both numbers never fall along a sequence, so equal sums mean equal numbers: no span crosses a special token.
    return ngrams + (~maskable).cumsum(1) - (~maskable).long()
