"""Asks questions of a data set about paragraphs of running text. A teacher of question answering then answers them.

Each question is paired with paragraphs that share words with it. Names and years of the paragraph replace those of the
question: "Who painted the Night Watch?" becomes "Who painted The Harbour?". About a quarter of the paragraphs hold an
answer. A student that reads only the contexts of a small data set remembers them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftlet_models.datasets import Question
from swiftlet_train.examples.cloze import NAMES, YEARS, AnswerType, find_places
from swiftlet_train.examples.sentences import SENTENCE_END

BEST: Final = 20  # paragraphs to choose from for a question: those that share the most words with it
STEM: Final = r"\b([a-z]{4,6})"  # the first letters of a word that is no name, which its forms share
ASKING: Final = frozenset({"who", "whom", "whose", "what", "which", "when", "where", "why", "how"})
NO_TOPICS: Final = ASKING | {"does", "many", "much"}  # the words of a question that say nothing about its paragraph


def transfer_questions(questions: Sequence[Question], paragraphs: Sequence[str], count: int) -> list[Question]:
    """Returns at most `count` questions with other contexts. A context may lack the answer.

    Each question occurs about equally often, up to `BEST` times, but not if no paragraph shares a word with it.
    """
    chance = np.random.default_rng(count)
    texts = list(dict.fromkeys(question.question.strip() for question in questions))
    asked = [texts[i] for i in chance.permutation(len(texts))]
    transferred = []
    for number, (text, best) in enumerate(zip(asked[:count], _find_paragraphs(asked[:count], paragraphs), strict=True)):
        times = count // len(asked) + (number < count % len(asked))
        for place in chance.permutation(best)[:times]:
            question = _take_names(text, paragraphs[place], chance)
            transferred.append(Question(f"{number}-{place}", question, paragraphs[place], (), ()))
    return transferred


def _find_paragraphs(asked: Sequence[str], paragraphs: Sequence[str]) -> Iterator[NDArray[np.int64]]:
    """Yields the numbers of the best paragraphs for each question, at most `BEST`, the best one first.

    Of equal ones, the first is better, so that the result does not depend on the CPU.
    """
    vocabulary = sorted({word for text in asked for word in re.findall(STEM, text)} - NO_TOPICS)
    if not (vocabulary and paragraphs):
        yield from [np.arange(0)] * len(asked)
        return
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer  # here, since it takes two seconds

    counter = CountVectorizer(vocabulary=vocabulary, token_pattern=STEM, lowercase=False, binary=True, dtype=np.float32)
    words, texts = (counter.transform(some) for some in (asked, paragraphs))
    rarities = TfidfTransformer(norm=None).fit(texts)
    weighted: Any = rarities.transform(words)  # sparse matrices of scipy
    columns: Any = texts.T.tocsr()
    for row in range(len(asked)):
        scores = (weighted[row] @ columns).tocsr()
        least = np.partition(scores.data, -BEST)[-BEST] if scores.nnz > BEST else 0.0
        good = np.flatnonzero(scores.data >= least)
        yield scores.indices[good[np.lexsort((scores.indices[good], -scores.data[good]))][:BEST]]


def _take_names(question: str, paragraph: str, chance: np.random.Generator) -> str:
    """Replaces the names and years of a question by those of a paragraph. The first word is no name."""
    first, space, rest = question.partition(" ")
    sentences = SENTENCE_END.split(paragraph)
    for kind in (NAMES, YEARS):
        rest = _replace(kind, rest, sentences, chance)
    return first + space + rest


def _replace(kind: AnswerType, text: str, sentences: Sequence[str], chance: np.random.Generator) -> str:
    """Replaces the parts of this kind in a text by others from random sentences, if there are any."""
    names = [place.group() for sentence in sentences for place in find_places(kind, sentence)]

    def exchange(place: re.Match[str]) -> str:
        asks = place.group().lower() in ASKING  # "In What year did …" has no name
        return place.group() if asks else names[int(chance.integers(len(names)))]

    return kind.pattern.sub(exchange, text) if names else text
