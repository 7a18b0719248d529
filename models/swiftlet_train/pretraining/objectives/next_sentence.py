"""Next-sentence prediction: does the second text follow the first? (Devlin et al. 2018, arXiv:1810.04805, section 3.1)

Half of the second texts follow, and half come from another document. Only the content may show which: both kinds are
whole segments, and the segments of the other document have the most similar length.
"""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import Final

import torch
from torch import Tensor

from swiftlet_train.pretraining.objectives.sentence_pairs import Chunk, Pair, draw_split, flip_coin

NEXT: Final = 0
NOT_NEXT: Final = 1


def make_next_sentence_pair(chunk: Chunk, other_chunk: Chunk, max_tokens: int, generator: torch.Generator) -> Pair:
    """Pairs the start of `chunk` with its rest, or with consecutive segments of a chunk from another document.

    Both texts together have at most `max_tokens` tokens. A segment of `other_chunk` is cut only if all are too long.

    Raises:
        ValueError: `chunk` has only one segment.
    """
    split = draw_split(chunk, generator)
    first = torch.cat(list(chunk[:split]))
    if flip_coin(generator):
        return Pair(first, torch.cat(list(chunk[split:])), NEXT)
    available = max_tokens - len(first)
    bounds = [0, *accumulate(map(len, other_chunk))]
    wanted = sum(map(len, chunk[split:]))
    candidates = [
        (stop - start > available, abs(stop - start - wanted), start, stop) for start, stop in combinations(bounds, 2)
    ]
    _, _, start, stop = min(candidates)
    return Pair(first, torch.cat(list(other_chunk))[start:stop][:available], NOT_NEXT)


def find_nearest(chunk: Chunk, length: int) -> Tensor:
    """Returns the segment of a chunk with the most similar length."""
    return min(chunk, key=lambda segment: abs(len(segment) - length))
