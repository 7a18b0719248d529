"""What the normaliser and the pre-tokenizer of BERT make of each character, as the tokenizers library does it.

The steps treat each character by itself, with one exception: the canonical order of combining marks. A character with a
mark that stays and may move is unsure. The library is asked for 256 characters in a few calls, which take 1 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

# As in native/word_pieces.cpp.
BLOCK: Final = 256
BLOCKS: Final = 0x400
NORMALISED: Final = 3
LETTER, SPACE, MARK, UNSURE = (kind << 21 for kind in (1, 2, 3, 4))

SURROGATES: Final = range(0xD800, 0xE000)
LAST_MARK: Final = "\u0345"  # any other mark that may move goes before it
SEPARATORS: Final = "0ж"  # characters that no step changes, and that no other character becomes

Block = NDArray[np.uint32]
Normalise = Callable[[str], str]

canonical: Final[Normalise] = NFD().normalize_str
split: Final = BertPreTokenizer().pre_tokenize_str


class Characters:
    """What becomes of each character with one normaliser. Threads may share it."""

    def __init__(self, normaliser: BertNormalizer) -> None:
        self._normalise: Normalise = normaliser.normalize_str
        strips = normaliser.strip_accents
        self._sorts_marks = normaliser.lowercase if strips is None else strips
        self.block = lru_cache(BLOCKS)(self._block)
        """Returns what becomes of the characters from BLOCK * number on, (BLOCK, NORMALISED): code points with their
        kind. 0 stands for none."""

    def _block(self, number: int) -> Block:
        codes = range(number * BLOCK, (number + 1) * BLOCK)
        unsure = (UNSURE, 0, 0)
        if codes[0] in SURROGATES:
            return np.array([unsure] * BLOCK, np.uint32)
        characters, separator = [chr(code) for code in codes], SEPARATORS[number == 0]
        moving = self._moving(characters, separator) if self._sorts_marks else set()
        normalised = _each(self._normalise, characters, separator)
        kinds = _kinds(set("".join(normalised)))
        rows = [
            (*[ord(one) | kinds[one] for one in becomes], 0, 0, 0)[:NORMALISED]
            if len(becomes) <= NORMALISED and moving.isdisjoint(parts)
            else unsure
            for parts, becomes in zip(_each(canonical, characters, separator), normalised, strict=True)
        ]
        return np.array(rows, np.uint32)

    def _moving(self, characters: Iterable[str], separator: str) -> set[str]:
        """Returns the marks in characters that stay in the text, and may change places with other marks."""
        marks = sorted(set(canonical("".join(characters))))
        sorted_ = _each(canonical, [LAST_MARK + mark for mark in marks], separator)
        moved = [mark for mark, pair in zip(marks, sorted_, strict=True) if pair[0] != LAST_MARK]
        return {mark for mark, stays in zip(moved, _each(self._normalise, moved, separator), strict=True) if stays}


@cache
def characters(clean_text: bool, chinese: bool, strips_accents: bool | None, lowercase: bool) -> Characters:
    """Returns what becomes of each character with the normaliser of these settings."""
    return Characters(BertNormalizer(clean_text, chinese, strips_accents, lowercase))


def _each(normalise: Normalise, texts: Iterable[str], separator: str) -> list[str]:
    """Normalises texts in one call."""
    texts = list(texts)
    return normalise(separator.join(texts)).split(separator) if texts else []


def _kinds(given: set[str]) -> dict[str, int]:
    """Returns the kind of each character that may be in a normalised text."""
    ordered = sorted(given)
    ends = dict(place for _, place in split("".join(f"a{character} " for character in ordered)))
    return {
        character: MARK if start + 1 in ends else LETTER if ends[start] > start + 1 else SPACE
        for start, character in zip(range(0, 3 * len(ordered), 3), ordered, strict=True)
    }
