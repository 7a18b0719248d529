"""The sizes of static batches: a batch runs in the smallest bucket that holds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from swiftlet_serve.models.ragged.layout import Sizes

STEP = 16
"""Numbers of tokens are multiples of this: the height of a tile of the GPU's matrix units."""
GROWTH = 1.25
"""A bucket has at most this many times as many tokens as the one before it, which bounds the work on places that no
token fills, except among the smallest."""


def token_counts(longest: int) -> list[int]:
    """Returns the numbers of tokens of all buckets, in ascending order. The last is at least `longest`."""
    counts = [STEP]
    while counts[-1] < longest:
        counts.append(max(counts[-1] + STEP, int(counts[-1] * GROWTH) // STEP * STEP))
    return counts


def buckets(max_tokens: int, max_rows: int, *, every_token: bool) -> Iterator[Sizes]:
    """Yields the buckets, smallest first.

    Args:
        max_tokens, max_rows: limits of a batch.
        every_token: whether the head reads every token. If not, a second bucket of each size has one position in focus
            for each sequence, which is what a head that reads one token or pools needs.
    """
    for tokens in token_counts(max_tokens):
        rows = min(max_rows, tokens)
        if not every_token and rows < tokens:
            yield Sizes(tokens, rows, rows)
        yield Sizes(tokens, rows, tokens)


def choose(sizes: Sizes, available: Sequence[Sizes]) -> Sizes | None:
    """Returns the bucket with the fewest tokens, and then positions, that holds a batch; None if there is none."""
    fitting = [one for one in available if one.holds(sizes)]
    return min(fitting, key=lambda one: (one.tokens, one.focus), default=None)
