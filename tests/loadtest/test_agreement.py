"""The agreement of answers, in the forms of the servers that are compared."""

from __future__ import annotations

import pytest

from loadtest.agreement import agreement, agrees, decided

GOOD, BAD = {"label": "good", "score": 0.7}, {"label": "bad", "score": 0.3}


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ([GOOD, BAD], "good"),
        ([BAD, GOOD], "good"),
        ([[BAD, GOOD]], "good"),
        ({"answer": "Bern", "score": 0.1, "start": 3, "end": 7}, "Bern"),
        ([{"token_str": "a", "score": 0.2, "sequence": "a"}, {"token_str": "b", "score": 0.1, "sequence": "b"}], "a"),
    ],
)
def test_an_answer_decides_by_its_best_score(answer, wanted):
    assert decided(answer) == wanted


def test_agreement_is_the_share_of_equal_decisions():
    same, other = [[GOOD, BAD]], [[{**BAD, "score": 0.9}, GOOD]]

    assert agreement("/classify", [same, same, same, other], [same] * 4) == 0.75
    assert [agrees("/classify", share) for share in (0.6, 0.75)] == [False, True]


def test_an_expected_word_agrees_if_it_is_among_those_that_are_answered():
    film, book = ({"token_str": word, "score": 0.3} for word in ("film", "book"))

    assert agreement("/fill-mask", [[film, {**book, "score": 0.2}], [film]], [[book], [book]]) == 0.5


def test_agreement_of_vectors_is_the_lowest_cosine_in_any_form():
    ours, theirs = [[3.0, 4.0], [1.0, 0.0]], {"data": [{"embedding": [0.6, 0.8]}, {"embedding": [0.8, 0.6]}]}

    assert agreement("/embed", [theirs], [ours]) == pytest.approx(0.8)
    assert agreement("/embed", [{"data": theirs["data"][:1]}], [ours]) == 0.0
    assert agreement("/embed", [ours], [ours]) == pytest.approx(1.0)
    assert [agrees("/embed", cosine) for cosine in (0.8, 0.98)] == [False, True]
