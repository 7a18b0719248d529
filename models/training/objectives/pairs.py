"""Rows of two texts, [CLS] a [SEP] b [SEP], and what is to be said of each pair.

A document is cut into segments (sentences, say), and consecutive ones are packed into chunks that fit a row. A
sentence objective makes a pair of a chunk each time the chunk is seen; pairs are stacked into a batch, whose ids can
then be masked like those of any other rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

FRAME: Final = 3  # special tokens of a pair
PADDING: Final = 0

Chunk = Sequence[Tensor]
"""Two or more consecutive segments of a document, each (n,) ids, n > 0, which together fit a row beside its frame."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two texts and an objective's label."""

    first: Tensor  # (n,)
    second: Tensor  # (m,)
    label: int


@dataclass(frozen=True, eq=False)
class Pairs:
    """A batch of pairs, padded at the end to the longest."""

    input_ids: Tensor  # (B, S)
    token_type_ids: Tensor  # (B, S): 0 up to the first [SEP], 1 after it, 0 for padding
    labels: Tensor  # (B,)


def stack(pairs: Sequence[Pair], *, cls: int, sep: int) -> Pairs:
    """Frames pairs and makes a batch of them."""
    start, end = torch.tensor([cls]), torch.tensor([sep])
    rows = [torch.cat([start, pair.first, end, pair.second, end]) for pair in pairs]
    types = [torch.arange(len(row)) >= len(pair.first) + 2 for row, pair in zip(rows, pairs, strict=True)]
    return Pairs(
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PADDING),
        nn.utils.rnn.pad_sequence([of.long() for of in types], batch_first=True),
        torch.tensor([pair.label for pair in pairs]),
    )


def segments(ids: Tensor, ends: Tensor, longest: int) -> list[Tensor]:
    """Cuts a document's ids (n,) after each run of pieces that end a segment, and where one is longer than `longest`.

    `ends` (V,) tells which pieces do, such as `.`, `?` and `!`.
    """
    ending = ends[ids]
    ending[:-1] &= ~ending[1:]  # of several in a row the last one ends
    cuts = (ending.nonzero()[:, 0] + 1).tolist()
    starts, stops = [0, *cuts], [*cuts, len(ids)]
    whole = [ids[start:stop] for start, stop in zip(starts, stops, strict=True) if start < stop]
    return [segment[at : at + longest] for segment in whole for at in range(0, len(segment), longest)]


def chunks(parts: Sequence[Tensor], room: int) -> Iterator[list[Tensor]]:
    """Packs consecutive segments into chunks of at most `room` tokens; what is left alone at the end is dropped.

    Raises:
        ValueError: a segment is longer than half the room, so that a chunk might hold only one.
    """
    if any(len(part) > room // 2 for part in parts):
        raise ValueError(f"a segment is longer than half of {room} tokens")
    packed: list[Tensor] = []
    for part in parts:
        if sum(map(len, packed)) + len(part) > room:
            yield packed
            packed = []
        packed.append(part)
    if len(packed) > 1:
        yield packed


def cut(chunk: Chunk, generator: torch.Generator) -> int:
    """How many of its segments come first when a chunk is cut in two: any number that leaves none empty is as likely.

    Raises:
        ValueError: the chunk has only one segment.
    """
    if len(chunk) < 2:
        raise ValueError("a chunk of one segment cannot be cut in two")
    return int(torch.randint(1, len(chunk), (), generator=generator))


def toss(generator: torch.Generator) -> bool:
    """True half the time."""
    return bool(torch.randint(2, (), generator=generator))
