"""Next-sentence prediction: does the second text follow the first? (Devlin et al. 2018, arXiv:1810.04805, section 3.1)

Half the time it does, half the time it is from another document. Nothing but the text should tell which: either way
the second is of whole segments, and of the other document's those are taken that are nearest in length to what they
stand for.
"""

from __future__ import annotations

from itertools import accumulate, combinations
from typing import Final

import torch

from swiftlet_serve.models.training.objectives.pairs import Chunk, Pair, cut, toss

FOLLOWS: Final = 0
ELSEWHERE: Final = 1


def next_sentence(here: Chunk, elsewhere: Chunk, room: int, generator: torch.Generator) -> Pair:
    """The start of `here`, and after it the rest of it or consecutive segments of a chunk of another document.

    `room` is for both texts together, and either chunk fits it. Only where each of the other document's segments is
    too long for what is left of it, one is cut.

    Raises:
        ValueError: the chunk has only one segment.
    """
    at = cut(here, generator)
    first = torch.cat(list(here[:at]))
    if toss(generator):
        return Pair(first, torch.cat(list(here[at:])), FOLLOWS)
    left = room - len(first)
    bounds = [0, *accumulate(map(len, elsewhere))]
    wanted = sum(map(len, here[at:]))
    runs = [(stop - start > left, abs(stop - start - wanted), start, stop) for start, stop in combinations(bounds, 2)]
    _, _, start, stop = min(runs)
    return Pair(first, torch.cat(list(elsewhere))[start:stop][:left], ELSEWHERE)
