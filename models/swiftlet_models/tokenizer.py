"""Converts text to token ids and back, with the ids and character offsets of transformers.

One difference from transformers is deliberate: text that looks like a special token stays text, so that a client cannot
insert a [SEP] into a sequence. The mask token is recognised only if the caller asks for it.

Texts are tokenised whole and then cut, because no number of characters bounds a number of tokens: blanks, control
characters and combining marks may give no token, and a word of any length gives one. The whole length is known, too.
The library takes linear time. A text of 1 MB takes 10 to 500 ms on one core (prose, one word, blanks, ideographs, jamo,
combining marks, flags, emoji; WordPiece, Unigram, byte-level BPE), 1 to 2 s if each character is a token, as in "!?!?",
and 4 s if it consists of a ligature of 18 letters (Unigram). 64 texts of 16,000 characters take as long.

A `Tokenizer` is immutable, so threads may share it. `word_pieces` tokenises nearly all texts of BERT's tokenizers, 20
times as fast as the tokenizers library. All other calls use `encode_batch` of the library, which releases the GIL;
`encode` does not.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import tokenizers

from swiftlet_models import tokenizer_json, tokenizer_safety
from swiftlet_models.added_tokens import TokenizerError
from swiftlet_models.artifact import Reading, Side
from swiftlet_models.checkpoint_tokenizer import library_calls, read_directory, read_limits, reads_types
from swiftlet_models.encodings import Chunk, Encoding, Ids, Text, TextTooLong, TokenizedText, TooManyWindows, Window
from swiftlet_models.piece_texts import PieceTexts
from swiftlet_models.sequence_template import SequenceTemplate, Slot
from swiftlet_models.token_ranges import first_length, mirrored, pair_lengths, window_ranges
from swiftlet_models.turns import in_turns
from swiftlet_models.word_pieces import Rows, WordPieces

RIGHT: Final = Reading()
OVERLAP: Final = 8  # the part of a window that it shares with the next
RESERVED: Final = re.compile(r"\[unused\d+\]|.*NOTUSED|<extra_id_\d+>")  # tokens that no text is meant to contain

Result = TypeVar("Result")


class Tokenizer:
    """Tokenises single texts, pairs of texts and long contexts as a `tokenizer.json` describes."""

    def __init__(self, document: dict[str, Any], reading: Reading = RIGHT):
        """Builds the tokenizer of a `tokenizer.json`.

        Raises:
            ValueError: `reading` names a token that is not special.
        """
        tokenizer_safety.check(document)
        # This class truncates and the engine pads, so the settings of the file are dropped.
        self._document = document | {"truncation": None, "padding": None}
        self._whole = tokenizer_json.build(tokenizer_json.without_model(self._document))
        self.reading = reading
        self._from_left = reading.truncation_side == "left"
        self._text = tokenizer_json.build(tokenizer_json.without_specials(self._document, reading.special_tokens))
        self._word_pieces = None if reading.special_tokens else WordPieces.of(self._document, self._text)
        # Of a single text, and of a pair.
        self._templates = [
            SequenceTemplate.of_example(self._text.encode("a")),
            SequenceTemplate.of_example(self._text.encode("a", "a")),
        ]
        # A byte-level tokenizer with this option takes the first token of each window for the start of a text, and does
        # not trim the space of its prefix, as if it had been added.
        processor = self._document["post_processor"] or {}
        self._first_space_kept = bool(processor.get("trim_offsets") and processor.get("add_prefix_space"))
        self.special_ids = frozenset(token["id"] for token in self._document["added_tokens"] if token["special"])
        for token in reading.special_tokens:
            if self._whole.token_to_id(token) not in self.special_ids:
                raise ValueError(f"{token!r} is not a special token of the tokenizer.")
        self.mask = self._first_known("[MASK]", "<mask>")
        self.mask_id = None if self.mask is None else self._whole.token_to_id(self.mask)
        # Whether the mask is recognised wherever it is written, and as it is written. The library may also take the
        # spaces around it, which are no part of any word.
        self._mask_is_literal = any(
            token["content"] == self.mask and not (token["normalized"] or token["single_word"])
            for token in self._document["added_tokens"]
        )
        pad = self._first_known("[PAD]", "<pad>")
        self.pad_id = None if pad is None else self._whole.token_to_id(pad)
        self.unknown_id = tokenizer_json.unknown_id(self._document["model"], self._whole)
        # Whether a token shows that it continues a word, as WordPiece's "##ing" does.
        self.marks_continuation = bool(self._document["model"].get("continuing_subword_prefix"))
        self.vocab_size: int = self._whole.get_vocab_size(with_added_tokens=True)

    @classmethod
    def load(cls, path: Path, reading: Reading = RIGHT) -> Tokenizer:
        """Reads the `tokenizer.json` of an artifact. Its manifest has the `reading`.

        Raises:
            TokenizerError: the file cannot be read as a tokenizer.
        """
        try:
            return cls(json.loads(path.read_text("utf-8")), reading)
        except (TokenizerError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises bare Exception for any invalid file, or panics
            raise TokenizerError(f"{path.name} cannot be read as a tokenizer: {error}") from error

    @classmethod
    def from_directory(cls, path: Path) -> Tokenizer:
        """Reads the tokenizer of a transformers checkpoint.

        Raises:
            TokenizerError: the directory holds no usable tokenizer.
        """
        document = json.loads(read_directory(path).to_str())
        if not reads_types(path):
            document = tokenizer_json.with_one_type(document)
        return cls(document, Reading(read_limits(path).truncation_side))

    def recognising(self, special_tokens: Sequence[str]) -> Tokenizer:
        """Returns the same tokenizer, which finds these special tokens in texts.

        Raises:
            ValueError: one is not a special token.
        """
        return Tokenizer(self._document, replace(self.reading, special_tokens=tuple(special_tokens)))

    def separating(self, token: str) -> Tokenizer:
        """Returns the same tokenizer, with a token between the texts of a pair.

        Raises:
            ValueError: the vocabulary lacks the token, or the tokenizer puts tokens around a text.
        """
        if self.special_count(pair=True):
            raise ValueError("the tokenizer has a separator of its own.")
        return Tokenizer(tokenizer_json.with_separator(self._document, token), self.reading)

    def bare(self, reading: Reading) -> Tokenizer:
        """Returns the same tokenizer with another reading, and without special tokens around a text."""
        return Tokenizer(self._document | {"post_processor": None}, reading)

    def split_specials(self, text: str) -> list[str | int]:
        """Returns the parts of a text that the model's author wrote: ids of special tokens, and the texts between."""
        specials = sorted(filter(None, map(self.token, self.special_ids)), key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, specials))})", text) if specials else [text]
        found: list[Any] = [self._whole.token_to_id(part) if place % 2 else part for place, part in enumerate(parts)]
        return [part for part in found if part != ""] or [""]

    def framed(self, before: Ids, after: Ids) -> Tokenizer:
        """Returns a tokenizer that puts these tokens before and after a single text, and cuts the text at its end."""
        framed = copy.copy(self)
        slots = [Slot(int(number), 0, 0) for number in before], [Slot(int(number), 0, 0) for number in after]
        framed._templates = [SequenceTemplate([*slots[0], Slot(None, 0, 0), *slots[1]]), self._templates[1]]
        framed._from_left = False
        return framed

    def cutting(self, side: Side | None) -> Tokenizer:
        """Returns the same tokenizer, which cuts long texts on this side. None: on its own."""
        if side is None or self._from_left == (side == "left"):
            return self
        cutting = copy.copy(self)
        cutting._from_left = side == "left"
        return cutting

    def save(self, path: Path) -> None:
        """Writes a `tokenizer.json`. `load` restores the same tokenizer from it."""
        path.write_text(json.dumps(self._document, ensure_ascii=False, separators=(",", ":")), "utf-8")

    def encode(
        self,
        texts: Sequence[Text],
        max_tokens: int,
        *,
        truncate: bool = True,
        mask: bool = False,
        own_limits: Sequence[int | None] | None = None,
        prefix: str = "",
    ) -> list[Encoding]:
        """Encodes each text or pair as one sequence of at most `max_tokens` tokens, special tokens included.

        The head reads the first token. With `mask`, mask tokens are recognised and the head reads their positions.
        `prefix` begins every single text, and stays if the text is cut on the left. `own_limits` are those of a
        text without its prefix, or of the texts of a pair, without special tokens: they are cut to these first.

        Raises:
            TextTooLong: a text exceeds the limit and `truncate` is false.
        """
        parts = [part for text in texts for part in ((text,) if isinstance(text, str) else text)]
        encoded = iter(self._ids(parts, mask=mask))
        start = self._ids([prefix], mask=False)[0] if prefix and (own_limits or self._from_left) else None
        encodings = []
        for index, text in enumerate(in_turns(texts)):
            ids = [next(encoded)] if isinstance(text, str) else [next(encoded), next(encoded)]
            limit = max_tokens - self._templates[len(ids) == 2].special_count
            whole, left_out = sum(map(len, ids)), 0
            own_left_out: tuple[int, ...] = ()
            if whole > limit or own_limits is not None:
                kept = 0 if start is None else _common(start, ids[0])
                if own_limits is not None:
                    ids, own_left_out = self._cut_each(ids, own_limits, kept)
                ids = self._truncate(ids, limit, kept)
                left_out = whole - sum(map(len, ids))
                if left_out and not truncate:
                    raise TextTooLong(index, whole + max_tokens - limit)
            encodings.append(self._encoding(ids, index, left_out, own_left_out, mask=mask))
        return encodings

    def encode_ids(
        self, rows: Sequence[Sequence[int]], max_tokens: int, *, truncate: bool = True, whole: bool = False
    ) -> list[Encoding]:
        """Encodes each row of token ids as one sequence of exactly these ids. The head reads the first token.

        A row is a whole sequence with `whole`, and if it begins and ends with the special tokens of a single text.
        Otherwise these are put around it.

        Raises:
            TextTooLong: a row exceeds the limit of `max_tokens`, special tokens included, and `truncate` is false.
        """
        before, after = self.special_ends
        encodings = []
        for index, row in enumerate(in_turns(rows)):
            ids, end = list(row), len(row) - len(after)
            is_framed = len(before) <= end and ids[: len(before)] == before and ids[end:] == after
            if is_framed:
                ids = ids[len(before) : end]
            start, stop = (before, after) if is_framed or not whole else ([], [])
            room = max_tokens - len(start) - len(stop)
            left_out = max(0, len(ids) - room)
            if left_out and not truncate:
                raise TextTooLong(index, max_tokens + left_out)
            input_ids = _array([*start, *(self._cut(_array(ids), room) if left_out else ids), *stop])
            zeros = np.zeros_like(input_ids)
            encodings.append(Encoding(input_ids, zeros, zeros[:1], text_index=index, left_out=left_out))
        return encodings

    def encode_product(
        self, texts: Sequence[str], others: Sequence[str], max_tokens: int, *, truncate: bool = True
    ) -> list[Encoding]:
        """Encodes each text with each of the others as a pair, text by text. Only the first text of a pair is cut.

        The head reads the first token.

        Raises:
            TextTooLong: one of the others leaves no room for a token of a text, or a text does not fit and `truncate`
                is false. `index` is its number among the texts and the others.
        """
        limit, encodings = max_tokens - self._templates[True].special_count, []
        ids = self._ids([*texts, *others], mask=False)
        for text, first in enumerate(ids[: len(texts)]):
            for number, second in enumerate(in_turns(ids[len(texts) :]), start=len(texts)):
                length = first_length(len(first), len(second), limit)
                tokens = len(first) + len(second) + self._templates[True].special_count
                if length is None:
                    raise TextTooLong(number, tokens)
                if length < len(first) and not truncate:
                    raise TextTooLong(text, tokens)
                encodings.append(self._encoding([self._cut(first, length), second], text, len(first) - length))
        return encodings

    def encode_windows(
        self, texts: Sequence[Text], max_tokens: int, most: int, *, prefix: str = "", split: int | None = None
    ) -> list[Encoding]:
        """Encodes each text or pair as one sequence, or as several windows if it has more than `max_tokens` tokens.

        Neighbouring windows share an eighth of their tokens of the text. `prefix` begins every single text, and each
        window repeats it. Of a pair, only the text with the number `split` is split, or the longer one; each window
        repeats the other. The head reads the first token.

        Raises:
            TextTooLong: what each window repeats leaves less than an eighth of `max_tokens` to the text.
            TooManyWindows: there are more than `most` sequences.
        """
        parts = [(text,) if isinstance(text, str) else text for text in texts]
        encoded = iter(self._ids([part for pair in parts for part in pair], mask=False))
        start = self._ids([prefix], mask=False)[0] if prefix else _array([])
        encodings: list[Encoding] = []
        for index, pair in enumerate(in_turns(parts)):
            ids, specials = [next(encoded) for _ in pair], self._templates[len(pair) == 2].special_count
            count = sum(map(len, ids)) + specials
            windows = [ids]
            if count > max_tokens:
                number = (len(ids[1]) > len(ids[0]) if split is None else split) if len(pair) == 2 else 0
                repeated = 0 if len(pair) == 2 else _common(start, ids[0])
                beginning, text = np.split(ids[number], [repeated])
                room = max_tokens - count + len(text)
                if room < max(1, max_tokens // OVERLAP):
                    raise TextTooLong(index, count)
                ranges = self._ranges(len(text), room, room // OVERLAP)
                if len(encodings) + len(ranges) > most:
                    raise TooManyWindows
                windows = [
                    [*ids[:number], np.concatenate([beginning, text[a:b]]), *ids[number + 1 :]] for a, b in ranges
                ]
            encodings += [self._encoding(window, index, 0) for window in windows]
        if len(encodings) > most:
            raise TooManyWindows
        return encodings

    def tokenize(self, texts: Sequence[str], max_tokens: int | None = None) -> list[TokenizedText]:
        """Tokenises texts with offsets, and returns `max_tokens` tokens of each, or all of them."""

        def own(text: str) -> TokenizedText | None:
            rows = self._word_pieces.encode(text) if self._word_pieces else None
            return None if rows is None else _own_tokens(rows, max_tokens, from_left=self._from_left)

        def of_library(texts: list[str]) -> list[TokenizedText]:
            encodings = self._text.encode_batch(texts, add_special_tokens=False)
            return [_tokens(encoding, max_tokens, from_left=self._from_left) for encoding in encodings]

        return _each(texts, own, of_library)

    def ids(self, texts: Sequence[str]) -> list[Ids]:
        """Returns the ids of each text, without special tokens."""
        return self._ids(texts, mask=False)

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each word, which is tokenised by itself (`is_split_into_words` of transformers)."""
        if not words:
            return []
        with library_calls():
            (encoding,) = self._text.encode_batch([list(words)], is_pretokenized=True, add_special_tokens=False)
        ids: list[list[int]] = [[] for _ in words]
        for number, word in zip(encoding.ids, encoding.word_ids, strict=True):
            ids[word or 0].append(number)  # it is never None without special tokens
        return ids

    def max_context_tokens(self, question: TokenizedText, max_tokens: int) -> int:
        """Returns how many context tokens fit beside a question. The result may be negative."""
        return max_tokens - self.special_count(pair=True) - len(question)

    def windows(
        self, question: TokenizedText, context: TokenizedText, question_index: int, size: int, stride: int
    ) -> list[Window]:
        """Pairs a question with overlapping windows of its context, of at most `size` context tokens each.

        Raises:
            ValueError: `stride` is not less than `size`.
        """
        ranges = self._ranges(len(context), size, stride)
        return [self._window(question, context, question_index, start, stop) for start, stop in in_turns(ranges)]

    def sequence(self, text: TokenizedText) -> tuple[Ids, Ids, int]:
        """Returns a text with its special tokens: input ids, token type ids, and the position of its first token."""
        return self.wrap(text.ids)

    def wrap(self, ids: Sequence[int] | Ids) -> tuple[Ids, Ids, int]:
        """Returns the ids of a text with special tokens around them, as `sequence` does."""
        return *self._templates[False].assemble([ids]), self._templates[False].start([ids])

    def chunks(self, text: TokenizedText, text_index: int, size: int, stride: int) -> list[Chunk]:
        """Splits a text into overlapping sequences, of at most `size` of its tokens each.

        Raises:
            ValueError: `stride` is not less than `size`.
        """
        chunks = []
        for start, stop in in_turns(self._ranges(len(text), size, stride)):
            tokens = text.part(start, stop)
            input_ids, token_type_ids, first = self.sequence(tokens)
            focus = np.arange(first, first + len(tokens))
            left_out = text.left_out if stop == len(text) else 0
            chunk = Chunk(input_ids, token_type_ids, focus, tokens, text_index=text_index, left_out=left_out)
            chunks.append(chunk)
        return chunks

    def special_count(self, *, pair: bool) -> int:
        """Returns the number of special tokens that surround a text, or a pair."""
        return self._templates[pair].special_count

    @property
    def token_types(self) -> int:
        """The number of token types that its sequences have."""
        return 1 + max(kind for template in self._templates for kind in template.types)

    @property
    def reads_ascii_quickly(self) -> bool:
        """Whether a text of ASCII, without masks, never needs the library: 4,000 characters take 0.1 ms."""
        return self._word_pieces is not None

    def token_to_id(self, token: str) -> int | None:
        """Returns the id of a token, or None if the vocabulary lacks it."""
        identity: int | None = self._whole.token_to_id(token)
        return identity

    @property
    def special_ends(self) -> tuple[list[int | None], list[int | None]]:
        """The special tokens before a single text, and those after it."""
        ids = self._templates[False].specials
        position = ids.index(None)
        return ids[:position], ids[position + 1 :]

    def is_text(self, number: int) -> bool:
        """Returns whether an id is a token of the vocabulary, and not padding."""
        return number != self.pad_id and self._whole.id_to_token(number) is not None

    def token(self, number: int) -> str:
        """Returns the token of an id, or an empty string for an unknown id."""
        return self._whole.id_to_token(number) or ""

    def join(self, tokens: Sequence[str]) -> str:
        """Returns the text of tokens. Equals `convert_tokens_to_string` of transformers."""
        with library_calls():
            text: str = " ".join(tokens) if self._decoder is None else self._decoder.decode(list(tokens))
        return text

    def join_ids(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, given their ids, as `join`."""
        text = None if self._piece_texts is None else self._piece_texts.join(ids)
        return self.join([self.token(number) for number in ids]) if text is None else text

    @property
    def tokens(self) -> list[str]:
        """All tokens of the vocabulary, in the order of their ids."""
        return [self.token(number) for number in range(self.vocab_size)]

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each row of ids. Equals `decode` of transformers."""
        return [self._write(row) for row in in_turns(rows)]

    def _write(self, ids: Sequence[int]) -> str:
        text = None if self._piece_texts is None else self._piece_texts.write(ids)
        if text is None:
            with library_calls():
                text = self._whole.decode(list(ids), skip_special_tokens=False)
        return text

    @functools.cached_property
    def _piece_texts(self) -> PieceTexts | None:
        return PieceTexts.of(self._document, self._whole.id_to_token)

    @functools.cached_property
    def _decoder(self) -> Any:
        return tokenizer_json.decoder(self._document)

    @functools.cached_property
    def _masked(self) -> tokenizers.Tokenizer:
        """The tokenizer that recognises the mask. Built on first use, because only fill-mask needs it."""
        return tokenizer_json.build(
            tokenizer_json.without_specials(self._document, (*self.reading.special_tokens, self.mask or ""))
        )

    def other_specials(self) -> list[str]:
        """Returns the special tokens that are for the inside of a text, such as the markers of entities.

        Not the mask, those for padding and unknown text, those around a text, and reserved ones.
        """
        around = {special for template in self._templates for special in template.specials}
        usual = {self.mask_id, self.pad_id, self.unknown_id, *around}
        others = [self.token(number) for number in sorted(self.special_ids - usual)]
        return [token for token in others if not RESERVED.fullmatch(token)]

    def may_hold(self, number: int) -> bool:
        """Returns whether a sequence of a text may contain a token."""
        around = {special for template in self._templates for special in template.specials}
        allowed = {self.mask_id, self.unknown_id, *map(self.token_to_id, self.reading.special_tokens), *around}
        return number < self.vocab_size and (number not in self.special_ids or number in allowed)

    def _ranges(self, length: int, size: int, stride: int) -> list[tuple[int, int]]:
        ranges = window_ranges(length, size, stride)
        return mirrored(ranges, length) if self._from_left else ranges

    def _cut(self, ids: Ids, length: int, kept: int = 0) -> Ids:
        """Returns at most `length` of the ids of a text. The first `kept` ones are among them as far as they fit."""
        if len(ids) <= length or not self._from_left:
            return ids[:length]
        kept = min(kept, length)
        end = ids[len(ids) - length + kept :]
        return np.concatenate([ids[:kept], end]) if kept else end

    def _cut_each(
        self, ids: Sequence[Ids], limits: Sequence[int | None], kept: int
    ) -> tuple[list[Ids], tuple[int, ...]]:
        """Cuts the ids of each text to its own limit, and returns how many it lost. The first `kept` do not count."""
        pairs = zip(ids, limits, strict=True)
        cut = [part if most is None else self._cut(part, kept + most, kept) for part, most in pairs]
        return cut, tuple([len(part) - len(some) for part, some in zip(ids, cut, strict=True)])

    def _truncate(self, ids: Sequence[Ids], limit: int, kept: int) -> list[Ids]:
        """Cuts the ids of a text, which keeps the first ones, or of a pair of texts to `limit` tokens."""
        lengths = (limit,) if len(ids) == 1 else pair_lengths(len(ids[0]), len(ids[1]), limit)
        return [self._cut(part, length, kept) for part, length in zip(ids, lengths, strict=True)]

    def _first_known(self, *tokens: str) -> str | None:
        """Returns the first of these tokens that is special, or else that the vocabulary has.

        MPNet's vocabulary has BERT's special tokens, too, as common tokens.
        """
        special = [token["content"] for token in self._document["added_tokens"] if token["special"]]
        known = [token for token in tokens if self._whole.token_to_id(token) is not None]
        return next((token for token in known if token in special), known[0] if known else None)

    def _ids(self, texts: Sequence[str], *, mask: bool) -> list[Ids]:
        """Returns the ids of each text, without special tokens. Texts that are equal are tokenised once."""

        def of_library(texts: list[str]) -> list[Ids]:
            tokenizer = self._masked if mask else self._text
            return [_array(encoding.ids) for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

        distinct = list(dict.fromkeys(texts)) if len(texts) > 1 else texts
        ids = _each(distinct, functools.partial(self._own_ids, mask=mask), of_library)
        if self.reading.skip_unknown:
            known = [each[each != self.unknown_id] for each in ids]
            ids = [some if len(some) else each[:1] for some, each in zip(known, ids, strict=True)]
        if len(distinct) == len(texts):
            return ids
        ids_of = dict(zip(distinct, ids, strict=True))
        return [ids_of[text] for text in texts]

    def _own_ids(self, text: str, *, mask: bool) -> Ids | None:
        """Returns the ids of a text, or None if it is left to the library."""
        if self._word_pieces is None or (mask and not self._mask_is_literal):
            return None
        if not mask:
            rows = self._word_pieces.encode(text)
            return None if rows is None else rows[:, 0].astype(np.int64)
        pieces: list[Any] = []
        for part in text.split(self.mask):
            if (rows := self._word_pieces.encode(part)) is None:
                return None
            pieces += [_array([self.mask_id]), rows[:, 0]]
        return np.concatenate(pieces[1:])

    def _encoding(
        self,
        parts: Sequence[Ids],
        text_index: int,
        left_out: int,
        own_left_out: tuple[int, ...] = (),
        *,
        mask: bool = False,
    ) -> Encoding:
        input_ids, token_type_ids = self._templates[len(parts) == 2].assemble(parts)
        focus = np.flatnonzero(input_ids == self.mask_id) if mask else np.zeros(1, np.int64)
        return Encoding(
            input_ids, token_type_ids, focus, text_index=text_index, left_out=left_out, own_left_out=own_left_out
        )

    def _window(
        self, question: TokenizedText, context: TokenizedText, question_index: int, start: int, stop: int
    ) -> Window:
        parts = question.ids, context.ids[start:stop]
        input_ids, token_type_ids = self._templates[True].assemble(parts)
        return Window(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            focus=np.arange(len(input_ids)),
            question_index=question_index,
            context_start=self._templates[True].start(parts),
            context=context,
            part=range(start, stop),
            takes_space=start > 0 and self._first_space_kept and self.token(int(context.ids[start])).startswith("Ġ"),
        )


def _each(
    texts: Sequence[str], own: Callable[[str], Result | None], of_library: Callable[[list[str]], list[Result]]
) -> list[Result]:
    """Returns the result for each text: its own, or the library's, which takes all texts without one at once."""
    results = [*map(own, in_turns(texts))]
    left = [text for text, result in zip(texts, results, strict=True) if result is None]
    if not left:
        return cast(list[Result], results)
    with library_calls():
        others = iter(of_library(left))
    return [next(others) if result is None else result for result in results]


def _own_tokens(rows: Rows, max_tokens: int | None, *, from_left: bool) -> TokenizedText:
    """Returns the tokens of a text: all, or as many as are left of a cut."""
    left_out = 0 if max_tokens is None else max(0, len(rows) - max_tokens)
    kept = rows[left_out:] if from_left else rows[: len(rows) - left_out]
    columns = np.array(kept.T, np.int64, order="C")
    return TokenizedText(columns[0], columns[1:3].T, columns[3], left_out)


def _common(some: Ids, others: Ids) -> int:
    """Returns the number of tokens with which both begin."""
    length = min(len(some), len(others))
    return int((some[:length] == others[:length]).cumprod().sum())


def _tokens(encoding: Any, max_tokens: int | None, *, from_left: bool) -> TokenizedText:
    """Returns the tokens of an encoding of the library: all, or as many as are left of a cut."""
    if max_tokens is None or len(encoding) <= max_tokens:
        ids, offsets, word_ids, left_out = encoding.ids, encoding.offsets, encoding.word_ids, 0
    else:  # the library's lists of offsets and words hold Python objects for all tokens of a long text
        left_out = len(encoding) - max_tokens
        first = left_out if from_left else 0
        kept = range(first, first + max_tokens)
        ids = encoding.ids[first : first + max_tokens]
        offsets, word_ids = map(encoding.token_to_chars, kept), map(encoding.token_to_word, kept)
    return TokenizedText(_array(ids), _array([*offsets]).reshape(-1, 2), _array([*word_ids]), left_out)


def _array(values: Any) -> Ids:
    return np.array(values, np.int64)
