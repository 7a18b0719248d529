"""What pre-training learns from, tested on its statistics."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor

from models.training.objectives.masked_lm import Masked, mask, ngrams, words

CLS, SEP, MASK, SPECIAL, VOCABULARY = 2, 3, 4, 5, 1000
CONTINUES = torch.arange(VOCABULARY) >= 600  # of the pieces drawn, 40 in 100 go on with a word


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- What is masked together

ROWS = torch.randint(SPECIAL, VOCABULARY, (600, 128), generator=chance())
ROWS[:, 0], ROWS[:, 50], ROWS[:, -1] = CLS, SEP, SEP
ROWS[::4, 100:] = 0

by_words = partial(words, special=SPECIAL, continues=CONTINUES)
by_ngrams = partial(ngrams, special=SPECIAL, continues=CONTINUES)


def holes(rows: Tensor, spans: Tensor | None, seed: int = 1) -> Masked:
    return mask(rows, special=SPECIAL, mask_id=MASK, vocab_size=VOCABULARY, generator=chance(seed), spans=spans)


def stretches(spans: Tensor, rows: Tensor) -> list[tuple[int, list[int]]]:
    """Each span's row and the positions in it, without special tokens."""
    found: dict[tuple[int, int], list[int]] = {}
    for row, position in (rows >= SPECIAL).nonzero().tolist():
        found.setdefault((row, int(spans[row, position])), []).append(position)
    return [(row, positions) for (row, _), positions in found.items()]


def test_a_word_is_its_pieces_and_a_special_token_is_a_word():
    row = torch.tensor([[CLS, 7, 700, 701, 8, SEP, 702, 703, 9, SEP, 0, 0]])

    assert by_words(row).tolist() == [[0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8]]


def test_a_row_may_begin_within_a_word():
    assert by_words(torch.tensor([[700, 701, 8], [8, 700, 9]])).tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize("spans", [by_words(ROWS), by_ngrams(ROWS, generator=chance(2))], ids=["words", "ngrams"])
def test_of_the_real_tokens_15_in_100_are_masked_by_80_10_10_whatever_is_masked_together(spans):
    made = holes(ROWS, spans)
    before, after = ROWS.flatten()[made.focus], made.input_ids.flatten()[made.focus]
    others = (after != MASK) & (after != before)

    assert len(made.focus) / (ROWS >= SPECIAL).sum() == pytest.approx(0.15, abs=0.006)
    assert (before >= SPECIAL).all()
    assert torch.equal(made.targets, before)
    assert (after == MASK).float().mean() == pytest.approx(0.8, abs=0.02)
    assert others.float().mean() == pytest.approx(0.1, abs=0.015)
    assert (after == before).float().mean() == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize("spans", [by_words(ROWS), by_ngrams(ROWS, generator=chance(2))], ids=["words", "ngrams"])
def test_a_span_is_masked_as_a_whole_or_not_at_all(spans):
    chosen = torch.zeros(ROWS.numel(), dtype=torch.bool)
    chosen[holes(ROWS, spans).focus] = True
    counts = Counter(
        (len(positions), int(chosen.view(ROWS.shape)[row, positions].sum()))
        for row, positions in stretches(spans, ROWS)
    )

    assert {together for size, together in counts if size > 2} > {0}
    assert all(together in (0, size) for size, together in counts)


def test_a_long_word_is_masked_as_often_as_a_short_one():
    spans = by_words(ROWS)
    chosen = torch.zeros(ROWS.numel(), dtype=torch.bool)
    chosen[holes(ROWS, spans).focus] = True
    by_size: dict[int, list[bool]] = {}
    for row, positions in stretches(spans, ROWS):
        by_size.setdefault(len(positions), []).append(bool(chosen.view(ROWS.shape)[row, positions[0]]))

    for size in (1, 2, 3):
        assert sum(by_size[size]) / len(by_size[size]) == pytest.approx(0.15, abs=0.015)


def test_an_ngram_has_n_whole_words_with_chances_as_1_to_a_half_to_a_third():
    spans, whole = by_ngrams(ROWS, generator=chance(2)), by_words(ROWS)
    sizes, of_chosen = Counter[int](), Counter[int]()
    chosen = torch.zeros(ROWS.numel(), dtype=torch.bool)
    chosen[holes(ROWS, spans).focus] = True
    words_seen = 0
    for row, positions in stretches(spans, ROWS):
        n = len(set(whole[row, positions].tolist()))
        words_seen += n
        ends = {positions[-1] + 1, positions[0] - 1}
        if not any(ROWS[row, end] < SPECIAL for end in ends):  # those at a special token may have been cut
            sizes[n] += 1
            of_chosen[n] += bool(chosen.view(ROWS.shape)[row, positions[0]])

    # No word is in two spans, so that none was cut.
    assert words_seen == sum(len(set(whole[row][ROWS[row] >= SPECIAL].tolist())) for row in range(len(ROWS)))
    for n in (1, 2, 3):
        expected = (1 / n) / (1 + 1 / 2 + 1 / 3)
        assert sizes[n] / sizes.total() == pytest.approx(expected, abs=0.015)
        assert of_chosen[n] / of_chosen.total() == pytest.approx(expected, abs=0.03)


def test_no_ngram_reaches_over_a_special_token():
    for _, positions in stretches(by_ngrams(ROWS, generator=chance(2)), ROWS):
        assert positions == list(range(positions[0], positions[-1] + 1))


def test_spans_are_numbered_within_the_row_even_where_nothing_is_real():
    rows = torch.tensor([[0, 0, 0, 0], [CLS, SEP, 0, 0], [9, 9, 9, 9], [CLS, 9, SEP, 9]])

    for seed in range(20):
        spans = by_ngrams(rows, generator=chance(seed))
        assert spans.min() >= 0
        assert spans.max() < 4


def test_a_batch_with_a_word_has_something_to_predict_and_then_a_whole_one():
    row = torch.tensor([[CLS, 7, 700, SEP]])

    assert all(holes(row, by_words(row), seed).focus.tolist() == [1, 2] for seed in range(20))


@pytest.mark.parametrize("kind", ["tokens", "words", "ngrams"])
def test_a_row_is_masked_anew_at_each_visit_and_the_same_by_the_same_draw(kind):
    """RoBERTa's dynamic masking (Liu et al. 2019, arXiv:1907.11692, section 4.1)."""

    def visit(seed: int) -> set[int]:
        spans = {"tokens": lambda: None, "words": lambda: by_words(ROWS)}.get(
            kind, lambda: by_ngrams(ROWS, generator=chance(seed + 100))
        )()
        return set(holes(ROWS, spans, seed).focus.tolist())

    first, second = visit(1), visit(2)
    assert visit(1) == first
    # Two independent draws of 15 in 100 share 15 in 100 of their choices.
    assert len(first & second) / len(first) == pytest.approx(0.15, abs=0.02)
    seen = set[int]().union(*(visit(seed) for seed in range(30)))
    assert len(seen) / int((ROWS >= SPECIAL).sum()) > 0.985  # 1 - 0.85 ** 30 = 0.992
