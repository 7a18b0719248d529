"""Counts the items and fields of a JSON text without parsing it."""

from __future__ import annotations

import numpy as np

QUOTE, COMMA, LIST, OBJECT = b'",[{'


def exceeds(text: bytes | bytearray, limit: int) -> bool:
    """Returns whether the lists and objects of a JSON text have more than `limit` items and fields together.

    Every one but the first of a list or object follows a comma. An empty list or object counts as one. Of an invalid
    text, at least the items before the first error count: those that a parser would read.
    """
    if len(text) <= limit or text.count(b",") + text.count(b"[") + text.count(b"{") <= limit:
        return False
    if b"\\" in text:  # outside of strings, it ends what a parser reads
        text = text.replace(b"\\\\", b"--").replace(b'\\"', b"--")
    characters = np.frombuffer(text, np.uint8)
    in_string = np.cumsum(characters == QUOTE, dtype=np.uint8) & 1  # the parity survives the overflow
    counted = (characters == COMMA) | (characters == LIST) | (characters == OBJECT)
    return int(np.count_nonzero(counted & (in_string == 0))) > limit
