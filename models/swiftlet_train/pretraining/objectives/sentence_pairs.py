"""Pairs of texts, [CLS] a [SEP] b [SEP], with a label for a sentence objective.

A document is cut into segments, such as sentences. Consecutive segments are packed into chunks that fit one sequence. A
sentence objective makes a new pair of a chunk each time, and a batch of pairs is then masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

SINGLE_SPECIALS: Final = 2  # special tokens of a single text
PAIR_SPECIALS: Final = 3  # special tokens of a pair
PAD_ID: Final = 0

Chunk = Sequence[Tensor]
"""Two or more consecutive segments of a document, (n,) ids each, n > 0, which together fit one sequence."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two texts and the label of a sentence objective."""

    first: Tensor
    """(n,)"""
    second: Tensor
    """(m,)"""
    label: int


@dataclass(frozen=True, eq=False)
class Pairs:
    """A batch of pairs, padded to the longest."""

    input_ids: Tensor
    """(B, S)"""
    token_type_ids: Tensor
    """(B, S): 0 up to the first [SEP], 1 after it, and 0 for padding."""
    labels: Tensor
    """(B,)"""


def stack(pairs: Sequence[Pair], *, cls: int, sep: int) -> Pairs:
    """Adds the special tokens to pairs and pads them to a batch."""
    start, end = torch.tensor([cls]), torch.tensor([sep])
    rows = [torch.cat([start, pair.first, end, pair.second, end]) for pair in pairs]
    types = [torch.arange(len(row)) >= len(pair.first) + 2 for row, pair in zip(rows, pairs, strict=True)]
    return Pairs(
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID),
        nn.utils.rnn.pad_sequence([row.long() for row in types], batch_first=True),
        torch.tensor([pair.label for pair in pairs]),
    )


def split_segments(ids: Tensor, ends: Tensor, max_tokens: int) -> list[Tensor]:
    """Splits a document's ids (n,) after pieces that end a segment, and cuts segments longer than `max_tokens`.

    `ends` (V,) is true for pieces that end a segment, such as `.`, `?` and `!`.
    """
    ending = ends[ids]
    ending[:-1] &= ~ending[1:]  # only the last of several consecutive ends counts
    cuts = (ending.nonzero()[:, 0] + 1).tolist()
    starts, stops = [0, *cuts], [*cuts, len(ids)]
    segments = [ids[start:stop] for start, stop in zip(starts, stops, strict=True) if start < stop]
    return [segment[start : start + max_tokens] for segment in segments for start in range(0, len(segment), max_tokens)]


def pack_chunks(segments: Sequence[Tensor], max_tokens: int) -> Iterator[list[Tensor]]:
    """Packs consecutive segments into chunks of at most `max_tokens`. Drops a single segment at the end.

    Raises:
        ValueError: a segment is longer than half of `max_tokens`, so a chunk might hold only one.
    """
    if any(len(segment) > max_tokens // 2 for segment in segments):
        raise ValueError(f"a segment is longer than half of {max_tokens} tokens")
    packed: list[Tensor] = []
    for segment in segments:
        if sum(map(len, packed)) + len(segment) > max_tokens:
            yield packed
            packed = []
        packed.append(segment)
    if len(packed) > 1:
        yield packed


def draw_split(chunk: Chunk, generator: torch.Generator) -> int:
    """Draws the number of segments in the first part of a split chunk, uniformly. Neither part is empty.

    Raises:
        ValueError: the chunk has only one segment.
    """
    if len(chunk) < 2:
        raise ValueError("a chunk of one segment cannot be split")
    return int(torch.randint(1, len(chunk), (), generator=generator))


def flip_coin(generator: torch.Generator) -> bool:
    """Returns true with a probability of one half."""
    return bool(torch.randint(2, (), generator=generator))
