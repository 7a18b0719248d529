"""Makes questions from the sentences of running text. A teacher of question answering then answers them.

A question word replaces a name, a number or a noun phrase of a sentence, and moves to the front, as in the noisy clozes
of Lewis et al. 2019 (arXiv:1906.04980, section 2.2). The answer of the teacher may differ from the replaced words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

MAX_WORDS: Final = 8  # of a question on each side of the answer's place
MIN_WORDS: Final = 3  # beside the question word
DROPPED: Final = 0.1  # the probability that a word is left out
CLAUSE_END: Final = re.compile(r"[,;:()\"“”]")
PLACE: Final = re.compile(r"\b(?:in|at|from|near|to) $")
VERBS: Final = frozenset(
    {"is", "are", "was", "were", "has", "have", "had", "can", "could", "will", "would", "did", "does"}
)


@dataclass(frozen=True)
class AnswerType:
    """A type of answer: the text that it matches, and the question words that ask for it."""

    pattern: re.Pattern[str]
    question_words: Sequence[str]


CAPITALISED: Final = r"[A-Z][\w'’-]+"
YEARS: Final = AnswerType(re.compile(r"\b(?:1\d{3}|20\d{2})\b"), ("When", "In what year"))
NAMES: Final = AnswerType(
    re.compile(rf"\b{CAPITALISED}(?: (?:(?:of|the|de|von|van) )?{CAPITALISED})*"), ("Who", "What", "Which")
)
ANSWER_TYPES: Final[Sequence[AnswerType]] = (
    YEARS,
    AnswerType(re.compile(r"\b\d{1,3}(?:[.,]\d+)*\b(?![\w-])"), ("How many", "How much")),
    NAMES,
    AnswerType(
        re.compile(
            r"\b(?:the|an?|its|his|her|their) (?:[a-z-]+ ){0,2}[a-z-]+"
            r"(?=[,.;)]| (?:of|in|on|for|with|by|and|that|which|to|from|is|was|are|were)\b)"
        ),
        ("What",),
    ),
)


def make_question(sentence: str, chance: np.random.Generator) -> str | None:
    """Returns a question about a random part of the sentence, or None if it has no part to ask for."""
    answers = [(kind, places) for kind in ANSWER_TYPES if (places := find_places(kind, sentence))]
    if not answers:
        return None
    answer, places = answers[int(chance.integers(len(answers)))]
    place = places[int(chance.integers(len(places)))]
    before, after = sentence[: place.start()], sentence[place.end() :]
    start, end = (_words(part) for part in (CLAUSE_END.split(before)[-1], CLAUSE_END.split(after)[0]))
    if len(start) + len(end) < MIN_WORDS:
        start, end = _words(before), _words(after)
    verb = next((word for word in start if word in VERBS), "")
    start = [word for word in start if word != verb]
    kept = [word for word in (*start[-MAX_WORDS:], *end[:MAX_WORDS]) if chance.random() >= DROPPED]
    if len(kept) < MIN_WORDS:
        return None
    asks = answer.question_words
    if "Who" in asks and PLACE.search(before):
        asks = ("Where", "What")
    return " ".join([asks[int(chance.integers(len(asks)))], *([verb] if verb else []), *kept]) + "?"


def find_places(answer: AnswerType, sentence: str) -> list[re.Match[str]]:
    """Returns the places of all answers of a type. A single capitalised word at the start is rarely a name."""
    places = answer.pattern.finditer(sentence)
    return [place for place in places if place.start() or " " in place.group()]


def _words(text: str) -> list[str]:
    return re.findall(r"[\w'’%$€£-]+", text)
