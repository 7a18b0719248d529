"""Texts with labels that a request names, as GLiNER (Zaratiana et al. 2024, arXiv:2311.08526) and GLiClass read them.

The labels stand in one sequence with the text, each behind a marker, and a separator divides them from the text. Or a
second network makes a vector of each label by itself. `label_scorer.py` gives each label a score. Both files follow
gliner 0.2.29 and gliclass 0.1.21. Shape letters: C labels, W words, and F rows that the head reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from swiftlet_models.artifact import Labelling
from swiftlet_models.encodings import Encoding, Ids, TooManyWindows
from swiftlet_models.tokenizer import Tokenizer

WORD: Final = re.compile(r"\w+(?:[-_]\w+)*|\S")  # GLiNER's splitter `whitespace`


@dataclass(eq=False)
class LabelledText(Encoding):
    """A sequence of labels and a text, or a window of its words.

    A label has the rows labels[i, 0]:labels[i, 1] of the F rows that the head reads, and a word those of `words`. A
    text that is not divided into words counts as one.
    """

    labels: Ids  # (C, 2)
    words: Ids  # (W, 2)
    word_spans: Ids  # (W, 2): start and end of each word in the text, in code points; (0, 2) if it is not divided
    first_word: int = 0  # number of the first word among those of the text


class NoRoom(Exception):  # tasks translate it into an error of the API
    """Raised when labels leave no room for a text."""


class Words:
    """The words of a text that have tokens. A word without a token, such as U+FE0F, is no word."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        spans = [match.span() for match in WORD.finditer(text)]
        ids = tokenizer.words([text[start:end] for start, end in spans])
        self.spans = np.array([span for span, own in zip(spans, ids, strict=True) if own]).reshape(-1, 2)
        self.ids = [own for own in ids if own]

    def __len__(self) -> int:
        return len(self.ids)


class Reader:
    """Makes sequences of labels and texts."""

    def __init__(self, tokenizer: Tokenizer, labelling: Labelling, max_tokens: int) -> None:
        """Raises ValueError if the tokenizer lacks a token, or could read one in a text."""
        self.tokenizer, self.labelling = tokenizer, labelling
        self._size = max_tokens - tokenizer.special_count(pair=False)
        if labelling.encoder is None:
            self._marker, self._separator = (self._special(token) for token in (labelling.marker, labelling.separator))

    def _special(self, token: str) -> int:
        number = self.tokenizer.token_to_id(token)
        if number not in self.tokenizer.special_ids or token in self.tokenizer.reading.special_tokens:
            raise ValueError(f"{token!r} is not a special token of the tokenizer.")
        assert number is not None  # noqa: S101  # for the type checker
        return number

    def labels(self, names: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each label. A blank one has none."""
        return self.tokenizer.words(names)

    def windows(
        self, labels: Sequence[Sequence[int]], text: Words, text_index: int, overlap: int, most: int
    ) -> Iterator[LabelledText]:
        """Yields windows of a text, which overlap by this number of words, or by half of one if that is fewer.

        There may be at most `most` of them. A word that is longer than a window is cut. Without `labels`, a window has
        the text alone.

        Raises:
            NoRoom: the labels leave no room for a token.
            TooManyWindows: there are more windows.
        """
        prompt, starts = self._prompt(labels)
        room, first = self._size - len(prompt), 0
        if room < 1:
            raise NoRoom
        while first < len(text):
            if most < 1:
                raise TooManyWindows
            ids, stop, left_out = list[int](), first, 0
            words: list[tuple[int, int]] = []
            for own in text.ids[first : first + self.labelling.max_words]:
                if len(ids) + len(own) > room and words:
                    break
                left_out += max(0, len(own) - room)
                words.append((len(ids), len(ids) + min(len(own), room)))
                ids += own[:room]
                stop += 1
            sequence = self._sequence(prompt, starts, ids, words, text_index, left_out)
            yield replace(sequence, first_word=first, word_spans=text.spans[first:stop])
            if stop == len(text):
                return
            first, most = stop - min(overlap, len(words) // 2), most - 1

    def whole(self, labels: Sequence[Sequence[int]], text: Sequence[int], text_index: int) -> LabelledText:
        """Returns a text with its labels. The end of a text that is too long is cut.

        Raises:
            NoRoom: the labels leave no room for a token.
        """
        prompt, starts = self._prompt(labels)
        room = self._size - len(prompt)
        if room < 1:
            raise NoRoom
        left_out = max(0, len(text) - room)
        return self._sequence(prompt, starts, list(text[:room]), [], text_index, left_out)

    def _prompt(self, labels: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Returns the labels with their markers and the separator, and the places of the markers."""
        prompt, starts = list[int](), list[int]()
        if not labels:
            return prompt, starts
        for ids in labels:
            starts.append(len(prompt))
            prompt += [self._marker, *ids]
        return [*prompt, self._separator], starts

    def _sequence(
        self,
        prompt: list[int],
        starts: list[int],
        text: list[int],
        words: list[tuple[int, int]],
        text_index: int,
        left_out: int,
    ) -> LabelledText:
        described = self.labelling
        ids = [*prompt, *text] if described.labels_first else [*text, *prompt]
        input_ids, token_type_ids, at = self.tokenizer.wrap(ids)
        labels_at = at + (0 if described.labels_first else len(text))
        text_at = at + (len(prompt) if described.labels_first else 0)
        marks = labels_at + np.array(starts, np.int64)
        if described.label_rows == "mean":  # of the marker and what follows, up to the next marker
            ends = [*marks[1:], labels_at + len(prompt) - 1 if described.reads_from_separator else len(input_ids)]
            labels = np.stack([marks, ends], 1)
        else:
            labels = np.stack([marks, marks + 1], 1) + (described.label_rows == "next")
        if described.scores == "text":
            begin = labels_at + len(prompt) - 1 if described.reads_from_separator else 0
            spans = np.array([[begin, len(input_ids)]])
        else:
            spans = text_at + np.array(words, np.int64)
        if described.word_rows == "first":
            spans = np.stack([spans[:, 0], spans[:, 0] + 1], 1)
        elif described.word_rows == "last":
            spans = np.stack([spans[:, 1] - 1, spans[:, 1]], 1)
        focus, both = _gather(np.concatenate([labels, spans]))
        return LabelledText(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            focus=focus,
            labels=both[: len(labels)],
            words=both[len(labels) :],
            word_spans=np.zeros((0, 2), np.int64),
            text_index=text_index,
            left_out=left_out,
        )


def _gather(ranges: Ids) -> tuple[Ids, Ids]:
    """Returns the positions in some ranges one after the other, and the place of each range among them."""
    ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
    focus = np.concatenate([np.arange(start, stop) for start, stop in ranges.tolist()])
    return focus, np.stack([np.concatenate([[0], ends[:-1]]), ends], 1)
