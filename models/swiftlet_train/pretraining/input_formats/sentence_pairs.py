"""Pairs of sentences (SENTENCE-PAIR+NSP in Liu et al. 2019, arXiv:1907.11692, section 4.2).

A text holds two consecutive sentences of one document. A sentence objective may take the second one from another
document. Pairs of sentences are short, so a batch takes more of them, until it has as many tokens as a batch of full
sequences. Sentences that are too long are left out, as in `segment_pairs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import torch

from swiftlet_train.pretraining.input_formats import Document, Text, segment_pairs

PAIRS: Final = True
FILLS_BATCHES: Final = True

max_tokens = segment_pairs.max_tokens
max_segment = segment_pairs.max_segment


def pack(documents: Iterable[Document], length: int, sep: int) -> Iterator[Text]:  # noqa: ARG001  # one signature
    """Packs each two consecutive sentences. Drops a single sentence before a gap or an end."""
    for number, document in enumerate(documents):
        for run in segment_pairs.find_runs(document, max_segment(length)):
            for first, second in zip(run[::2], run[1::2], strict=False):
                yield Text(torch.cat([first, second]), number)
