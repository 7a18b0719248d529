"""How well the answers of two servers agree, in the forms of Swiftlet, its baselines and OpenAI's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

LEAST_SHARE: Final = 0.7  # of equal answers: two ways to round to int8 differ for some texts
LEAST_COSINE: Final = 0.95  # of the vectors of a text; those of other texts have 0.7 to 0.9 in e5


def agreement(path: str, answers: Sequence[Any], expected: Sequence[Any]) -> float:
    """Returns how well the answers to requests of a path agree with the expected ones.

    Of vectors, this is the lowest cosine, and of other answers the share that decide the same. A masked word has many
    near ties: the expected one must be among those that are answered.
    """
    pairs = list(zip(answers, expected, strict=True))
    if path == "/embed":
        return min(_lowest_cosine(vectors(a), vectors(b)) for a, b in pairs)
    if path == "/fill-mask":
        return float(np.mean([decided(b) in [entry["token_str"] for entry in a] for a, b in pairs]))
    return float(np.mean([decided(a) == decided(b) for a, b in pairs]))


def agrees(path: str, agreed: float) -> bool:
    return agreed >= (LEAST_COSINE if path == "/embed" else LEAST_SHARE)


def decided(answer: Any) -> Any:
    """Returns what an answer decides: the best label, the span or the best token."""
    while isinstance(answer, list):  # of entries, or of one list of them for each text
        answer = answer[0] if isinstance(answer[0], list) else max(answer, key=lambda entry: entry["score"])
    return next(answer[field] for field in ("answer", "token_str", "label") if field in answer)


def vectors(answer: Any) -> list[list[float]]:
    return [entry["embedding"] for entry in answer["data"]] if isinstance(answer, dict) else answer


def _lowest_cosine(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    if np.shape(first) != np.shape(second):
        return 0.0
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float((np.sum(np.multiply(first, second), axis=1) / norms).min())
