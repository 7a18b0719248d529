"""The sizes of static batches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftlet_models.ragged.buckets import GROWTH, STEP, buckets, choose, token_counts
from swiftlet_models.ragged.layout import Sizes


@pytest.mark.parametrize("longest", [1, 16, 17, 512, 16384])
def test_token_counts_reach_the_longest_batch_in_small_steps(longest):
    counts = token_counts(longest)

    assert counts[0] == STEP
    assert counts[-1] >= longest
    assert all(count % STEP == 0 for count in counts)
    assert all(small < large <= max(small * GROWTH, small + STEP) for small, large in pairwise(counts))
    assert all(power in counts for power in (16, 512, 16384) if power <= longest)


def test_a_head_that_reads_every_token_has_one_bucket_of_each_size():
    found = list(buckets(1000, 64, "token"))

    assert [one.tokens for one in found] == token_counts(1000)
    assert all(one.focus == one.tokens for one in found)


@pytest.mark.parametrize("head", ["classification", "embedding"])
def test_a_head_that_reads_one_token_has_no_bucket_for_more(head):
    assert all(one.focus == one.rows for one in buckets(16384, 512, head))


def test_a_head_with_a_vocabulary_computes_it_for_few_tokens():
    available = list(buckets(16384, 512, "masked_lm"))

    assert choose(Sizes(528, 16, 16), available) == Sizes(640, 512, 48)
    assert choose(Sizes(528, 16, 49), available) == Sizes(640, 512, 512)
    assert choose(Sizes(16384, 512, 500), available).focus == 512


@given(st.integers(1, 16384), st.sampled_from(["classification", "masked_lm", "causal_lm", "token"]), st.data())
def test_every_batch_has_a_bucket_that_wastes_little(tokens, head, data):
    rows = data.draw(st.integers(1, min(tokens, 512)))
    focus = data.draw(st.integers(1, tokens if head in {"causal_lm", "token"} else rows))
    sizes = Sizes(tokens, rows, focus)

    found = choose(sizes, list(buckets(16384, 512, head)))

    assert found is not None
    assert found.holds(sizes)
    assert found.tokens < max(tokens * GROWTH, tokens + STEP)


def test_a_batch_beyond_the_buckets_has_none():
    available = list(buckets(64, 8, "token"))

    assert choose(Sizes(200, 2, 1), available) is None
    assert choose(Sizes(32, 9, 1), available) is None
    assert choose(Sizes(1, 1, 1), []) is None
