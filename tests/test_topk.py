"""Top-k of rows: the largest logits, their columns, and the total."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.encodings import Encoding
from swiftlet_serve.types import Batch
from swiftlet_serve.types.topk import NOTHING, Ranked, Ranking, rank, top, width


def numbers(rows: int, columns: int, seed: int, *, coarse: bool) -> np.ndarray:
    found = 4 * np.random.default_rng(seed).normal(size=(rows, columns))
    return (found.round() if coarse else found).astype(np.float32)  # rounding makes many logits equal


ROWS = st.builds(
    numbers,
    st.integers(1, 3),
    st.integers(1, 20) | st.integers(1, 9000),
    st.integers(0, 2**32 - 1),
    coarse=st.booleans(),
)


@given(rows=ROWS, top_k=st.integers(1, 100))
def test_top_returns_largest_columns(rows, top_k):
    for row, places in zip(rows, top(rows, top_k), strict=True):
        assert len(set(places.tolist())) == min(top_k, rows.shape[1])
        np.testing.assert_array_equal(row[places], np.sort(row)[::-1][:top_k])


@given(rows=ROWS, top_k=st.integers(1, 100), data=st.data())
def test_rank_keeps_softmax_over_all_columns(rows, top_k, data):
    columns = st.sampled_from(range(rows.shape[1]))
    candidates = np.array(data.draw(st.lists(columns, max_size=20, unique=True)), np.int64)
    ranked = rank(rows, top_k, candidates)
    total, largest, found = Ranking.of(ranked)

    assert ranked.dtype == np.float32
    assert ranked.shape == (len(rows), width(top_k, len(candidates), rows.shape[1]))
    for row, own_total, own_largest, own_found in zip(rows, total, largest, found, strict=True):
        counting = row[candidates] if len(candidates) else row
        assert own_largest.tolist() == np.sort(counting)[::-1][:top_k].tolist()
        assert own_largest.tolist() == row[own_found].tolist()
        assert not len(candidates) or set(own_found.tolist()) <= set(candidates.tolist())
        odds = np.exp(row.astype(np.float64))
        np.testing.assert_allclose(
            np.exp(own_largest.astype(np.float64) - own_total), odds[own_found] / odds.sum(), 1e-5
        )


def test_rank_accepts_no_rows():
    assert rank(np.zeros((0, 30_522), np.float32), 5, NOTHING).shape == (0, 11)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("candidates", [NOTHING, np.array([3])])
def test_rank_propagates_non_finite_logits(wrong, candidates):
    rows = numbers(2, 300, seed=0, coarse=False)
    rows[1, 123] = wrong
    ranked = rank(rows, 5, candidates)

    assert np.isfinite(ranked[0]).all()
    assert not np.isfinite(ranked[1]).all()


def test_batch_ranks_only_ranked_sequences():
    plain = Encoding(*(np.array(part, np.int64) for part in ([1, 2, 3], [0, 0, 0], [0, 2])))
    ranked = Ranked(**vars(plain), top_k=2, candidates=NOTHING)
    chosen = Ranked(**vars(plain), top_k=9, candidates=np.array([4, 1]))
    batch = Batch.of([plain, ranked, chosen, plain])
    rows = numbers(8, 10, seed=1, coarse=False)
    split = batch.split_rows(rows)

    assert batch.row_shapes([10]) == [(2, 10), (2, 5), (2, 5), (2, 10)]
    assert [row.shape for row in split] == [(2, 10), (2, 5), (2, 5), (2, 10)]
    np.testing.assert_array_equal(split[0], rows[:2])
    np.testing.assert_array_equal(split[1], rank(rows[2:4], 2, NOTHING))
    np.testing.assert_array_equal(split[2], rank(rows[4:6], 9, np.array([4, 1])))
    np.testing.assert_array_equal(split[3], rows[6:])
    assert not any(np.shares_memory(row, rows) for row in split)
    for wrong in (7, 9):
        shapes = [row.shape for row in batch.split_rows(numbers(wrong, 10, seed=1, coarse=False))]
        assert shapes != batch.row_shapes([10])
