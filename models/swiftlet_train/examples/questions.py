"""Examples for extractive question answering: questions with the windows of their contexts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from swiftlet_models import datasets
from swiftlet_models.datasets import Question
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.cloze import make_question
from swiftlet_train.examples.example import Example, take_evenly
from swiftlet_train.examples.question_transfer import transfer_questions
from swiftlet_train.examples.sentences import SENTENCE_END, split_sentences
from swiftlet_train.recipe import Finetuning

STRIDE: Final = 128  # tokens that consecutive windows of a context share
MAX_DISTANCE: Final = 10  # contexts between a question's own and the one that does not answer it
MIN_KEYWORD: Final = 4  # letters
PART: Final = 0.5  # of a context's sentences
PARAGRAPH: Final = range(40, 161)  # words of a paragraph that gets a question


def read_questions(work: Finetuning, data: Path, tokenizer: Tokenizer) -> list[Example]:
    """Reads the questions of all training files, and adds unanswerable ones, as windows of their contexts.

    Raises:
        DatasetError: a file is not in the SQuAD format.
    """
    questions = take_questions(work, data)
    return [example for question in questions for example in make_windows(question, tokenizer, work.max_tokens)]


def take_questions(work: Finetuning, data: Path) -> list[Question]:
    """Takes the questions of all training files, evenly spaced within each file, and adds unanswerable ones.

    A question that several files ask about one context, as SQuAD 1.1 and 2.0 do, is taken from the first file.

    Raises:
        DatasetError: a file is not in the SQuAD format.
    """
    taken: list[Question] = []
    for file, count in work.train.items():
        known = {(question.id, question.context) for question in taken}
        new = [question for question in datasets.questions(data / file) if (question.id, question.context) not in known]
        taken += take_evenly(new, count)
    return [*taken, *make_unanswerable(taken, work.unanswerable_questions)]


def make_unanswerable(questions: Sequence[Question], count: int) -> list[Question]:
    """Returns at most `count` of the questions, each with another context that contains none of its answers.

    A shared keyword must not suggest an answer (Clark and Gardner 2018, arXiv:1710.10723, section 3, train on such
    paragraphs of a document).
    """
    return _ask_elsewhere(take_evenly([question for question in questions if question.answers], count), questions, 1)


def ask_again(questions: Sequence[Question], times: int) -> list[Question]:
    """Returns each question with at most `times` other contexts, which may answer it or not."""
    return _ask_elsewhere([replace(question, answers=()) for question in questions], questions, times)


def ask_of_parts(questions: Sequence[Question], times: int) -> list[Question]:
    """Returns each question `times` times, each time with a random part of its context as the new context.

    A part may hold the answer or not. It keeps each sentence with a probability of one half, but at least one sentence,
    and never all. A context of one sentence has no parts.
    """
    chance = np.random.default_rng(times)
    asked = []
    for question in questions:
        sentences = [sentence for sentence in SENTENCE_END.split(question.context) if sentence]
        for _ in range(times if len(sentences) > 1 else 0):
            kept = np.flatnonzero(chance.random(len(sentences)) < PART)
            if not 0 < len(kept) < len(sentences):
                kept = chance.integers(len(sentences), size=1)
            part = " ".join(sentences[i] for i in kept)
            asked.append(replace(question, context=part, answers=(), starts=()))
    return asked


def read_unlabelled_questions(work: Finetuning, data: Path, questions: Sequence[Question]) -> list[Question]:
    """Reads questions that only a teacher answers, evenly spaced within each file.

    A file in the SQuAD format gives its questions; their answers are dropped. Running text gives one cloze for each
    paragraph. `questions` are those of the training files. The paragraphs of all running texts are also asked some of
    them, if the recipe says so.

    Raises:
        DatasetError: a file is damaged or not a text.
    """
    unanswered: list[Question] = []
    paragraphs: list[str] = []
    for file, count in work.unlabelled.items():
        if file.endswith(".json"):
            asked = take_evenly(datasets.questions(data / file), count)
            unanswered += [replace(question, answers=(), starts=()) for question in asked]
        else:
            texts = list(_paragraphs(data / file))
            unanswered += _ask_clozes(texts, count)
            paragraphs += texts
    if work.transferred_questions:
        unanswered += transfer_questions(questions, paragraphs, work.transferred_questions)
    return unanswered


def _paragraphs(path: Path) -> Iterator[str]:
    """Yields the paragraphs of a running text that are neither short nor long."""
    for text in datasets.documents(path):
        yield from (paragraph for paragraph in text.split("\n") if len(paragraph.split()) in PARAGRAPH)


def _ask_clozes(paragraphs: Sequence[str], count: int) -> list[Question]:
    """Returns a cloze about each of `count` paragraphs, except those without a sentence to make one of."""
    chance = np.random.default_rng(count)
    clozes = []
    for number, paragraph in enumerate(take_evenly(paragraphs, count)):
        sentences = split_sentences(paragraph)
        asked = make_question(sentences[int(chance.integers(len(sentences)))], chance) if sentences else None
        if asked is not None:
            clozes.append(Question(str(number), asked, paragraph, (), ()))
    return clozes


def _ask_elsewhere(asked: Sequence[Question], questions: Sequence[Question], times: int) -> list[Question]:
    """Returns each question with other contexts: those with the most of its keywords and none of its answers.

    They are near the question's own context, as within an article.
    """
    contexts = list(dict.fromkeys(question.context for question in questions))
    numbers = {context: i for i, context in enumerate(contexts)}
    keywords = [_keywords(context) for context in contexts]
    exchanged = []
    for question in asked:
        own, words = numbers[question.context], _keywords(question.question)
        nearby = range(max(0, own - MAX_DISTANCE), min(len(contexts), own + MAX_DISTANCE + 1))
        answers = [answer.lower() for answer in question.answers]
        candidates = [i for i in nearby if i != own and not any(answer in contexts[i].lower() for answer in answers)]
        others = sorted(candidates, key=lambda i: -len(words & keywords[i]))[:times]
        exchanged += [replace(question, context=contexts[i], answers=(), starts=()) for i in others]
    return exchanged


def _keywords(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) >= MIN_KEYWORD}


def make_windows(question: Question, tokenizer: Tokenizer, max_tokens: int) -> list[Example]:
    """Returns one example per window of the context. The target is [CLS] if the window does not contain the answer."""
    asked, context = tokenizer.tokenize([question.question, question.context])
    size = tokenizer.max_context_tokens(asked, max_tokens)
    if size <= 1:
        return []
    answer = find_answer(question)
    examples = []
    for window in tokenizer.windows(asked, context, 0, size, min(STRIDE, size // 2)):
        spans, first = window.token_spans, window.context_start
        target = (0, 0)
        if answer is not None:
            start = int(np.searchsorted(spans[:, 1], answer[0], side="right"))
            end = int(np.searchsorted(spans[:, 0], answer[1], side="left")) - 1
            is_inside = len(spans) and spans[0, 0] <= answer[0] and answer[1] <= spans[-1, 1]
            if is_inside and start <= end:
                target = (first + start, first + end)
        examples.append(Example(window, target, range(first, first + len(spans))))
    return examples


def find_answer(question: Question) -> tuple[int, int] | None:
    """Returns the first answer's position in the context, in code points, or None if it does not occur."""
    if not question.answers:
        return None
    text, start = question.answers[0], question.starts[0]
    if not question.context.startswith(text, start):
        start = question.context.find(text)
    return (start, start + len(text)) if text and start >= 0 else None
