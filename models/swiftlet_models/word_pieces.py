"""Splits texts into the word pieces of a BERT tokenizer, with their places, as the tokenizers library does.

The library tracks how each step changes each character. 250 tokens take it 500 µs, and `native/word_pieces.cpp` 20.
That file knows no Unicode. The library is asked what becomes of a character, once for each 256 characters. This is
enough because the steps of these tokenizers treat each character by itself, with one exception: the canonical order of
combining marks. A text with a mark that stays and may move is left to the library.
"""

from __future__ import annotations

import ctypes
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, chain, count
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

FILE: Final = Path(__file__).parent / "native/word_pieces.so"
INTERFACE: Final = 1  # the version of the functions in native/word_pieces.cpp
MOST_PIECE_CHARACTERS: Final = 1 << 22  # of all pieces, which take 60 bytes for each
LARGEST_ID: Final = (1 << 31) - 1
MOST_HELD: Final = 4096  # characters: a longer text releases Python's lock, and takes more than 0.1 ms

# As in native/word_pieces.cpp.
BLOCK: Final = 256
BLOCKS: Final = 0x400
NORMALISED: Final = 3
LETTER, SPACE, MARK, UNSURE = (kind << 21 for kind in (1, 2, 3, 4))
LONGEST_WORD: Final = 1000
UNKNOWN_CHARACTER: Final = -1

NFD: Final = tokenizers.normalizers.NFD()
LAST_MARK: Final = "\u0345"  # any other mark that may move goes before it
FENCES: Final = ("|", "\u2016")  # that no character becomes, except those of the first block; the second is for that

Rows = NDArray[np.int32]


class _Library(NamedTuple):
    """The compiled functions."""

    create: Any
    destroy: Any
    learn: Any
    encode: Any  # releases Python's lock
    encode_briefly: Any  # holds it


@cache
def _library() -> _Library | None:
    """Returns the compiled functions, or None if this platform and version have none."""
    try:
        c, holding = ctypes.CDLL(str(FILE)), ctypes.PyDLL(str(FILE))
    except OSError:
        return None
    if not hasattr(c, "swiftlet_word_pieces_interface") or c.swiftlet_word_pieces_interface() != INTERFACE:
        warnings.warn(f"{FILE.name} was compiled for another version of Swiftlet. Install it again.", stacklevel=2)
        return None
    pointer, number, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    create, destroy, learn = (getattr(c, f"swiftlet_word_pieces_{name}") for name in ("create", "destroy", "learn"))
    create.argtypes = [pointer, size, pointer, pointer, pointer, size, size, size]
    create.restype = pointer
    destroy.argtypes, learn.argtypes = [pointer], [pointer, size, pointer]
    encode, encode_briefly = c.swiftlet_word_pieces_encode, holding.swiftlet_word_pieces_encode
    for function in (encode, encode_briefly):
        function.argtypes = [pointer, ctypes.c_char_p, number, pointer]
        function.restype = number
    return _Library(create, destroy, learn, encode, encode_briefly)


