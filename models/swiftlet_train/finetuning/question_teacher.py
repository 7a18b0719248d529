"""The predictions of a teacher of question answering that has a tokenizer of its own, on the tokens of its student.

The teacher reads the same windows of the contexts as the student. A prediction about a token is taken over where a
token of the student starts, or ends, at the same character; a longer word may be several tokens of the student.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.datasets import Question
from swiftlet_models.encodings import Window
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import NO_LABEL, TEACHER_TOKENS, Example
from swiftlet_train.examples.questions import (
    ask_again,
    ask_of_parts,
    make_windows,
    read_unlabelled_questions,
    take_questions,
)
from swiftlet_train.finetuning.logits import EXCLUDED, Logits
from swiftlet_train.recipe import Finetuning

NOWHERE: Final = (NO_LABEL, NO_LABEL)  # the target of a question that only the teacher answers


@dataclass(frozen=True, eq=False)
class AskedWindow:
    """A question with a window of its context, as the student reads it and as its teacher does."""

    student: Example
    teacher: Example

    def align(self, logits: Logits) -> Logits:
        """Returns the teacher's logits (F, 2) at the student's positions, (L, 2)."""
        own, theirs = self.student.encoding, self.teacher.encoding
        assert isinstance(own, Window)  # noqa: S101  # for the type checker
        assert isinstance(theirs, Window)  # noqa: S101
        spans = own.token_spans - own.token_spans[0, 0]  # the teacher reads only this part of the context
        aligned = np.full((len(own.input_ids), 2), EXCLUDED, np.float32)
        aligned[0] = logits[0]  # [CLS]: no answer
        for column in range(2):
            places = np.searchsorted(theirs.token_spans[:, column], spans[:, column])
            places = np.minimum(places, len(theirs.token_spans) - 1)
            same = theirs.token_spans[places, column] == spans[:, column]
            at = own.context_start + np.flatnonzero(same)
            aligned[at, column] = logits[theirs.context_start + places[same], column]
        return aligned


def read_asked_windows(work: Finetuning, data: Path, tokenizer: Tokenizer, teacher: Tokenizer) -> list[AskedWindow]:
    """Reads the questions of all training files, and those that only the teacher answers.

    The latter are the same questions with other contexts and with parts of their own, as often as the recipe says, and
    those of `read_unlabelled_questions`.

    Raises:
        DatasetError: a training file is not in the SQuAD format, or an unlabelled one is damaged or not a text.
    """
    questions = take_questions(work, data)
    again = [
        *ask_again(questions, work.asked_again),
        *ask_of_parts(questions, work.asked_of_parts),
        *read_unlabelled_questions(work, data, questions),
    ]
    return [
        *make_asked_windows(questions, tokenizer, teacher, work.max_tokens, labelled=True),
        *make_asked_windows(again, tokenizer, teacher, work.max_tokens, labelled=False),
    ]


def find_kept_windows(
    windows: Sequence[AskedWindow], logits: Sequence[Logits], fraction: float, seed: int
) -> NDArray[np.int64]:
    """Returns the numbers of the windows to learn from.

    Keeps about a `fraction` of the unlabelled windows where the teacher finds no answer, and all other windows.
    `logits` are its predictions at the student's positions, (L, 2). It finds an answer if the likeliest start and the
    likeliest end together are likelier than [CLS]; that the end follows the start is not required.
    """
    chance = np.random.default_rng(seed).random(len(windows))
    labelled = np.array([window.student.target != NOWHERE for window in windows], bool)
    answered = np.array([window[1:].max(0).sum(dtype=np.float64) > window[0].sum() for window in logits], bool)
    return np.flatnonzero(labelled | answered | (chance < fraction))


def make_asked_windows(
    questions: Sequence[Question], tokenizer: Tokenizer, teacher: Tokenizer, max_tokens: int, *, labelled: bool
) -> list[AskedWindow]:
    """Returns the windows of all questions that hold tokens. Their targets are the answers if they are `labelled`.

    A word that is unknown to the student may be many tokens of the teacher. Windows that it cannot read are left out.
    """
    windows = []
    for question in questions:
        for example in make_windows(question, tokenizer, max_tokens):
            window = example.encoding
            assert isinstance(window, Window)  # noqa: S101  # for the type checker
            if not len(window.token_spans):
                continue
            part = question.context[window.token_spans[0, 0] : window.token_spans[-1, 1]]
            student = example if labelled else replace(example, target=NOWHERE)
            windows.append(AskedWindow(student, _read(question.question, part, teacher)))
    return [w for w in windows if w.teacher.context and len(w.teacher.encoding.input_ids) <= TEACHER_TOKENS]


def _read(question: str, context: str, tokenizer: Tokenizer) -> Example:
    """Returns a question with its whole context."""
    asked, text = tokenizer.tokenize([question, context])
    (window,) = tokenizer.windows(asked, text, 0, max(1, len(text)), 0)
    first = window.context_start
    return Example(window, NOWHERE, range(first, first + len(text)))
