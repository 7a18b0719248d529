"""Corruption of sentences: changes that often make a sentence unacceptable, for a teacher of acceptability to judge.

Almost all natural sentences are acceptable. They alone teach a student nothing about unacceptable ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import numpy as np

Words = list[str]
T = TypeVar("T")

FORMS: Final[Sequence[Sequence[str]]] = (
    ("is", "are", "be", "being", "been", "was", "were"),
    ("has", "have", "having", "had"),
    ("do", "does", "did", "doing", "done"),
    ("he", "him", "his", "himself"),
    ("she", "her", "hers", "herself"),
    ("they", "them", "their", "themselves"),
    ("i", "me", "my", "myself"),
    ("we", "us", "our", "ourselves"),
    ("who", "whom", "whose", "which", "what"),
    ("this", "these", "that", "those"),
    ("a", "an", "the", "some", "any", "every"),
    ("much", "many", "more", "most"),
    ("in", "on", "at", "to", "of", "for", "with", "by", "from", "about"),
    ("and", "or", "but", "because", "that", "if"),
    ("can", "will", "must", "would", "could", "to"),
)
"""Words that a corruption exchanges for one another."""
ALTERNATIVES: Final = {
    word: [form for forms in FORMS if word in forms for form in forms if form != word]
    for word in dict.fromkeys(word for forms in FORMS for word in forms)
}
"""The words that may replace a word: those of every row that holds it."""
ENDINGS: Final = ("s", "ed", "ing")


def corrupt(sentence: str, chance: np.random.Generator) -> str:
    """Returns a sentence with one or two changes: words moved, left out, inserted, exchanged or inflected."""
    words = sentence.split()
    for _ in range(1 + int(chance.random() < 0.3)):
        if len(words) > 2:  # shorter ones have nothing to move
            words = _choose(CHANGES, chance)(words, chance)
    return " ".join(words)


def swap(words: Words, chance: np.random.Generator) -> Words:
    """Swaps two neighbours."""
    i = int(chance.integers(len(words) - 1))
    return [*words[:i], words[i + 1], words[i], *words[i + 2 :]]


def move(words: Words, chance: np.random.Generator) -> Words:
    """Moves a word to another place."""
    i = int(chance.integers(len(words)))
    rest = [*words[:i], *words[i + 1 :]]
    j = (i + 1 + int(chance.integers(len(rest)))) % len(words)  # any place but its own
    return [*rest[:j], words[i], *rest[j:]]


def drop(words: Words, chance: np.random.Generator) -> Words:
    """Leaves out a word."""
    i = int(chance.integers(len(words)))
    return [*words[:i], *words[i + 1 :]]


def insert(words: Words, chance: np.random.Generator) -> Words:
    """Inserts a function word."""
    i = int(chance.integers(len(words)))
    return [*words[:i], _choose(_choose(FORMS, chance), chance), *words[i:]]


def exchange(words: Words, chance: np.random.Generator) -> Words:
    """Exchanges a function word for a related one. Inflects a word if the text has no function word."""
    places = [i for i, word in enumerate(words) if word.lower() in ALTERNATIVES]
    if not places:
        return inflect(words, chance)
    i = _choose(places, chance)
    return [*words[:i], _choose(ALTERNATIVES[words[i].lower()], chance), *words[i + 1 :]]


def inflect(words: Words, chance: np.random.Generator) -> Words:
    """Adds an ending to a word, or takes it away."""
    i = int(chance.integers(len(words)))
    word = words[i].rstrip(".,;:!?")
    mark = words[i][len(word) :]
    ending = next((ending for ending in ENDINGS if word.endswith(ending) and len(word) > len(ending) + 2), None)
    changed = word[: -len(ending)] if ending else word + _choose(ENDINGS, chance)
    return [*words[:i], changed + mark, *words[i + 1 :]]


def _choose(options: Sequence[T], chance: np.random.Generator) -> T:
    return options[int(chance.integers(len(options)))]


CHANGES: Final[Sequence[Callable[[Words, np.random.Generator], Words]]] = (swap, move, drop, insert, exchange, inflect)
