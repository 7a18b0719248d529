"""Input formats, one per file: how the texts of a sequence are taken from documents (Liu et al. 2019, section 4.2).

A file is its registration. It has `PAIRS`, true if a sequence becomes a pair of texts for a sentence objective,
`FILLS_BATCHES`, true if a batch takes as many sequences as fill it, and `pack`, which is pure. The paper is RoBERTa's,
arXiv:1907.11692. The format `blocks`, which cuts documents anywhere, is not from the paper and is part of `corpus`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

Document = Sequence[Tensor]
"""The segments of a document, such as sentences, (n,) ids each, n > 0."""


@dataclass(frozen=True, eq=False)
class Text:
    """The ids of a sequence without the special tokens around them."""

    ids: Tensor
    """(n,)"""
    document: int
    """The number of the document where the text starts, counted from 0."""


class InputFormat(Protocol):
    """A file of this package."""

    PAIRS: bool
    FILLS_BATCHES: bool

    def max_tokens(self, length: int) -> int:
        """Returns the tokens of the longest text in a sequence of `length` tokens."""

    def max_segment(self, length: int) -> int:
        """Returns the tokens of the longest segment in a text."""

    def pack(self, documents: Iterable[Document], length: int, sep: int) -> Iterator[Text]:
        """Packs documents into texts of at most `max_tokens(length)` tokens. `sep` is the id of [SEP].

        Pairs leave out segments longer than `max_segment(length)`. The other formats do not accept them.
        """


def load(name: str) -> InputFormat:
    """Imports an input format."""
    return cast(InputFormat, importlib.import_module(f"{__name__}.{name}"))
