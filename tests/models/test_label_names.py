"""Names of labels."""

from __future__ import annotations

import pytest

from swiftlet_models.label_names import in_words, names_in_words


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


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("Is it about PlayMusic or  alarm_query", "Is it about Play Music or  alarm query"),
        ("서울_날씨", "서울 날씨"),
        ("__add_toPlaylist_", "add to Playlist"),
    ],
)
def test_names_in_a_text_are_read_as_their_words(text, read):
    assert names_in_words(text) == read


@pytest.mark.parametrize(
    "text",
    ["Play Music", "USA", "___", " _ ", " / ", "AC/DC", "he/she", "https://x.y/a_b", "a\n\tb", "", "서울", "24/7"],
)
def test_other_texts_stay_as_they_are(text):
    assert names_in_words(text) == text


def test_long_names_are_read_in_linear_time():
    assert names_in_words("a_" * 500_000 + "?") == "a_" * 500_000 + "?"
