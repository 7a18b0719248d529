"""The languages of a checkpoint, read from its model card: the metadata at the beginning of README.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from swiftlet_models.artifact import LANGUAGE
from swiftlet_models.regular_file import check_regular

MODEL_CARD: Final = "README.md"
METADATA: Final = re.compile(r"\s*---[\r\n]+(.*?)[\r\n]+---(?:\r?\n|$)", re.DOTALL)  # as huggingface_hub finds them
MULTILINGUAL: Final = "multilingual"
NORWEGIAN: Final = "no"  # which YAML reads as false


def languages(directory: Path) -> tuple[str, ...]:
    """Returns the BCP 47 tags of a checkpoint's languages, in the order of its card.

    Empty if the directory has no card, or the card has no valid metadata, names no language or says `multilingual`.
    Also empty without the package pyyaml, which huggingface-hub brings. The container images lack both.
    """
    try:
        import yaml  # type: ignore[import-untyped]

        check_regular(directory / MODEL_CARD)
        block = METADATA.match((directory / MODEL_CARD).read_text("utf-8"))
        language = yaml.safe_load(block[1]).get("language", []) if block else []
    except Exception:  # a card is text of any author, and its errors have several types
        return ()
    tags = [NORWEGIAN if tag is False else tag for tag in (language if isinstance(language, list) else [language])]
    if MULTILINGUAL in tags:
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str) and LANGUAGE.fullmatch(tag))
