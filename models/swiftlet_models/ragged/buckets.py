"""The sizes of static batches: a batch runs in the smallest bucket that holds it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from swiftlet_models.artifact import Head
from swiftlet_models.ragged.layout import Sizes

STEP: Final = 16
"""Numbers of tokens are multiples of this: the height of a tile of the GPU's matrix units."""
GROWTH: Final = 1.25
"""A bucket has at most this many times the tokens of the previous bucket. This bounds the work on places that no token
fills, except among the smallest. Powers of two are among them: batches of as many tokens are common, and divide
among multiprocessors."""
TOKENS_OF_A_MASK: Final = 16
"""Tokens for each position that a head with a vocabulary reads, in the bucket for few positions. Its product is so wide
that for every token it would take nearly as long as all layers of a MobileBERT."""


def token_counts(longest: int) -> list[int]:
    """Returns the numbers of tokens of all buckets, in ascending order. The last is at least `longest`."""
    counts = [STEP]
    while counts[-1] < longest:
        power = 1 << (counts[-1].bit_length() - 1)
        counts.append(counts[-1] + max(STEP, int(power * (GROWTH - 1))))
    return counts


def buckets(max_tokens: int, max_rows: int, head: Head) -> Iterator[Sizes]:
    """Yields the buckets, smallest first.

    Args:
        max_tokens, max_rows: limits of a batch.
        head: says how many positions are in focus. A head for tokens reads all. Others read one of each sequence, those
            with a vocabulary mostly fewer than one of 16 tokens, and `causal_lm` also all.
    """
    for tokens in token_counts(max_tokens):
        rows = min(max_rows, tokens)
        few = -(-tokens // TOKENS_OF_A_MASK // STEP) * STEP  # a multiple of STEP
        counts: dict[Head, tuple[int, ...]] = {
            "token": (tokens,),
            "masked_lm": (min(few, rows), rows),
            "causal_lm": (min(few, rows), rows, tokens),
        }
        for focus in sorted(set(counts.get(head, (rows,)))):
            yield Sizes(tokens, rows, focus)


def choose(sizes: Sizes, available: Sequence[Sizes]) -> Sizes | None:
    """Returns the bucket with the fewest tokens, and then positions, that holds a batch; None if no bucket does.

    The available buckets are in the order of `buckets`.
    """
    first = bisect_left(available, sizes.tokens, key=lambda bucket: bucket.tokens)
    return next((bucket for bucket in islice(available, first, None) if bucket.holds(sizes)), None)
