"""Names of labels."""

from __future__ import annotations

import pytest

from swiftlet_models.label_names import in_words, is_name


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("PlayMusic", "Play Music"),
        ("alarm_query", "alarm query"),
        ("it's", "it's"),
        ("서울_날씨", "서울 날씨"),
        ("USA", "USA"),
    ],
)
def test_names_are_read_as_their_words(name, words):
    assert in_words(name) == words


@pytest.mark.parametrize("text", ["PlayMusic", "alarm_query", "a PlayMusic b"])
def test_words_that_are_written_as_one_are_names(text):
    assert is_name(text)


@pytest.mark.parametrize("text", ["Play Music", "USA", "___", "/", "a  b", "", "서울"])
def test_words_and_signs_are_no_names(text):
    assert not is_name(text)