class WordPieces:
    """The vocabulary of a WordPiece model, and what becomes of each character. Threads may share it."""

    def __init__(self, library: _Library, document: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> None:
        """Reads a `tokenizer.json`, and its tokenizer.

        Raises:
            MemoryError: there is not enough memory.
        """
        normalizer, model = document["normalizer"], document["model"]
        self._library = library
        self._normalise = tokenizer.normalizer.normalize_str
        self._split = tokenizer.pre_tokenizer.pre_tokenize_str
        strips = normalizer.get("strip_accents")
        self._sorts_marks = normalizer["lowercase"] if strips is None else strips
        vocab, prefix = model["vocab"], model["continuing_subword_prefix"]
        longest = model["max_input_chars_per_word"]
        pieces = sorted(piece for piece in vocab if len(piece) <= len(prefix) + longest)
        characters, ends = _code_points("".join(pieces)), np.array([*accumulate(map(len, pieces))], np.int64)
        ids, start = np.array([vocab[piece] for piece in pieces], np.int32), _code_points(prefix)
        arrays = [array.ctypes.data for array in (characters, ends, ids, start)]
        self._pieces = library.create(
            arrays[0], len(pieces), *arrays[1:], len(prefix), vocab[model["unk_token"]], longest
        )
        if not self._pieces:
            raise MemoryError
        weakref.finalize(self, library.destroy, self._pieces)
        self._learned: set[int] = set()
        self._learn(0)

    @classmethod
    def of(cls, document: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> WordPieces | None:
        """Returns the word pieces of a `tokenizer.json` and its tokenizer.

        None if it is not a BERT tokenizer, if it may find added tokens in a text, or without a compiled library.
        """
        normalizer, model = document["normalizer"] or {}, document["model"]
        suits = (
            normalizer.get("type") == "BertNormalizer"
            and document["pre_tokenizer"] == {"type": "BertPreTokenizer"}
            and model["type"] == "WordPiece"
            and model["unk_token"] in model["vocab"]
            and model["max_input_chars_per_word"] <= LONGEST_WORD
            and sum(map(len, model["vocab"])) <= MOST_PIECE_CHARACTERS
            and max(model["vocab"].values()) <= LARGEST_ID
            and all(token["special"] for token in document["added_tokens"])
        )
        library = _library() if suits else None
        return cls(library, document, tokenizer) if library else None

    def encode(self, text: str) -> Rows | None:
        """Returns the tokens of a text, (n, 4): id, start and end in code points, and the number of the word.

        None for a text that is left to the library.
        """
        if not text:
            return np.empty((0, 4), np.int32)
        try:
            code_points = text.encode("utf-32-le")
        except UnicodeEncodeError:  # half of a surrogate pair
            return None
        rows = np.empty((NORMALISED * len(text), 4), np.int32)
        buffer = ctypes.byref(ctypes.c_char.from_buffer(rows.data))
        encode = self._library.encode_briefly if len(text) <= MOST_HELD else self._library.encode
        found = encode(self._pieces, code_points, len(text), buffer)
        if found == UNKNOWN_CHARACTER:
            blocks = {ord(character) // BLOCK for character in set(text)}
            if max(blocks) >= BLOCKS:
                return None
            for block in blocks - self._learned:
                self._learn(block)
            found = encode(self._pieces, code_points, len(text), buffer)
        return rows[:found] if found >= 0 else None

    def _learn(self, block: int) -> None:
        """Asks what becomes of each character of a block. The library takes 2 ms for all at once, and 6 one by one."""
        fence = FENCES[block == 0]
        characters = [chr(code) for code in range(block * BLOCK, (block + 1) * BLOCK)]
        normalised = _each(self._normalise, characters, fence)
        kinds = self._kinds(sorted({*chain.from_iterable(normalised)}))
        decomposed = _each(NFD.normalize_str, characters, fence)
        moving = self._moving_marks(sorted({*chain.from_iterable(decomposed)}), fence)
        found = np.zeros((BLOCK, NORMALISED), np.uint32)
        for row, one, parts in zip(found, normalised, decomposed, strict=True):
            is_sure = len(one) <= NORMALISED and moving.isdisjoint(parts)
            if is_sure:
                row[: len(one)] = [ord(part) | kinds[part] for part in one]
            else:
                row[0] = UNSURE
        if self._library.learn(self._pieces, block, found.ctypes.data):
            raise MemoryError
        self._learned.add(block)

    def _kinds(self, characters: Sequence[str]) -> dict[str, int]:
        """Returns the kind of each character, by how the library splits it from a letter before it."""
        words = self._split("".join(f"a{one} " for one in characters))
        ends = {start: end for _, (start, end) in words}
        return {
            one: LETTER if ends[at] == at + 2 else MARK if at + 1 in ends else SPACE
            for at, one in zip(count(0, 3), characters)
        }

    def _moving_marks(self, marks: Sequence[str], fence: str) -> set[str]:
        """Returns the marks that stay in the text, and may change places with other marks."""
        if not self._sorts_marks:
            return set()
        ordered = _each(NFD.normalize_str, [LAST_MARK + mark for mark in marks], fence)
        kept = _each(self._normalise, marks, fence)
        return {mark for mark, pair, stays in zip(marks, ordered, kept, strict=True) if pair[0] != LAST_MARK and stays}


def _each(normalise: Callable[[str], str], texts: Iterable[str], fence: str) -> list[str]:
    """Returns what becomes of each of some texts, in one call. No step looks beyond the fence between two texts."""
    return normalise(fence.join(texts)).split(fence)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
