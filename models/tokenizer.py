"""Text to token ids and back, with transformers' ids and character offsets, on the `tokenizers` library.

Two things differ from transformers on purpose. Text that looks like a special token is text: nobody can smuggle a
[SEP] into a row (the mask is the exception, where the caller asks for it). And work is bounded before it is done: at
most `CHARACTERS_PER_TOKEN` characters are read for each token there is room for.

A `Tokenizer` is never changed after it is made, so threads may share it. All calls go through `encode_batch`, which
lets go of the interpreter lock; `encode` does not.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray

from swiftlet_serve.models.vocabulary import TokenizerError, read_directory

CHARACTERS_PER_TOKEN: Final = 32  # English prose has 4 to 5; only floods of blanks or endless words have more

Ids = NDArray[np.int64]
Text = str | tuple[str, str]
"""What becomes one row: a text, or a pair of texts."""


class TooLong(Exception):  # a fact about a text, which a task turns into its own error
    """The text at `index` has more tokens than there is room for, and truncation was not wanted."""

    def __init__(self, index: int):
        super().__init__(f"Text {index} has more tokens than there is room for.")
        self.index = index


@dataclass(frozen=True, eq=False)
class Encoding:
    """One row for a network, without padding: L tokens, of which the head reads F."""

    input_ids: Ids  # (L,)
    token_type_ids: Ids  # (L,)
    focus: Ids  # (F,): positions whose rows the head reads


@dataclass(frozen=True, eq=False)
class Window(Encoding):
    """A question and C consecutive tokens of its context. All L tokens are in focus."""

    item: int  # which question of the request
    first: int  # the position of the first of the C context tokens
    tokens: Ids  # (C, 2): where each context token starts and ends in the context, in code points
    words: Ids  # (C, 2): the same of the word it is part of, as far as the window holds that word


@dataclass(frozen=True, eq=False)
class Reading:
    """A text as n tokens, before it is framed with special tokens."""

    ids: Ids  # (n,)
    offsets: Ids  # (n, 2): start and end of each token in code points of the original text
    words: Ids  # (n,): the number of the word each token is part of; never falls

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Slot:
    """One place of a row's frame: a special token, or (when `special` is None) a whole text."""

    special: int | None
    sequence: int  # which text: 0 or 1
    token_type: int


