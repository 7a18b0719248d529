"""Pairs of segments (SEGMENT-PAIR+NSP in Liu et al. 2019, arXiv:1907.11692, section 4.2): BERT's input.

A text holds two or more consecutive sentences of one document. A sentence objective splits it into two segments, each
with one sentence or more, and may take the second one from another document. A sentence is left out if two of
its length may not fit. No text spans this gap: the place of a cut would reveal the order of the segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from swiftlet_train.pretraining.input_formats import Document, Text
from swiftlet_train.pretraining.objectives.sentence_pairs import PAIR_SPECIALS, pack_chunks

PAIRS: Final = True
FILLS_BATCHES: Final = False


def max_tokens(length: int) -> int:
    """Returns the tokens of both segments at most."""
    return length - PAIR_SPECIALS


def max_segment(length: int) -> int:
    """Returns the tokens of the longest sentence that is used: two must fit."""
    return max_tokens(length) // 2


def pack(documents: Iterable[Document], length: int, sep: int) -> Iterator[Text]:  # noqa: ARG001  # one signature
    """Packs two or more consecutive sentences while they fit. Drops a single sentence before a gap or an end."""
    for number, document in enumerate(documents):
        for run in find_runs(document, max_segment(length)):
            for chunk in pack_chunks(run, max_tokens(length)):
                yield Text(torch.cat(chunk), number)


def find_runs(document: Document, longest: int) -> Iterator[list[Tensor]]:
    """Returns the runs of consecutive sentences that have at most `longest` tokens."""
    for fits, run in groupby(document, key=lambda segment: len(segment) <= longest):
        if fits:
            yield list(run)
