"""Pairs of texts for the sentence objectives, tested by their statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from swiftlet_train.pretraining.objectives import next_sentence, sentence_order
from swiftlet_train.pretraining.objectives.masked_lm import mask, ngram_spans
from swiftlet_train.pretraining.objectives.next_sentence import make_next_sentence_pair
from swiftlet_train.pretraining.objectives.sentence_order import make_sentence_order_pair
from swiftlet_train.pretraining.objectives.sentence_pairs import (
    Pair,
    pack_chunks,
    split_segments,
    stack,
)

CLS, SEP, MASK, SPECIAL, VOCABULARY = 2, 3, 4, 5, 1000


CONTINUES = torch.arange(VOCABULARY) >= 600  # 40 % of the pieces continue a word


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


FULL_STOP, QUOTE = 5, 6


ENDS = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, torch.tensor([FULL_STOP, QUOTE]), True)


MAX_TOKENS = 125


def document(number: int) -> list[Tensor]:
    """Returns 40 segments of 3 to 40 tokens. A token is 10,000 times its document's number plus its position."""
    lengths = torch.randint(3, 41, (40,), generator=seeded(number)).tolist()
    ids = torch.arange(sum(lengths)) + number * 10_000
    return list(ids.split(lengths))


CHUNKS = [next(pack_chunks(document(number), MAX_TOKENS)) for number in range(1, 1501)]


def test_split_segments_cuts_after_the_last_of_several_ends():
    ids = torch.tensor([10, 11, FULL_STOP, QUOTE, 12, FULL_STOP, 13, 14])

    assert [part.tolist() for part in split_segments(ids, ENDS, 60)] == [[10, 11, 5, 6], [12, 5], [13, 14]]
    assert [part.tolist() for part in split_segments(ids[:6], ENDS, 60)] == [[10, 11, 5, 6], [12, 5]]
    assert [part.tolist() for part in split_segments(ids, ENDS, 3)] == [[10, 11, 5], [6], [12, 5], [13, 14]]
    assert split_segments(ids[:0], ENDS, 3) == []


def test_pack_chunks_packs_consecutive_segments_that_fit():
    parts = document(1)
    packed = list(pack_chunks(parts, MAX_TOKENS))
    sizes = [sum(map(len, chunk)) for chunk in packed]

    assert torch.equal(torch.cat([torch.cat(chunk) for chunk in packed]), torch.cat(parts)[: sum(sizes)])
    assert sum(sizes) >= sum(map(len, parts)) - 40  # a single segment at the end is dropped
    assert all(len(chunk) > 1 for chunk in packed)
    assert all(size <= MAX_TOKENS for size in sizes)
    for size, after in zip(sizes, packed[1:], strict=False):
        assert size + len(after[0]) > MAX_TOKENS
    assert list(pack_chunks(parts[:1], MAX_TOKENS)) == []
    with pytest.raises(ValueError, match="longer than half"):
        list(pack_chunks([torch.arange(63)], MAX_TOKENS))


def test_stack_adds_special_tokens_token_types_and_padding():
    pairs = stack(
        [Pair(torch.tensor([7, 8]), torch.tensor([9]), 1), Pair(torch.tensor([7]), torch.tensor([8, 9, 9]), 0)],
        cls=CLS,
        sep=SEP,
    )

    assert pairs.input_ids.tolist() == [[CLS, 7, 8, SEP, 9, SEP, 0], [CLS, 7, SEP, 8, 9, 9, SEP]]
    assert pairs.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert pairs.labels.tolist() == [1, 0]


def test_mask_accepts_pairs():
    pairs = stack(
        [make_sentence_order_pair([part * 7919 % 900 + 10 for part in chunk], seeded(1)) for chunk in CHUNKS],
        cls=CLS,
        sep=SEP,
    )
    spans = ngram_spans(pairs.input_ids, first_word_id=SPECIAL, continues=CONTINUES, generator=seeded(3))
    masked = mask(
        pairs.input_ids,
        first_word_id=SPECIAL,
        mask_id=MASK,
        vocab_size=VOCABULARY,
        generator=seeded(1),
        spans=spans,
    )

    assert (pairs.input_ids.flatten()[masked.focus] >= SPECIAL).all()
    assert len(masked.focus) / (pairs.input_ids >= SPECIAL).sum() == pytest.approx(0.15, abs=0.006)
    assert torch.equal(masked.input_ids < MASK, pairs.input_ids < MASK)  # special tokens and padding stay


