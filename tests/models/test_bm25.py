"""BM25 against its formula, computed by hand."""

from __future__ import annotations

import math

import pytest

from swiftlet_models.bm25 import BM25

TEXTS = ["the cat sat", "the dog sat on the cat", "Über 고양이"]


def test_score_is_that_of_the_formula():
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = rarity * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / (11 / 3)))

    assert BM25(TEXTS).score("cat", TEXTS[0]) == pytest.approx(expected)


def test_score_prefers_rare_words_and_short_texts():
    bm25 = BM25(TEXTS)

    assert bm25.score("a dog", TEXTS[1]) > bm25.score("a cat", TEXTS[1]) > 0
    assert bm25.score("sat", TEXTS[0]) > bm25.score("sat", TEXTS[1])
    assert bm25.score("고양이 ÜBER", TEXTS[2]) > 0 == bm25.score("bird", TEXTS[2]) == bm25.score("", "")
