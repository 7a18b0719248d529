"""The predictions of a teacher of entities on the tokens of its student.

The teacher may have a tokenizer of its own. It reads the same parts of the texts as the student, and its prediction
about a token is taken over where a token of the student starts at the same character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.datasets import Tagged
from swiftlet_models.encodings import Chunk
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.entities import find_starts, make_entity_examples, take_tagged_texts
from swiftlet_train.examples.example import NO_LABEL, TEACHER_TOKENS, Example
from swiftlet_train.examples.sentences import read_sentences
from swiftlet_train.finetuning.logits import Logits
from swiftlet_train.recipe import Finetuning


@dataclass(frozen=True, eq=False)
class TaggedChunk:
    """A part of a text, as the student reads it and as its teacher does."""

    student: Example
    teacher: Example
    starts: NDArray[np.int64]
    """Where each of the student's tokens starts in this part of the text, (F,). A space before it does not count."""
    teacher_starts: NDArray[np.int64]
    """The same for the teacher's tokens, (T,)."""

    def align(self, logits: Logits) -> Logits:
        """Returns the teacher's logits (T, L) at the student's tokens, (F, L): NaN where none of its tokens starts."""
        if np.array_equal(self.teacher_starts, self.starts):
            return logits
        # Of two tokens with one start, the first is SentencePiece's mark of a word.
        places = np.maximum(np.searchsorted(self.teacher_starts, self.starts, side="right") - 1, 0)
        same = self.teacher_starts[places] == self.starts
        return np.where(same[:, None], logits[places], np.float32(np.nan))


def read_tagged_chunks(work: Finetuning, data: Path, tokenizer: Tokenizer, teacher: Tokenizer) -> list[TaggedChunk]:
    """Reads the texts of all training files, and the unlabelled sentences, which only the teacher labels.

    Raises:
        DatasetError: a training file is not in CoNLL's columns, or an unlabelled one is damaged or not a text.
        RecipeError: no label is O, or a kind of entities has no labels.
    """
    texts, sentences = take_tagged_texts(work, data), [Tagged(text, ()) for text in read_sentences(work, data)]
    labelled, others = (make_entity_examples(work, some, tokenizer) for some in (texts, sentences))
    unlabelled = [replace(example, target=(NO_LABEL,) * len(example.target)) for example in others]
    return [*_pair(texts, labelled, teacher), *_pair(sentences, unlabelled, teacher)]


def _pair(texts: Sequence[Tagged], examples: Sequence[Example], teacher: Tokenizer) -> Iterator[TaggedChunk]:
    """Yields each example that both can read with the same part of its text as the teacher reads it."""
    parts = []
    for example in examples:
        chunk = _chunk(example)
        offsets = chunk.tokens.offsets
        text = texts[chunk.text_index].text
        parts.append(text[offsets[0, 0] : offsets[-1, 1]] if len(offsets) else "")
    for example, part, tokens in zip(examples, parts, teacher.tokenize(parts), strict=True):
        if 0 < len(tokens) <= TEACHER_TOKENS - 2:  # with [CLS] and [SEP]
            (whole,) = teacher.chunks(tokens, 0, len(tokens), 0)
            chunk = _chunk(example)
            starts = find_starts(texts[chunk.text_index].text, chunk.tokens) - chunk.tokens.offsets[0, 0]
            read = Example(whole, (NO_LABEL,) * len(tokens))
            yield TaggedChunk(example, read, starts, find_starts(part, tokens))


def _chunk(example: Example) -> Chunk:
    assert isinstance(example.encoding, Chunk)  # noqa: S101  # for the type checker
    return example.encoding