@pytest.fixture(scope="module")
def ordered() -> list[Pair]:
    return [make_sentence_order_pair(chunk, seeded(seed)) for seed, chunk in enumerate(CHUNKS)]


@pytest.fixture(scope="module")
def followed() -> list[Pair]:
    return [
        make_next_sentence_pair(chunk, other, MAX_TOKENS, seeded(seed))
        for seed, (chunk, other) in enumerate(zip(CHUNKS, [*CHUNKS[7:], *CHUNKS[:7]], strict=True))
    ]


def test_sentence_order_swaps_half_of_the_pairs_and_keeps_all_tokens(ordered):
    assert sum(pair.label for pair in ordered) / len(ordered) == pytest.approx(0.5, abs=0.04)
    for pair, chunk in zip(ordered, CHUNKS, strict=True):
        halves = (pair.second, pair.first) if pair.label == sentence_order.SWAPPED else (pair.first, pair.second)
        assert torch.equal(torch.cat(halves), torch.cat(chunk))
        assert int(halves[1][0]) in {int(part[0]) for part in chunk[1:]}  # cut between segments


def test_next_sentence_takes_half_of_the_second_texts_from_another_document(followed):
    assert sum(pair.label for pair in followed) / len(followed) == pytest.approx(0.5, abs=0.04)
    for pair in followed:
        one, other = pair.first[-1], pair.second[0]
        if pair.label == next_sentence.NEXT:
            assert other == one + 1
        else:
            assert other // 10_000 != one // 10_000
        assert len(pair.first) + len(pair.second) <= MAX_TOKENS


def test_pairs_consist_of_whole_segments_for_each_label(ordered, followed):
    first = {int(part[0]) for chunk in CHUNKS for part in chunk}
    last = {int(part[-1]) for chunk in CHUNKS for part in chunk}
    texts = [text for pair in [*ordered, *followed] for text in (pair.first, pair.second)]

    assert all(int(text[0]) in first for text in texts)
    assert sum(int(text[-1]) not in last for text in texts) <= 0.002 * len(texts)  # cut, because it was too long


def test_pair_lengths_do_not_reveal_the_label(ordered, followed):
    for pairs in (ordered, followed):
        sizes = torch.tensor([[len(pair.first), len(pair.second)] for pair in pairs]).float()
        labels = torch.tensor([pair.label for pair in pairs])
        features = torch.cat([sizes, sizes.sum(1, keepdim=True), sizes[:, :1] - sizes[:, 1:]], dim=1)
        features = (features - features.mean(0)) / features.std(0)
        assert (
            features[labels == 0].mean(0) - features[labels == 1].mean(0)
        ).abs().max() < 0.17  # the standard error is 0.05


def test_next_sentence_takes_segments_of_the_most_similar_length():
    chunk = [torch.arange(60), torch.arange(60, 85)]
    other = [torch.arange(100, 160), torch.arange(160, 180), torch.arange(180, 190)]

    def second(max_tokens: int) -> list[int]:
        pairs = (make_next_sentence_pair(chunk, other, max_tokens, seeded(seed)) for seed in range(20))
        return next(pair.second.tolist() for pair in pairs if pair.label == next_sentence.NOT_NEXT)

    assert second(MAX_TOKENS) == list(range(160, 180))  # 20 or 30 for 25: the first of them
    assert second(79) == list(range(180, 190))
    assert second(65) == list(range(160, 165))  # none fits whole


def test_pairs_depend_on_the_generator():
    def texts(objective, seed: int) -> list[tuple[list[int], list[int], int]]:
        generator = seeded(seed)
        pairs = [objective(chunk, generator) for chunk in CHUNKS[:40]]
        return [(pair.first.tolist(), pair.second.tolist(), pair.label) for pair in pairs]

    for objective in (
        make_sentence_order_pair,
        lambda chunk, by: make_next_sentence_pair(chunk, CHUNKS[50], MAX_TOKENS, by),
    ):
        assert texts(objective, 1) == texts(objective, 1)
        assert texts(objective, 1) != texts(objective, 2)


def test_pairs_need_two_segments():
    for objective in (
        make_sentence_order_pair,
        lambda chunk, by: make_next_sentence_pair(chunk, CHUNKS[0], MAX_TOKENS, by),
    ):
        with pytest.raises(ValueError, match="one segment"):
            objective([torch.arange(5)], seeded())
