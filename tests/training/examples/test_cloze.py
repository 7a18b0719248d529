"""Questions made from sentences."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_train.examples.cloze import MAX_WORDS, MIN_WORDS, make_question

SENTENCES = [
    "In 1898 the company moved to the old harbour of Larvik, where Anna Berg built 40 boats.",
    "The museum was founded by Ida Lund in 1902 and has 12,500 pictures.",
    "\u110b\u1161 Se\u0301bastien wrote the novel of his life \U0001f600 in Paris.",
]


def ask(sentence: str, count: int = 200) -> set[str]:
    return {asked for seed in range(count) if (asked := make_question(sentence, np.random.default_rng(seed)))}


@given(st.text() | st.sampled_from(SENTENCES), st.integers(0, 2**32))
def test_question_has_words_of_the_sentence_alone(sentence, seed):
    asked = make_question(sentence, np.random.default_rng(seed))
    assert asked == make_question(sentence, np.random.default_rng(seed))
    if asked is None:
        return
    match = re.fullmatch(r"(In what year|When|How many|How much|Who|What|Which|Where) (.+)\?", asked, re.DOTALL)
    assert match is not None
    words = match[2].split(" ")
    assert MIN_WORDS <= len(words) <= 2 * MAX_WORDS + 1
    assert all(word in sentence for word in words)


@pytest.mark.parametrize(
    ("start", "left_out"),
    [
        ("When was", "1902"),
        ("How many", "12,500"),
        ("Who was", "Lund"),
        ("What", "museum"),
    ],
)
def test_question_asks_for_each_kind_of_answer(start, left_out):
    found = [asked for asked in ask(SENTENCES[1]) if asked.startswith(start)]
    assert found
    assert any(left_out not in asked for asked in found)


def test_question_asks_where_after_a_preposition_of_place():
    assert any(asked.startswith("Where") for asked in ask("The painter lived in Paris until the end of his life."))


def test_question_moves_the_verb_to_the_front():
    assert any(asked.startswith("When was The museum") for asked in ask(SENTENCES[1]))


@pytest.mark.parametrize("sentence", ["", "It rained and then snowed.", "Paris is old."])
def test_sentence_without_answers_gives_no_question(sentence):
    """A single capital word at the start is rarely a name."""
    assert not ask(sentence)
