"""Encodings: texts as tokens, and sequences of tokens for a network.

Nothing changes them once they are made: threads share them. Python does not enforce it, because a request has up to
2,048, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Text = str | tuple[str, str]
"""The text of one sequence: a single text, or a pair of texts."""


class TextTooLong(Exception):  # tasks translate it into an error of the API
    """Raised when the text at `index` exceeds the token limit and truncation is off."""

    def __init__(self, index: int, tokens: int):
        super().__init__(f"Text {index} exceeds the token limit.")
        self.index = index
        self.tokens = tokens  # of its whole sequence


class TooManyWindows(Exception):
    """Raised when texts make more windows than the caller allows."""


@dataclass(eq=False)
class Encoding:
    """One sequence for a network, without padding: L tokens. The head reads F of them."""

    input_ids: Ids  # (L,)
    token_type_ids: Ids  # (L,)
    focus: Ids  # (F,): positions that the head reads
    text_index: int = field(default=0, kw_only=True)  # of the text, or the pair, among those that were encoded
    left_out: int = field(default=0, kw_only=True)  # tokens of the text, or the pair, that were cut off
    own_left_out: tuple[int, ...] = field(default=(), kw_only=True)  # those that each text lost to a limit of its own
    attended: int | None = field(default=None, kw_only=True)  # tokens that tokens attend to, the first ones; None: all
    head: int = field(default=0, kw_only=True)  # that reads the sequence, among those of the network's trunk
    member: int = field(default=0, kw_only=True)  # whose network reads it, if several models answer as one
    looked_up: bool = field(default=False, kw_only=True)  # whether its answer needs no row of the network
    kept: bytes | None = field(default=None, kw_only=True)  # what finds its row, which is kept for other requests

    @property
    def attends_to(self) -> int:
        """The number of tokens, from the first one on, that tokens attend to."""
        return len(self.input_ids) if self.attended is None else self.attended


def kept(encoding: Encoding) -> Encoding:
    """Returns a sequence whose row is kept for later requests, found by a digest of all that makes it."""
    sizes = len(encoding.input_ids), len(encoding.focus), encoding.attends_to, encoding.head
    parts = (encoding.input_ids, encoding.token_type_ids, encoding.focus)
    read = b"".join([b"%d %d %d %d " % sizes, *(part.tobytes() for part in parts)])
    return replace(encoding, kept=blake2b(read, digest_size=32).digest())


def keys_of(encodings: Sequence[Encoding]) -> list[bytes | int]:
    """Returns what tells apart the rows of sequences: the digest of one that is kept, or else its place."""
    return [encoding.kept or place for place, encoding in enumerate(encodings)]


def distinct(encodings: Sequence[Encoding]) -> dict[bytes | int, Encoding]:
    """Returns the sequences that are computed, by their keys. Equal ones that are kept are one."""
    return dict(zip(keys_of(encodings), encodings, strict=True))


@dataclass(eq=False)
class TokenizedText:
    """A text as n tokens, without special tokens."""

    ids: Ids  # (n,)
    offsets: Ids  # (n, 2): start and end of each token in code points of the original text
    word_ids: Ids  # (n,): index of the word that each token is part of, in ascending order
    left_out: int = 0  # tokens of the text that were cut

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> TokenizedText:
        """Returns the tokens from `start` up to `stop`. Their offsets still refer to the whole text."""
        return TokenizedText(self.ids[start:stop], self.offsets[start:stop], self.word_ids[start:stop])


@dataclass(eq=False)
class Window(Encoding):
    """A question and C consecutive tokens of its context. The head reads all L tokens."""

    question_index: int  # of the question in the request
    context_start: int  # position of the first context token in the sequence
    context: TokenizedText  # the whole context, which its windows share
    part: range  # of its tokens, of length C
    takes_space: bool  # whether the part begins with the space before its first token

    @property
    def token_spans(self) -> Ids:
        """Start and end of each context token in the context, in code points, (C, 2)."""
        spans = self.context.offsets[self.part.start : self.part.stop]
        if self.takes_space:
            spans = spans.copy()
            spans[0, 0] -= 1
        return spans

    def span(self, first: int, last: int, *, words: bool) -> tuple[int, int]:
        """Returns start and end in the context of two of the context tokens and those between, in code points.

        With `words`, the span extends to the words of both tokens, as far as the window holds them.
        """
        first, last = self.part[first], self.part[last]
        if words:
            ids = self.context.word_ids.data
            first = bisect_left(ids, ids[first], self.part.start, first)
            last = bisect_right(ids, ids[last], last, self.part.stop) - 1
        takes_space = self.takes_space and first == self.part.start
        return self.context.offsets.item(first, 0) - takes_space, self.context.offsets.item(last, 1)


@dataclass(eq=False)
class Chunk(Encoding):
    """F consecutive tokens of a text, as a sequence of their own. The head reads them, and no special token."""

    tokens: TokenizedText  # F tokens; their offsets refer to the whole text
