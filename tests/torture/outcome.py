"""The result of a torture case."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    case: str
    n: int
    result: str
    goal: str
    passed: bool


def scaled(count: int, scale: float, minimum: int) -> int:
    return max(minimum, round(count * scale))
