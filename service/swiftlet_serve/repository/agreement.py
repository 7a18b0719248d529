"""Compares two answers to the same request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, get_args

from pydantic_core import from_json

from swiftlet_models.artifact import Output
from swiftlet_serve.tasks._vector_forms import read, similarity
from swiftlet_serve.types import json_text

EQUAL_VECTORS: Final = 0.99  # the least cosine of two embeddings that agree


class Agreement(NamedTuple):
    """The comparison of two answers."""

    agrees: bool  # whether they say the same about every input
    shift: float  # the largest difference of the scores of equal entries, or 1 - cosine of embeddings


def compare(served: Any, candidate: Any, *, several: bool) -> Agreement:
    """Compares two answers of one task.

    Of a ranking, only the best entry counts. Entries in another order, such as the entities in a text, all count.

    Args:
        served, candidate: the answers, as JSON-serialisable values.
        several: whether the request has a list of inputs, so that the answers are lists.
    """
    left, right = _per_input(served, several), _per_input(candidate, several)
    if len(left) != len(right):
        return Agreement(agrees=False, shift=0.0)
    entries = [compare_one(*pair) for pair in zip(left, right, strict=True)]
    return Agreement(all(entry.agrees for entry in entries), max((entry.shift for entry in entries), default=0.0))


def _per_input(answer: Any, several: bool) -> list[Any]:
    plain = from_json(json_text.write(answer))
    return plain if several or (isinstance(plain, list) and plain and isinstance(plain[0], list)) else [plain]


def compare_one(served: Any, candidate: Any) -> Agreement:
    """Compares two answers about one input, as plain JSON. Those of different shapes differ."""
    try:
        return _compare_one(served, candidate)
    except (ValueError, TypeError, OverflowError):  # vectors of another kind or size; numbers too large
        return Agreement(agrees=False, shift=0.0)


def _compare_one(served: Any, candidate: Any) -> Agreement:
    if _is_vector(served) and _is_vector(candidate):
        cosine = _cosine(served, candidate)
        return Agreement(cosine >= EQUAL_VECTORS, 1 - cosine)
    if _is_form(served) and _is_form(candidate):
        near = similarity(read(served), read(candidate))
        return Agreement(near >= EQUAL_VECTORS, 1 - near)
    left, right = _entries(served), _entries(candidate)
    agrees = [meaning for meaning, _ in left] == [meaning for meaning, _ in right]
    shifts = [abs(a - b) for (_, a), (_, b) in zip(left, right, strict=False)] if agrees else []
    return Agreement(agrees, max(shifts, default=0.0))


def _entries(answer: Any) -> list[tuple[Any, float]]:
    """Returns what an answer says, with the scores."""
    if isinstance(answer, dict) and "labels" in answer and "scores" in answer:  # a ranking in columns
        answer = [{"label": a, "score": b} for a, b in zip(answer["labels"], answer["scores"], strict=False)]
    entries = [_entry(item) for item in answer] if isinstance(answer, list) else [_entry(answer)]
    scores = [score for _, score in entries]
    is_ranking = scores == sorted(scores, reverse=True) and not any(_is_entity(meaning) for meaning, _ in entries)
    return entries[:1] if is_ranking else entries


def _is_entity(meaning: Any) -> bool:
    """Returns whether something is an entity of a text. Entities are no ranking, even where their scores fall."""
    return isinstance(meaning, dict) and not meaning.keys().isdisjoint(("entity", "entity_group"))


def _entry(item: Any) -> tuple[Any, float]:
    if not isinstance(item, dict):
        return item, 0.0
    score = item.get("score")
    meaning = {name: value for name, value in item.items() if name != "score"}
    return meaning, float(score) if isinstance(score, int | float) else 0.0


def _is_vector(answer: Any) -> bool:
    return isinstance(answer, list) and bool(answer) and all(isinstance(number, int | float) for number in answer)


def _is_form(answer: Any) -> bool:
    """Returns whether an answer is sparse, or a vector for each token. Of several forms, the first one counts."""
    if isinstance(answer, dict):
        return "indices" in answer or not answer.keys().isdisjoint(get_args(Output))
    return isinstance(answer, list) and bool(answer) and all(map(_is_vector, answer))


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) != len(b):
        return 0.0
    product = math.sqrt(_square(a) * _square(b))
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / product if product else float(list(a) == list(b))


def _square(vector: Iterable[float]) -> float:
    return math.fsum(number * number for number in vector)
