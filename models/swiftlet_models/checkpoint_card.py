"""The languages of a checkpoint, read from its model card: the metadata at the beginning of README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from swiftlet_models.artifact import LANGUAGE

MODEL_CARD: Final = "README.md"
MULTILINGUAL: Final = "multilingual"
NORWEGIAN: Final = "no"  # which YAML reads as false


def languages(directory: Path) -> tuple[str, ...]:
    """Returns the BCP 47 tags of a checkpoint's languages, in the order of its card.

    Empty if the directory has no card, or the card has no valid metadata, names no language or says `multilingual`.
    Also empty without the package huggingface-hub, which the container images lack.
    """
    try:
        from huggingface_hub.repocard import metadata_load

        metadata: dict[str, Any] = metadata_load(directory / MODEL_CARD) or {}
    except Exception:  # a card is text of any author, and its errors have several types
        return ()
    language = metadata.get("language", [])
    tags = [NORWEGIAN if tag is False else tag for tag in (language if isinstance(language, list) else [language])]
    if MULTILINGUAL in tags:
        return ()
    return tuple(tag for tag in tags if isinstance(tag, str) and LANGUAGE.fullmatch(tag))
