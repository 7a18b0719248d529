"""A breaker opens for what is broken, and for nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.breaker import Breaker

LIMITS = st.integers(1, 10)


@given(LIMITS)
def test_an_engine_is_replaced_at_the_limit_and_whenever_its_failures_have_doubled(limit):
    breaker = Breaker(limit)

    assert [n for n in range(1, 9 * limit) if breaker.note(good=False)] == [limit, 2 * limit, 4 * limit, 8 * limit]


@given(LIMITS)
def test_it_opens_when_a_new_engine_was_no_help(limit):
    breaker = Breaker(limit)
    open_after = []
    for _ in range(3 * limit):
        breaker.note(good=False)
        open_after.append(breaker.open)

    assert open_after == [False] * (2 * limit - 1) + [True] * (limit + 1)


@given(LIMITS, st.lists(st.booleans()))
def test_it_is_closed_after_any_success(limit, calls):
    breaker = Breaker(limit)
    for good in [*calls, False, True]:
        replace = breaker.note(good)

    assert not breaker.open
    assert not replace
