"""Sentence-order prediction: are two consecutive texts the right way round? (Lan et al. 2019, arXiv:1909.11942, 3.1)

Both are of one document, so topic tells nothing: coherence has to.
"""

from __future__ import annotations

from typing import Final

import torch

from swiftlet_serve.models.training.objectives.pairs import Chunk, Pair, cut, toss

IN_ORDER: Final = 0
SWAPPED: Final = 1


def sentence_order(chunk: Chunk, generator: torch.Generator) -> Pair:
    """Cuts a chunk in two between segments, and swaps the halves half the time.

    Raises:
        ValueError: the chunk has only one segment.
    """
    at = cut(chunk, generator)
    first, second = torch.cat(list(chunk[:at])), torch.cat(list(chunk[at:]))
    return Pair(second, first, SWAPPED) if toss(generator) else Pair(first, second, IN_ORDER)
