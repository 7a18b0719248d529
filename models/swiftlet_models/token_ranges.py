"""The parts of texts that fit a limit of tokens: overlapping windows, and truncated pairs."""

from __future__ import annotations


def window_ranges(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """Splits `length` tokens into ranges of at most `size` tokens, which overlap by `stride` tokens.

    The ranges cover every token in order. Only the last range may be shorter than `size`. A length of 0 gives one empty
    range. `tokenizers.Encoding.truncate` gives the same result.

    Raises:
        ValueError: `stride` is not less than `size`, so that the windows would not advance.
    """
    if not 0 <= stride < size:
        raise ValueError(f"a stride of {stride} does not fit a window of {size} tokens")
    starts = range(0, max(length - stride, 1), size - stride)
    return [(start, min(start + size, length)) for start in starts]


def mirrored(ranges: list[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Returns the same ranges of `length` tokens, counted from the end: the last tokens come first."""
    return [(length - stop, length - start) for start, stop in ranges]


def pair_lengths(first: int, second: int, limit: int) -> tuple[int, int]:
    """Returns the lengths of a pair of texts after truncation to `limit` tokens together.

    The longer text is cut first, then both in turn. This is `longest_first` of the tokenizers library (truncation.rs).
    """
    if first + second <= limit:
        return first, second
    short = min(first, second)
    long = max(short, limit - short)
    if short + long > limit:
        short, long = limit // 2, limit // 2 + limit % 2
    return (short, long) if first <= second else (long, short)


def first_length(first: int, second: int, limit: int) -> int | None:
    """Returns the length of a pair's first text after its truncation, so that both fit `limit` tokens.

    None if nothing would be left of it. This is `only_first` of the tokenizers library (truncation.rs).
    """
    if first + second <= limit:
        return first
    return limit - second if second < limit else None
