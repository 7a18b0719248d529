"""Counts the items and fields of a JSON text without parsing it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

QUOTE, COMMA, COLON, LIST, OBJECT = b'",:[{'
FEW: Final = 4096
"""Items that take little time to parse whatever they are."""
MAX_FIELDS: Final = 3 * FEW
"""Lists, objects and fields of a text with more items. Each of them costs several times as much as a plain item."""
MAX_NESTED: Final = 2 * FEW
"""Lists and objects of a text with more items. pydantic copies them into its errors, once for each type of a union."""
MAX_DIGITS: Final = 18
"""Digits of a number in a text with more items. Larger integers cost microseconds each."""
SHORT: Final = 65_536
"""Bytes of a text whose numbers take little time to parse if its items are few."""
HUGE: Final = 400
"""Digits of a number in a longer text. The time to parse an integer grows with the square of its digits."""


def exceeds(text: bytes | bytearray, limit: int) -> bool:
    """Returns whether a JSON text has more than `limit` items of lists and fields of objects, or too costly ones.

    Every one but the first of a list or object follows a comma. An empty list or object counts as one. Of an invalid
    text, at least the items before the first error count: those that a parser would read.
    """
    few = min(limit, FEW)
    if len(text) <= few:
        return False
    has_few = text.count(b",") + text.count(b"[") + text.count(b"{") <= few
    if has_few and len(text) <= SHORT:
        return False
    digits = np.frombuffer(text, np.uint8) - 48 < 10  # unsigned, so that others are above 9
    if has_few and not _has_run(digits, HUGE):
        return False
    if b"\\" in text:  # outside of strings, it ends what a parser reads
        text = text.replace(b"\\\\", b"--").replace(b'\\"', b"--")
    characters = np.frombuffer(text, np.uint8)
    outside = np.cumsum(characters == QUOTE, dtype=np.uint8) & 1 == 0  # the parity survives the overflow
    commas, fields, nested = (_count(characters, outside, *kinds) for kinds in ((COMMA,), (COLON,), (LIST, OBJECT)))
    if commas + nested <= few:
        return len(text) > SHORT and _has_run(digits & outside, HUGE)
    if commas + nested > limit or nested > MAX_NESTED or fields + nested > MAX_FIELDS:
        return True
    return _has_run(digits & outside, MAX_DIGITS)


def _count(characters: NDArray[np.uint8], outside: NDArray[np.bool_], *kinds: int) -> int:
    return sum(int(np.count_nonzero((characters == kind) & outside)) for kind in kinds)


def _has_run(digits: NDArray[np.bool_], size: int) -> bool:
    """Returns whether `digits` has a run of more than `size` true values."""
    if np.count_nonzero(digits) <= size:
        return False
    counts = np.cumsum(digits, dtype=np.int32)
    return bool((counts[size + 1 :] - counts[: -size - 1] > size).any())
