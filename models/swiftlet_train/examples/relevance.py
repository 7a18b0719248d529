"""Examples for reranking: a query with a text that answers it, or with one that does not.

The negatives of a question are near its answer, because any model tells texts of other subjects: other paragraphs of
the article that share the question's words, and the other sentences of the paragraph.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from swiftlet_models import datasets
from swiftlet_models.datasets import Question
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import Example, take_evenly
from swiftlet_train.examples.questions import find_answer, make_unanswerable
from swiftlet_train.examples.sentences import SENTENCE_END
from swiftlet_train.recipe import Finetuning

RELEVANT: Final = 1
IRRELEVANT: Final = 0


class Judged(NamedTuple):
    """A query, a text, and whether the text answers the query."""

    query: str
    text: str
    target: int


def read_relevance(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the queries of all training files, evenly spaced within each file.

    Raises:
        DatasetError: a file is neither in SQuAD's format nor holds queries with texts.
    """
    judged = [text for file, count in work.train.items() for text in _read(data / file, count, work.negatives)]
    encodings = tokenizer.encode([(text.query, text.text) for text in judged], work.max_tokens)
    return [Example(encoding, (text.target,)) for encoding, text in zip(encodings, judged, strict=True)]


def _read(path: Path, count: int, negatives: int) -> list[Judged]:
    if path.suffix == ".json":
        asked = [question for question in datasets.questions(path) if question.answers]
        return judge_answers(take_evenly(asked, count), negatives)
    chance = np.random.default_rng(count)
    judged = []
    for query in take_evenly([query for query in datasets.ranked(path) if any(query.relevant)], count):
        order = chance.permutation(len(query.texts))
        wrong = [i for i in order if not query.relevant[i]][:negatives]
        right = [i for i, is_relevant in enumerate(query.relevant) if is_relevant]
        judged += [Judged(query.query, query.texts[i], int(query.relevant[i])) for i in (*right, *wrong)]
    return judged


def judge_answers(questions: list[Question], negatives: int) -> list[Judged]:
    """Returns each question with its paragraph and another one, and with the sentences of its paragraph.

    Of the sentences without the answer, at most `negatives` are taken.
    """
    paragraphs = [Judged(item.question, item.context, RELEVANT) for item in questions]
    others = [Judged(item.question, item.context, IRRELEVANT) for item in make_unanswerable(questions, len(questions))]
    return [*paragraphs, *others, *(judged for item in questions for judged in judge_sentences(item, negatives))]


def judge_sentences(question: Question, negatives: int) -> Iterator[Judged]:
    """Yields the question with the sentence of its paragraph that has the answer, and with at most `negatives` others.

    Yields nothing if the answer is not in the paragraph.
    """
    answer = find_answer(question)
    if answer is None:
        return
    sentences, start = list[tuple[bool, str]](), 0
    for end in (*(match.end() for match in SENTENCE_END.finditer(question.context)), len(question.context)):
        sentences.append((start <= answer[0] < end, question.context[start:end].strip()))
        start = end
    right = [text for is_right, text in sentences if is_right]
    wrong = [text for is_right, text in sentences if not is_right and text]
    yield from (Judged(question.question, text, RELEVANT) for text in right)
    yield from (Judged(question.question, text, IRRELEVANT) for text in take_evenly(wrong, negatives))
