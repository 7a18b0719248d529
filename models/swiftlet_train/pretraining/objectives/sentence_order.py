"""Sentence-order prediction: are two consecutive texts in order? (Lan et al. 2019, arXiv:1909.11942, section 3.1)

Both texts come from one document, so only coherence shows the order.
"""

from __future__ import annotations

from typing import Final

import torch

from swiftlet_train.pretraining.objectives.sentence_pairs import Chunk, Pair, draw_split, flip_coin

IN_ORDER: Final = 0
SWAPPED: Final = 1


def make_sentence_order_pair(chunk: Chunk, generator: torch.Generator) -> Pair:
    """Splits a chunk between two segments, and swaps the parts with a probability of one half.

    Raises:
        ValueError: the chunk has only one segment.
    """
    split = draw_split(chunk, generator)
    first, second = torch.cat(list(chunk[:split])), torch.cat(list(chunk[split:]))
    return Pair(second, first, SWAPPED) if flip_coin(generator) else Pair(first, second, IN_ORDER)
