"""Full sentences of one document (DOC-SENTENCES in Liu et al. 2019, arXiv:1907.11692, section 4.2).

A text takes consecutive sentences while they fit, and ends with its document. Texts at the end of a document are short,
so a batch takes more of them, until it has as many tokens as a batch of full texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from swiftlet_train.pretraining.input_formats import Document, Text, full_sentences

PAIRS: Final = False
FILLS_BATCHES: Final = True

max_tokens = full_sentences.max_tokens
max_segment = full_sentences.max_segment


def pack(documents: Iterable[Document], length: int, sep: int) -> Iterator[Text]:
    """Packs the sentences of each document while they fit."""
    for number, document in enumerate(documents):
        for text in full_sentences.pack([document], length, sep):
            yield Text(text.ids, number)
