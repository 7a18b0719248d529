"""Splits texts into the word pieces of a BERT tokenizer, with their places, as the tokenizers library does.

The library tracks how each step changes each character. 250 tokens take it 500 µs, and `native/word_pieces.cpp` 20.
That file knows no Unicode: it learns what becomes of each character (`bert_characters.py`) when a text has one of a new
block. A text with characters of many new blocks, or with one that is unsure, is left to the library.
"""

from __future__ import annotations

import ctypes
import warnings
import weakref
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from swiftlet_models.bert_characters import BLOCK, BLOCKS, NORMALISED, characters

FILE: Final = Path(__file__).parent / "native/word_pieces.so"
INTERFACE: Final = 1  # the version of the functions in native/word_pieces.cpp
MOST_PIECE_CHARACTERS: Final = 1 << 22  # of all pieces, which take 60 bytes for each
LARGEST_ID: Final = (1 << 31) - 1
MOST_HELD: Final = 4096  # characters: a longer text releases Python's lock, and takes more than 0.1 ms
MOST_LEARNT: Final = 2  # blocks of characters, for one text: the event loop may wait for it

# As in native/word_pieces.cpp.
LONGEST_WORD: Final = 1000
UNKNOWN_CHARACTER: Final = -1

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
        normaliser, model = tokenizer.normalizer, document["model"]
        self._library = library
        self._characters = characters(
            normaliser.clean_text, normaliser.handle_chinese_chars, normaliser.strip_accents, normaliser.lowercase
        )
        self._learnt = set[int]()
        vocab, prefix = model["vocab"], model["continuing_subword_prefix"]
        longest = model["max_input_chars_per_word"]
        pieces = sorted(piece for piece in vocab if len(piece) <= len(prefix) + longest)
        code_points, ends = _code_points("".join(pieces)), np.array([*accumulate(map(len, pieces))], np.int64)
        ids, start = np.array([vocab[piece] for piece in pieces], np.int32), _code_points(prefix)
        arrays = [array.ctypes.data for array in (code_points, ends, ids, start)]
        self._pieces = library.create(
            arrays[0], len(pieces), *arrays[1:], len(prefix), vocab[model["unk_token"]], longest
        )
        if not self._pieces:
            raise MemoryError
        weakref.finalize(self, library.destroy, self._pieces)
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
            new = {ord(character) // BLOCK for character in set(text)} - self._learnt
            if max(new, default=0) >= BLOCKS:
                return None
            for block in sorted(new)[:MOST_LEARNT]:
                self._learn(block)
            found = encode(self._pieces, code_points, len(text), buffer)
        return rows[:found] if found >= 0 else None

    def _learn(self, block: int) -> None:
        if self._library.learn(self._pieces, block, self._characters.block(block).ctypes.data):
            raise MemoryError
        self._learnt.add(block)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)
