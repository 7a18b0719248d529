"""Names of labels, as programs and data sets write them."""

from __future__ import annotations

import re
from typing import Final

WORD_BORDER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_/]+")
NAME: Final = re.compile(r"(?<!\S)(?=\w*(?:[a-z][A-Z]|[^\W_]_+[^\W_]))\w+(?!\S)")  # between white space


def in_words(name: str) -> str:
    """Returns the words of a name such as `PlayMusic` or `alarm_query`, as people write them."""
    return " ".join(WORD_BORDER.sub(" ", name).split())


def names_in_words(text: str) -> str:
    """Returns a text with the words of the names in it. Paths and other words with signs stay as they are."""
    return NAME.sub(lambda name: in_words(name[0]), text)
