"""Questions that are asked of paragraphs of running text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.datasets import Question
from swiftlet_train.examples.question_transfer import BEST, transfer_questions

PAINTER = "The harbour was painted by Anna Berg. She finished the picture in 1902, and Ida Lund bought it."
BRIDGE = "The old bridge crosses the river at Larvik. Workers built the stone bridge in 1898."


def ask(text: str) -> Question:
    return Question("1", text, "a context", ("a",), (0,))


def transfer(texts: list[str], paragraphs: list[str], count: int) -> list[Question]:
    return transfer_questions([ask(text) for text in texts], paragraphs, count)


def test_a_question_goes_to_the_paragraphs_that_share_its_words():
    asked = ["Who painted the old pictures?", "Which bridges did they build of stone?"]
    found = transfer(asked, [PAINTER, BRIDGE, "Nothing here is alike. Birds sing."], 4)

    contexts = {question.question: set() for question in found}
    for question in found:
        contexts[question.question].add(question.context)
    assert PAINTER in contexts[asked[0]]
    assert contexts[asked[1]] == {BRIDGE}
    assert all(not question.answers and not question.starts for question in found)


def test_a_question_takes_names_and_years_of_the_paragraph():
    found = [transfer(["When did Peter Holm finish a picture before 1850?"], [PAINTER], 1)[0].question]
    found += [transfer(["Which Norwegian harbour was painted in 1850?"], [PAINTER], 1)[0].question]

    match = re.fullmatch(r"When did (.+) finish a picture before 1902\?", found[0])
    assert match is not None
    assert match[1] in ("Anna Berg", "Ida Lund")  # The and She begin sentences
    assert re.fullmatch(r"Which (Anna Berg|Ida Lund) harbour was painted in 1902\?", found[1])


@pytest.mark.parametrize("text", [" Who painted it?", "In What year was it painted?", "For Whom was it painted?"])
def test_a_question_keeps_its_question_word(text):
    (found,) = transfer([text], [PAINTER], 1)

    assert found.question == text.strip()


def test_a_question_goes_to_the_first_of_equal_paragraphs():
    paragraphs = [f"A stone bridge is number {i}." for i in range(BEST * 3)]
    found = transfer(["Which stone bridge?"], paragraphs, BEST)

    assert {question.context for question in found} == {*paragraphs[:BEST]}


def test_a_question_keeps_its_names_if_the_paragraph_has_none():
    (found,) = transfer(["Who saw birds in Larvik in 1850?"], ["Nothing here is alike, and birds sing."], 1)

    assert found.question == "Who saw birds in Larvik in 1850?"


@pytest.mark.parametrize("text", ["Who?", "What is it?", "누가 그렸는가?", "What happened there?", "Why\u00a0so 🎬?"])
def test_a_question_without_shared_words_goes_nowhere(text):
    assert not transfer([text], [PAINTER, BRIDGE], 1)
    assert {found.question for found in transfer([text, "Who painted it?"], [PAINTER, BRIDGE], 2)} == {
        "Who painted it?"
    }


def test_questions_occur_about_equally_often_and_at_most_as_often_as_there_are_paragraphs():
    paragraphs = [f"The stone bridge number {i} is long." for i in range(BEST + 5)]
    asked = [f"Which bridge is {word}?" for word in ("long", "made of stone", "the longest of all")]

    found = [question.question for question in transfer(asked, paragraphs, 10)]
    assert sorted(map(found.count, asked)) == [3, 3, 4]
    assert len({*map(str, transfer(asked[:1], paragraphs, 999))}) == BEST


texts = st.lists(st.text() | st.sampled_from([PAINTER, BRIDGE, "Who painted it in 1850?", "Why?"]))


@given(texts, texts, st.integers(0, 20))
def test_any_texts_can_be_transferred(asked, paragraphs, count):
    found = transfer(asked, paragraphs, count)

    assert found == transfer(asked, paragraphs, count)
    assert len(found) <= count
    assert {question.context for question in found} <= {*paragraphs}
