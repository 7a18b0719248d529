"""Corrupted sentences: one change each, and the same sentence again from the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_train.examples import corruption

SENTENCE = "The old man has walked to the river with his dogs ."
WORDS = SENTENCE.split()
SEEDS = range(30)


def changed(change, seed: int, words: list[str] | None = None) -> list[str]:
    return change(list(words or WORDS), np.random.default_rng(seed))


@pytest.mark.parametrize("change", [corruption.swap, corruption.move])
def test_moved_words_are_the_same_words(change):
    found = [changed(change, seed) for seed in SEEDS]

    assert all(sorted(words) == sorted(WORDS) for words in found)
    assert len({" ".join(words) for words in found}) > 5
    assert WORDS not in found


def test_move_reaches_every_place():
    places = {tuple(changed(corruption.move, seed, ["a", "b", "c"])) for seed in range(200)}

    assert places == {("b", "a", "c"), ("b", "c", "a"), ("a", "c", "b"), ("c", "a", "b")}


def test_a_word_of_two_rows_has_the_alternatives_of_both():
    assert set(corruption.ALTERNATIVES["that"]) == {"this", "these", "those", "and", "or", "but", "because", "if"}
    assert {"in", "will"} <= set(corruption.ALTERNATIVES["to"])


def test_swap_changes_two_neighbours():
    for seed in SEEDS:
        different = [
            i for i, (one, other) in enumerate(zip(changed(corruption.swap, seed), WORDS, strict=True)) if one != other
        ]
        assert len(different) == 2
        assert different[1] == different[0] + 1


def test_drop_leaves_out_one_word_and_insert_adds_a_function_word():
    for seed in SEEDS:
        assert changed(corruption.drop, seed) in [WORDS[:i] + WORDS[i + 1 :] for i in range(len(WORDS))]
        longer = changed(corruption.insert, seed)
        removed = [longer[i] for i in range(len(longer)) if longer[:i] + longer[i + 1 :] == WORDS]
        assert removed[0] in corruption.ALTERNATIVES


def test_exchange_puts_a_related_word():
    for seed in SEEDS:
        ((old, new),) = [
            pair for pair in zip(WORDS, changed(corruption.exchange, seed), strict=True) if pair[0] != pair[1]
        ]
        assert new in corruption.ALTERNATIVES[old.lower()]
    assert changed(corruption.exchange, 1, ["dogs", "bark", "loudly"]) != ["dogs", "bark", "loudly"]  # inflects one


@pytest.mark.parametrize(
    ("word", "forms"),
    [
        ("walk", {"walks", "walked", "walking"}),
        ("walking.", {"walk."}),
        ("dogs!", {"dog!"}),
        ("is", {"iss", "ised", "ising"}),
    ],
)
def test_inflect_adds_an_ending_or_takes_it_away(word, forms):
    assert {changed(corruption.inflect, seed, [word])[0] for seed in SEEDS} == forms


@given(st.lists(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1), max_size=12), st.integers(0, 9))
def test_corrupt_changes_any_text_the_same_way_again(words, seed):
    text = " ".join(words)
    once, again = (corruption.corrupt(text, np.random.default_rng(seed)) for _ in range(2))

    assert once == again
    assert abs(len(once.split()) - len(text.split())) <= 2
    if len(text.split()) <= 2:
        assert once == " ".join(text.split())


def test_corrupt_changes_most_sentences():
    assert sum(corruption.corrupt(SENTENCE, np.random.default_rng(seed)) != SENTENCE for seed in range(200)) > 170
