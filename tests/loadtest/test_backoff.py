"""Retries: how long a client waits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.backoff import INITIAL_S, MAX_S, backoff_s

seeds = st.integers(0, 2**32)


@given(st.integers(0, 50), seeds)
def test_backoff_is_at_most_a_limit_that_doubles(attempt, seed):
    wait = backoff_s(attempt, 0, random.Random(seed))

    assert 0 <= wait <= min(MAX_S, INITIAL_S * 2**attempt)


@given(st.integers(0, 50), st.floats(0.01, 3600), seeds)
def test_backoff_is_never_shorter_than_retry_after(attempt, retry_after_s, seed):
    assert retry_after_s <= backoff_s(attempt, retry_after_s, random.Random(seed)) <= 1.1 * retry_after_s


@pytest.mark.parametrize("retry_after_s", [0, 1])
def test_backoff_differs_between_clients(retry_after_s):
    assert len({backoff_s(3, retry_after_s, random.Random(seed)) for seed in range(20)}) == 20
