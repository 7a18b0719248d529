"""The two tiers of tests: `make test` runs the first one, and `make exhaustive` the second, every night.

The second tier has further cases of what a case of the first tier shows, or more of the same work. They have the mark
`exhaustive`, which these functions give to cases. It also repeats the tests of properties with many more examples.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest


def first(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Returns the parameters of a test. The chosen cases are in the first tier."""
    every = list(cases)
    assert all(case in every for case in chosen), chosen
    return [_in_tier(case, case in chosen) for case in every]


def first_of_each(cases: Iterable[Any], kind: Callable[[Any], Hashable]) -> list[Any]:
    """Returns the parameters of a test. The first case of each kind is in the first tier."""
    kinds, marked = set[Hashable](), []
    for case in cases:
        marked.append(_in_tier(case, kind(case) not in kinds))
        kinds.add(kind(case))
    return marked


def _in_tier(case: Any, is_first: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if is_first else pytest.mark.exhaustive)
