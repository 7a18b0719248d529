"""Names of labels, as programs and data sets write them."""

from __future__ import annotations

import re
from typing import Final

WORD_BORDER: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_/]+")


def is_name(text: str) -> bool:
    """Tells whether a text has words that are written as one."""
    return WORD_BORDER.search(text.strip("_/")) is not None


def in_words(name: str) -> str:
    """Returns the words of a name such as `PlayMusic` or `alarm_query`, as people write them."""
    return " ".join(WORD_BORDER.sub(" ", name).split())
