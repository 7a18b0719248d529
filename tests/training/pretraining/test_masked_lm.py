"""Masked language modelling, tested by its statistics."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor

from swiftlet_train.pretraining.objectives.masked_lm import Masked, mask, ngram_spans, word_spans


@pytest.fixture(scope="module")
def masked():
    """Sequences with [CLS] 2, words from 5 on, [SEP] 3 and padding 0, and the result of masking them."""
    sequences = torch.randint(5, 1000, (400, 128), generator=torch.Generator().manual_seed(0))
    sequences[:, 0], sequences[:, -1] = 2, 3
    sequences[::4, 100:] = 0
    return sequences, mask(
        sequences, first_word_id=5, mask_id=4, vocab_size=1000, generator=torch.Generator().manual_seed(1)
    )


def test_mask_chooses_15_percent_of_tokens_and_no_special_tokens(masked):
    sequences, result = masked

    assert len(result.focus) / (sequences >= 5).sum() == pytest.approx(0.15, abs=0.005)
    assert (sequences.flatten()[result.focus] >= 5).all()
    assert len(set(result.focus.tolist())) == len(result.focus)


def test_mask_replaces_80_percent_by_mask_and_10_percent_by_random_tokens(masked):
    sequences, result = masked
    before, after = sequences.flatten()[result.focus], result.input_ids.flatten()[result.focus]
    others = (after != 4) & (after != before)

    assert (after == 4).float().mean() == pytest.approx(0.8, abs=0.02)
    assert others.float().mean() == pytest.approx(0.1, abs=0.015)
    assert (after == before).float().mean() == pytest.approx(0.1, abs=0.015)
    assert after[others].min() >= 5
    assert len(after[others].unique()) > 300


def test_mask_uses_the_given_probability(masked):
    sequences, _ = masked
    generator = torch.Generator().manual_seed(1)
    result = mask(sequences, first_word_id=5, mask_id=4, vocab_size=1000, generator=generator, probability=0.4)

    assert len(result.focus) / (sequences >= 5).sum() == pytest.approx(0.4, abs=0.01)


def test_mask_keeps_other_tokens_and_returns_originals_as_targets(masked):
    sequences, result = masked
    unchanged = torch.ones(sequences.numel(), dtype=torch.bool)
    unchanged[result.focus] = False

    assert torch.equal(result.input_ids.flatten()[unchanged], sequences.flatten()[unchanged])
    assert torch.equal(result.targets, sequences.flatten()[result.focus])


def test_mask_depends_on_the_generator_and_leaves_its_input_unchanged(masked):
    sequences, result = masked
    before = sequences.clone()
    draw = partial(mask, sequences, first_word_id=5, mask_id=4, vocab_size=1000)
    again = draw(generator=torch.Generator().manual_seed(1))
    other = draw(generator=torch.Generator().manual_seed(2))

    assert torch.equal(sequences, before)
    assert torch.equal(again.input_ids, result.input_ids)
    assert not torch.equal(other.input_ids, result.input_ids)


def test_mask_always_chooses_a_token():
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        result = mask(torch.tensor([[2, 9, 3]]), first_word_id=5, mask_id=4, vocab_size=10, generator=draw)
        assert result.focus.tolist() == [1]
        assert result.targets.tolist() == [9]


CLS, SEP, MASK, SPECIAL, VOCABULARY = 2, 3, 4, 5, 1000


CONTINUES = torch.arange(VOCABULARY) >= 600  # 40 % of the pieces continue a word


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SEQUENCES = torch.randint(SPECIAL, VOCABULARY, (600, 128), generator=seeded())


SEQUENCES[:, 0], SEQUENCES[:, 50], SEQUENCES[:, -1] = CLS, SEP, SEP
SEQUENCES[::4, 100:] = 0


by_words = partial(word_spans, first_word_id=SPECIAL, continues=CONTINUES)


by_ngrams = partial(ngram_spans, first_word_id=SPECIAL, continues=CONTINUES)


def mask_spans(sequences: Tensor, spans: Tensor | None, seed: int = 1) -> Masked:
    return mask(
        sequences, first_word_id=SPECIAL, mask_id=MASK, vocab_size=VOCABULARY, generator=seeded(seed), spans=spans
    )


def group_spans(spans: Tensor, sequences: Tensor) -> list[tuple[int, list[int]]]:
    """Returns the sequence and the positions of each span, without special tokens."""
    spans_by_number: dict[tuple[int, int], list[int]] = {}
    numbers = spans.tolist()
    for row, position in (sequences >= SPECIAL).nonzero().tolist():
        spans_by_number.setdefault((row, numbers[row][position]), []).append(position)
    return [(row, positions) for (row, _), positions in spans_by_number.items()]


def chosen_positions(spans: Tensor) -> list[list[bool]]:
    """Returns for each position of the sequences whether it is masked. A list is faster to read than a tensor."""
    chosen = torch.zeros(SEQUENCES.numel(), dtype=torch.bool)
    chosen[mask_spans(SEQUENCES, spans).focus] = True
    return chosen.view(SEQUENCES.shape).tolist()


def test_word_spans_join_pieces_and_separate_special_tokens():
    row = torch.tensor([[CLS, 7, 700, 701, 8, SEP, 702, 703, 9, SEP, 0, 0]])

    assert by_words(row).tolist() == [[0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8]]


def test_word_spans_accept_sequences_that_start_within_a_word():
    assert by_words(torch.tensor([[700, 701, 8], [8, 700, 9]])).tolist() == [[0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    "spans", [by_words(SEQUENCES), by_ngrams(SEQUENCES, generator=seeded(2))], ids=["words", "ngrams"]
)
def test_mask_keeps_its_rates_for_all_kinds_of_spans(spans):
    result = mask_spans(SEQUENCES, spans)
    before, after = SEQUENCES.flatten()[result.focus], result.input_ids.flatten()[result.focus]
    others = (after != MASK) & (after != before)

    assert len(result.focus) / (SEQUENCES >= SPECIAL).sum() == pytest.approx(0.15, abs=0.006)
    assert (before >= SPECIAL).all()
    assert torch.equal(result.targets, before)
    assert (after == MASK).float().mean() == pytest.approx(0.8, abs=0.02)
    assert others.float().mean() == pytest.approx(0.1, abs=0.015)
    assert (after == before).float().mean() == pytest.approx(0.1, abs=0.015)


@pytest.mark.parametrize(
    "spans", [by_words(SEQUENCES), by_ngrams(SEQUENCES, generator=seeded(2))], ids=["words", "ngrams"]
)
def test_mask_chooses_whole_spans(spans):
    chosen = chosen_positions(spans)
    counts = Counter(
        (len(positions), sum(chosen[row][position] for position in positions))
        for row, positions in group_spans(spans, SEQUENCES)
    )

    assert {together for size, together in counts if size > 2} > {0}
    assert all(together in (0, size) for size, together in counts)


def test_mask_chooses_long_and_short_words_equally_often():
    spans = by_words(SEQUENCES)
    chosen = chosen_positions(spans)
    by_size: dict[int, list[bool]] = {}
    for row, positions in group_spans(spans, SEQUENCES):
        by_size.setdefault(len(positions), []).append(chosen[row][positions[0]])

    for size in (1, 2, 3):
        assert sum(by_size[size]) / len(by_size[size]) == pytest.approx(0.15, abs=0.015)


def test_ngram_spans_have_lengths_with_probabilities_proportional_to_1_over_n():
    spans, whole = by_ngrams(SEQUENCES, generator=seeded(2)), by_words(SEQUENCES)
    sizes, chosen_sizes = Counter[int](), Counter[int]()
    chosen, words, sequences = chosen_positions(spans), whole.tolist(), SEQUENCES.tolist()
    word_count = 0
    for row, positions in group_spans(spans, SEQUENCES):
        n = len({words[row][position] for position in positions})
        word_count += n
        ends = {positions[-1] + 1, positions[0] - 1}
        if not any(sequences[row][end] < SPECIAL for end in ends):  # spans at a special token may be shorter
            sizes[n] += 1
            chosen_sizes[n] += chosen[row][positions[0]]

    # No word is in two spans.
    assert word_count == sum(len(set(whole[row][SEQUENCES[row] >= SPECIAL].tolist())) for row in range(len(SEQUENCES)))
    for n in (1, 2, 3):
        expected = (1 / n) / (1 + 1 / 2 + 1 / 3)
        assert sizes[n] / sizes.total() == pytest.approx(expected, abs=0.015)
        assert chosen_sizes[n] / chosen_sizes.total() == pytest.approx(expected, abs=0.03)


def test_ngram_spans_do_not_cross_special_tokens():
    for _, positions in group_spans(by_ngrams(SEQUENCES, generator=seeded(2)), SEQUENCES):
        assert positions == list(range(positions[0], positions[-1] + 1))


def test_ngram_spans_accept_sequences_of_special_tokens():
    sequences = torch.tensor([[0, 0, 0, 0], [CLS, SEP, 0, 0], [9, 9, 9, 9], [CLS, 9, SEP, 9]])

    for seed in range(20):
        spans = by_ngrams(sequences, generator=seeded(seed))
        assert spans.min() >= 0
        assert spans.max() < 4


def test_mask_always_chooses_a_whole_word():
    row = torch.tensor([[CLS, 7, 700, SEP]])

    assert all(mask_spans(row, by_words(row), seed).focus.tolist() == [1, 2] for seed in range(20))


@pytest.mark.parametrize("kind", ["tokens", "words", "ngrams"])
def test_mask_is_dynamic_and_reproducible(kind):
    """RoBERTa's dynamic masking (Liu et al. 2019, arXiv:1907.11692, section 4.1)."""

    def choose(seed: int) -> set[int]:
        spans = {"tokens": lambda: None, "words": lambda: by_words(SEQUENCES)}.get(
            kind, lambda: by_ngrams(SEQUENCES, generator=seeded(seed + 100))
        )()
        return set(mask_spans(SEQUENCES, spans, seed).focus.tolist())

    first, second = choose(1), choose(2)
    assert choose(1) == first
    # Two independent draws of 15 in 100 share 15 in 100 of their choices.
    assert len(first & second) / len(first) == pytest.approx(0.15, abs=0.02)
    seen = set[int]().union(*(choose(seed) for seed in range(30)))
    assert len(seen) / int((SEQUENCES >= SPECIAL).sum()) > 0.985  # 1 - 0.85 ** 30 = 0.992
