"""Full sentences across documents (FULL-SENTENCES in Liu et al. 2019, arXiv:1907.11692, section 4.2).

A text takes consecutive sentences while they fit. It may cross the end of a document, with [SEP] at the border.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch import Tensor

from swiftlet_train.pretraining.input_formats import Document, Text
from swiftlet_train.pretraining.objectives.sentence_pairs import SINGLE_SPECIALS

PAIRS: Final = False
FILLS_BATCHES: Final = False


def max_tokens(length: int) -> int:
    """Returns the tokens of the longest text."""
    return length - SINGLE_SPECIALS


def max_segment(length: int) -> int:
    """Returns the tokens of the longest segment: one may fill a text."""
    return max_tokens(length)


def pack(documents: Iterable[Document], length: int, sep: int) -> Iterator[Text]:
    """Packs sentences while they fit, across documents. The last text may be short."""
    border = torch.tensor([sep])
    parts, first = list[Tensor](), 0
    for number, document in enumerate(documents):
        for position, segment in enumerate(document):
            added = [border, segment] if parts and position == 0 else [segment]
            if sum(map(len, [*parts, *added])) > max_tokens(length):
                yield Text(torch.cat(parts), first)
                parts, added = [], [segment]
            first = first if parts else number
            parts += added
    if parts:
        yield Text(torch.cat(parts), first)
