"""Scores texts for a query by the words that they share: BM25 (Robertson and Zaragoza 2009).

It is the baseline that a model for reranking has to beat.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

K1: Final = 1.2
B: Final = 0.75


class BM25:
    """The frequencies of words in a collection of texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Counts the words of a collection that is not empty."""
        split = [words(text) for text in texts]
        self._texts = len(split)
        self._containing = Counter(word for text in split for word in set(text))
        self._mean_length = sum(map(len, split)) / self._texts

    def score(self, query: str, text: str) -> float:
        """Returns the score of a text for a query. It is 0 if they share no word."""
        text_words = words(text)
        counts = Counter(text_words)
        scale = K1 * (1 - B + B * len(text_words) / (self._mean_length or 1.0))
        return sum(
            self._rarity(word) * counts[word] * (K1 + 1) / (counts[word] + scale)
            for word in set(words(query))
            if counts[word]
        )

    def _rarity(self, word: str) -> float:
        containing = self._containing[word]
        return math.log(1 + (self._texts - containing + 0.5) / (containing + 0.5))


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case."""
    return re.findall(r"\w+", text.lower())
