"""JSON that every parser reads alike, and no deeper than a program can."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 32  # of the manifest and the card


def read_json(file: Path) -> object:
    """Returns the document of a JSON file.

    Raises:
        ValueError, RecursionError: the file is not valid JSON, or has a repeated key, a number that is not finite, or
            more than `MAX_DEPTH` levels.
    """
    text = file.read_text("utf-8")
    document: object = json.loads(text, object_pairs_hook=_object_once, parse_constant=_refuse_constant)
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            break
        children = (sub.values() if isinstance(sub, dict) else sub for sub in level if isinstance(sub, dict | list))
        level = list(chain.from_iterable(children))
        if not level:
            return document
    raise ValueError("the document is too deep, or has a number that is not finite")


def _object_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object. Raises ValueError for a repeated key, which JSON parsers resolve differently."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    """Raises ValueError for NaN and infinities, which Python accepts and JSON does not have."""
    raise ValueError(name)