def windows(length: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Cuts `length` tokens into ranges of at most `room`, each repeating the last `stride` of the one before.

    The ranges cover every token, in order, and only the last may be shorter than `room`; no tokens make one empty
    range. Equal to `tokenizers.Encoding.truncate`.

    Raises:
        ValueError: `stride` is not less than `room`, so that windows would not advance.
    """
    if not 0 <= stride < room:
        raise ValueError(f"a stride of {stride} does not fit a window of {room} tokens")
    step = room - stride
    starts = range(0, max(length - stride, 1), step)
    return [(start, min(start + room, length)) for start in starts]


def shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of a pair are kept when both must fit `room`: the longer is cut first, then both alike.

    This is `longest_first` as the tokenizers library (truncation.rs) understands it.
    """
    if first + second <= room:
        return first, second
    short = min(first, second)
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (short, long) if first <= second else (long, short)


class Tokenizer:
    """What a `tokenizer.json` describes, for single texts, pairs and long contexts."""

    def __init__(self, document: dict[str, Any]):
        # Truncation and padding are decided here and by the engine, whatever the file says.
        self._document = document | {"truncation": None, "padding": None}
        self._whole = _build(self._document)
        self._text = _build(_without_specials(self._document, keep=None))
        self._frames = {False: self._probe(pair=False), True: self._probe(pair=True)}
        self.specials = frozenset(token["id"] for token in self._document["added_tokens"] if token["special"])
        self.mask = self._first_known("[MASK]", "<mask>")
        self.mask_id = None if self.mask is None else self._whole.token_to_id(self.mask)
        pad = self._first_known("[PAD]", "<pad>")
        self.pad_id = None if pad is None else self._whole.token_to_id(pad)
        self.vocab_size: int = self._whole.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Reads a `tokenizer.json`, as an artifact holds it.

        Raises:
            TokenizerError: the file is not one.
        """
        try:
            return cls(json.loads(path.read_text("utf-8")))
        except Exception as error:  # the library raises bare Exception for whatever it cannot read
            raise TokenizerError(f"{path.name} is not a tokenizer: {error}") from error

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Makes the tokenizer of a transformers checkpoint.

        Raises:
            TokenizerError: the directory has none that can be used.
        """
        return cls(json.loads(read_directory(path).to_str()))

    def save(self, path: Path) -> None:
        """Writes a `tokenizer.json` that `load` reads back as the same tokenizer."""
        path.write_text(json.dumps(self._document, ensure_ascii=False), "utf-8")

    def encode(
        self, texts: Sequence[Text], max_tokens: int, *, truncate: bool = True, mask: bool = False
    ) -> list[Encoding]:
        """One row for each text or pair, of at most `max_tokens` tokens, special tokens included.

        In focus is the first token; with `mask`, the places of the mask token, which then is more than text.

        Raises:
            TooLong: a text does not fit and `truncate` is false.
        """
        most = CHARACTERS_PER_TOKEN * max_tokens
        parts = [(text,) if isinstance(text, str) else text for text in texts]
        flat = [part[:most] for pair in parts for part in pair]
        encoded = iter((self._masked if mask else self._text).encode_batch_fast(flat, add_special_tokens=False))
        rows = []
        for index, pair in enumerate(parts):
            ids = [next(encoded).ids for _ in pair]
            kept = self._cut(ids, max_tokens)
            whole = all(len(part) <= most for part in pair) and list(map(len, ids)) == list(map(len, kept))
            if not (truncate or whole):
                raise TooLong(index)
            rows.append(self._row(kept, mask=mask))
        return rows

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """The tokens of whole texts, however long, with their offsets; the caller bounds the work."""
        return [
            Reading(
                ids=_array(encoding.ids),
                offsets=_array(encoding.offsets).reshape(-1, 2),
                words=_array(encoding.word_ids),
            )
            for encoding in self._text.encode_batch(list(texts), add_special_tokens=False)
        ]

    def room(self, question: Reading, max_tokens: int) -> int:
        """How many context tokens fit beside a question; may be negative."""
        return max_tokens - self.special_count(pair=True) - len(question)

    def windows(self, question: Reading, context: Reading, item: int, room: int, stride: int) -> list[Window]:
        """A question before overlapping stretches of its context, each of at most `room` context tokens.

        Raises:
            ValueError: `stride` is not less than `room`.
        """
        return [
            self._window(question, context, item, start, stop) for start, stop in windows(len(context), room, stride)
        ]

    def special_count(self, *, pair: bool) -> int:
        """How many special tokens frame a text, or a pair."""
        return sum(slot.special is not None for slot in self._frames[pair])

    def token_to_id(self, token: str) -> int | None:
        """The id of exactly this token, None where the vocabulary lacks it."""
        identity: int | None = self._whole.token_to_id(token)
        return identity

    @property
    def pieces(self) -> list[str]:
        """Every token there is, by its id."""
        return [self._whole.id_to_token(number) or "" for number in range(self.vocab_size)]

    def decode(self, rows: Sequence[Sequence[int]], *, skip_specials: bool = False) -> list[str]:
        """The text of each row of ids, as transformers' `decode` gives it."""
        texts: list[str] = self._whole.decode_batch([list(row) for row in rows], skip_special_tokens=skip_specials)
        return texts

    @functools.cached_property
    def _masked(self) -> tokenizers.Tokenizer:
        """Made when first wanted: only fill-mask needs it."""
        return _build(_without_specials(self._document, keep=self.mask))

    def _first_known(self, *tokens: str) -> str | None:
        return next((token for token in tokens if self._whole.token_to_id(token) is not None), None)

    def _probe(self, *, pair: bool) -> list[Slot]:
        """Reads the frame off a tokenised example, which works for every post-processor there is."""
        example = self._text.encode("a", "a" if pair else None)
        slots: list[Slot] = []
        for identity, special, sequence, token_type in zip(
            example.ids, example.special_tokens_mask, example.sequence_ids, example.type_ids, strict=True
        ):
            slot = Slot(identity if special else None, sequence or 0, token_type)
            if special or slot not in slots:
                slots.append(slot)
        return slots

    def _cut(self, ids: list[list[int]], max_tokens: int) -> list[list[int]]:
        room = max_tokens - self.special_count(pair=len(ids) == 2)
        kept = (room,) if len(ids) == 1 else shares(len(ids[0]), len(ids[1]), room)
        return [part[:length] for part, length in zip(ids, kept, strict=True)]

    def _row(self, parts: Sequence[Sequence[int]], *, mask: bool) -> Encoding:
        input_ids, token_type_ids, _ = self._frame(parts)
        focus = np.flatnonzero(input_ids == self.mask_id) if mask else np.zeros(1, np.int64)
        return Encoding(input_ids, token_type_ids, focus)

    def _window(self, question: Reading, context: Reading, item: int, start: int, stop: int) -> Window:
        input_ids, token_type_ids, firsts = self._frame([question.ids, context.ids[start:stop]])
        tokens = context.offsets[start:stop]
        return Window(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            focus=np.arange(len(input_ids)),
            item=item,
            first=firsts[1],
            tokens=tokens,
            words=_word_spans(tokens, context.words[start:stop]),
        )

    def _frame(self, parts: Sequence[Sequence[int] | Ids]) -> tuple[Ids, Ids, list[int]]:
        """Input ids, token type ids, and where each text begins."""
        slots = self._frames[len(parts) == 2]
        pieces = [parts[slot.sequence] if slot.special is None else (slot.special,) for slot in slots]
        length, end = sum(map(len, pieces)), 0
        input_ids, token_type_ids, firsts = np.empty(length, np.int64), np.empty(length, np.int64), []
        for slot, piece in zip(slots, pieces, strict=True):
            start, end = end, end + len(piece)
            input_ids[start:end], token_type_ids[start:end] = piece, slot.token_type
            if slot.special is None:
                firsts.append(start)
        return input_ids, token_type_ids, firsts


def _array(values: Any) -> Ids:
    return np.array(values, np.int64)


def _word_spans(tokens: Ids, words: Ids) -> Ids:
    """For each token, where the word that holds it starts and ends."""
    first = np.searchsorted(words, words, side="left")
    last = np.searchsorted(words, words, side="right") - 1
    return np.stack([tokens[first, 0], tokens[last, 1]], axis=1)


def _build(document: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.encode_special_tokens = True  # "encode" in the sense of: treat as text
    return tokenizer


def _without_specials(document: dict[str, Any], keep: str | None) -> dict[str, Any]:
    """The same tokenizer, for which no special token but `keep` can come out of a text.

    `encode_special_tokens` does most of it, and leaves alone a token that is not marked as special. A Unigram model
    also needs its pieces renamed, else it would find `<pad>` in a text by itself: a piece with a space in it never
    matches, because every space has become `▁` by then.
    """
    document = copy.deepcopy(document)
    added = document["added_tokens"]
    for token in added:
        token["special"] = token["special"] and token["content"] != keep
    if document["model"]["type"] == "Unigram":
        specials = {token["content"] for token in added if token["special"]}
        pieces = document["model"]["vocab"]
        renamed = {piece for piece, _ in pieces} & specials
        document["model"]["vocab"] = [[f" {piece}" if piece in renamed else piece, score] for piece, score in pieces]
        document["added_tokens"] = [token for token in added if token["content"] not in renamed]
    return document
