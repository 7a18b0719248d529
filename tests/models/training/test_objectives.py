"""What pre-training learns from, tested on its statistics."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from swiftlet_serve.models.heads import build
from swiftlet_serve.models.training.objectives import next_sentence as following
from swiftlet_serve.models.training.objectives import sentence_order as ordering
from swiftlet_serve.models.training.objectives.masked_lm import Masked, mask, ngrams, words
from swiftlet_serve.models.training.objectives.next_sentence import next_sentence
from swiftlet_serve.models.training.objectives.pairs import Pair, chunks, segments, stack
from swiftlet_serve.models.training.objectives.replaced_token import Discriminator, Replaced, detection_loss, replace
from swiftlet_serve.models.training.objectives.sentence_order import sentence_order
from tests.support.networks import CONFIGS

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


# --- Pairs

FULL_STOP, QUOTE = 5, 6
ENDS = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, torch.tensor([FULL_STOP, QUOTE]), True)
ROOM = 125


def document(number: int) -> list[Tensor]:
    """40 segments of 3 to 40 tokens. Each token tells its document (thousands) and its place there."""
    lengths = torch.randint(3, 41, (40,), generator=chance(number)).tolist()
    ids = torch.arange(sum(lengths)) + number * 10_000
    return list(ids.split(lengths))


CHUNKS = [next(chunks(document(number), ROOM)) for number in range(1, 1501)]


def test_a_segment_ends_after_the_last_of_the_pieces_that_end_one():
    ids = torch.tensor([10, 11, FULL_STOP, QUOTE, 12, FULL_STOP, 13, 14])

    assert [part.tolist() for part in segments(ids, ENDS, 60)] == [[10, 11, 5, 6], [12, 5], [13, 14]]
    assert [part.tolist() for part in segments(ids[:6], ENDS, 60)] == [[10, 11, 5, 6], [12, 5]]
    assert [part.tolist() for part in segments(ids, ENDS, 3)] == [[10, 11, 5], [6], [12, 5], [13, 14]]
    assert segments(ids[:0], ENDS, 3) == []


def test_chunks_are_consecutive_segments_as_many_as_fit_and_never_one_alone():
    parts = document(1)
    packed = list(chunks(parts, ROOM))
    sizes = [sum(map(len, chunk)) for chunk in packed]

    assert torch.equal(torch.cat([torch.cat(chunk) for chunk in packed]), torch.cat(parts)[: sum(sizes)])
    assert sum(sizes) >= sum(map(len, parts)) - 40  # one segment may be left alone
    assert all(len(chunk) > 1 for chunk in packed)
    assert all(size <= ROOM for size in sizes)
    for size, after in zip(sizes, packed[1:], strict=False):
        assert size + len(after[0]) > ROOM
    assert list(chunks(parts[:1], ROOM)) == []
    with pytest.raises(ValueError, match="longer than half"):
        list(chunks([torch.arange(63)], ROOM))


def test_a_pair_is_framed_and_has_two_token_types_and_padding():
    made = stack(
        [Pair(torch.tensor([7, 8]), torch.tensor([9]), 1), Pair(torch.tensor([7]), torch.tensor([8, 9, 9]), 0)],
        cls=CLS,
        sep=SEP,
    )

    assert made.input_ids.tolist() == [[CLS, 7, 8, SEP, 9, SEP, 0], [CLS, 7, SEP, 8, 9, 9, SEP]]
    assert made.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert made.labels.tolist() == [1, 0]


def test_pairs_are_masked_as_other_rows_are():
    made = stack(
        [sentence_order([part * 7919 % 900 + 10 for part in chunk], chance(1)) for chunk in CHUNKS], cls=CLS, sep=SEP
    )
    holed = holes(made.input_ids, by_ngrams(made.input_ids, generator=chance(3)))

    assert (made.input_ids.flatten()[holed.focus] >= SPECIAL).all()
    assert len(holed.focus) / (made.input_ids >= SPECIAL).sum() == pytest.approx(0.15, abs=0.006)
    assert torch.equal(holed.input_ids < MASK, made.input_ids < MASK)  # frame and padding stay


@pytest.fixture(scope="module")
def ordered() -> list[Pair]:
    return [sentence_order(chunk, chance(seed)) for seed, chunk in enumerate(CHUNKS)]


@pytest.fixture(scope="module")
def followed() -> list[Pair]:
    return [
        next_sentence(chunk, other, ROOM, chance(seed))
        for seed, (chunk, other) in enumerate(zip(CHUNKS, [*CHUNKS[7:], *CHUNKS[:7]], strict=True))
    ]


def test_half_of_the_texts_are_swapped_and_nothing_of_them_is_lost(ordered):
    assert sum(pair.label for pair in ordered) / len(ordered) == pytest.approx(0.5, abs=0.04)
    for pair, chunk in zip(ordered, CHUNKS, strict=True):
        halves = (pair.second, pair.first) if pair.label == ordering.SWAPPED else (pair.first, pair.second)
        assert torch.equal(torch.cat(halves), torch.cat(chunk))
        assert int(halves[1][0]) in {int(part[0]) for part in chunk[1:]}  # cut between segments


def test_half_of_the_second_texts_follow_and_half_are_of_another_document(followed):
    assert sum(pair.label for pair in followed) / len(followed) == pytest.approx(0.5, abs=0.04)
    for pair in followed:
        one, other = pair.first[-1], pair.second[0]
        if pair.label == following.FOLLOWS:
            assert other == one + 1
        else:
            assert other // 10_000 != one // 10_000
        assert len(pair.first) + len(pair.second) <= ROOM


def test_texts_begin_and_end_with_a_segment_whatever_the_label(ordered, followed):
    first = {int(part[0]) for chunk in CHUNKS for part in chunk}
    last = {int(part[-1]) for chunk in CHUNKS for part in chunk}
    texts = [text for pair in [*ordered, *followed] for text in (pair.first, pair.second)]

    assert all(int(text[0]) in first for text in texts)
    assert sum(int(text[-1]) not in last for text in texts) <= 0.002 * len(texts)  # too long for what was left


def test_the_length_of_the_texts_does_not_tell_the_label(ordered, followed):
    for pairs in (ordered, followed):
        sizes = torch.tensor([[len(pair.first), len(pair.second)] for pair in pairs]).float()
        labels = torch.tensor([pair.label for pair in pairs])
        told = torch.cat([sizes, sizes.sum(1, keepdim=True), sizes[:, :1] - sizes[:, 1:]], dim=1)
        told = (told - told.mean(0)) / told.std(0)
        assert (told[labels == 0].mean(0) - told[labels == 1].mean(0)).abs().max() < 0.17  # a standard error is 0.05


def test_what_stands_for_the_rest_is_as_long_as_nearly_as_can_be_and_fits():
    here = [torch.arange(60), torch.arange(60, 85)]
    other = [torch.arange(100, 160), torch.arange(160, 180), torch.arange(180, 190)]

    def second(room: int) -> list[int]:
        pairs = (next_sentence(here, other, room, chance(seed)) for seed in range(20))
        return next(pair.second.tolist() for pair in pairs if pair.label == following.ELSEWHERE)

    assert second(ROOM) == list(range(160, 180))  # 20 or 30 for 25: the first of them
    assert second(79) == list(range(180, 190))
    assert second(65) == list(range(160, 165))  # none fits whole


def test_pairs_are_the_generators_choice():
    def texts(objective, seed: int) -> list[tuple[list[int], list[int], int]]:
        generator = chance(seed)
        pairs = [objective(chunk, generator) for chunk in CHUNKS[:40]]
        return [(pair.first.tolist(), pair.second.tolist(), pair.label) for pair in pairs]

    for objective in (sentence_order, lambda chunk, by: next_sentence(chunk, CHUNKS[50], ROOM, by)):
        assert texts(objective, 1) == texts(objective, 1)
        assert texts(objective, 1) != texts(objective, 2)


def test_one_segment_alone_is_no_pair():
    for objective in (sentence_order, lambda chunk, by: next_sentence(chunk, CHUNKS[0], ROOM, by)):
        with pytest.raises(ValueError, match="one segment"):
            objective([torch.arange(5)], chance())


# --- Replaced tokens

PIECES = 50


@pytest.fixture(scope="module")
def filled() -> tuple[Tensor, Masked, Tensor, Replaced]:
    """Rows of 45 words, masked, and filled by a generator that gives each word its own chance at every place."""
    rows = torch.randint(SPECIAL, PIECES, (400, 64), generator=chance(4))
    rows[:, 0], rows[:, -1] = CLS, SEP
    rows[::2, 40:] = 0
    made = mask(rows, special=SPECIAL, mask_id=MASK, vocab_size=PIECES, generator=chance(5))
    logits = torch.linspace(0, 3, PIECES).repeat(len(made.focus), 1)
    logits[:, :SPECIAL] = 20.0  # special tokens would be sampled all the time
    return rows, made, logits, replace(made, logits, rows > 0, special=SPECIAL, generator=chance(6))


def test_replacements_follow_the_generator_network_and_are_no_special_tokens(filled):
    _, made, logits, done = filled
    sampled = done.input_ids.flatten()[made.focus]
    shares = torch.bincount(sampled, minlength=PIECES) / len(sampled)
    expected = logits[0, SPECIAL:].softmax(0)

    assert shares[:SPECIAL].sum() == 0
    assert (shares[SPECIAL:] - expected).abs().max() < 0.012
    assert len(made.focus) > 2500


def test_what_was_not_masked_is_read_as_it_was_and_no_mask_is_left(filled):
    rows, made, _, done = filled
    elsewhere = torch.ones(rows.numel(), dtype=torch.bool)
    elsewhere[made.focus] = False

    assert torch.equal(done.input_ids.flatten()[elsewhere], rows.flatten()[elsewhere])
    assert not (done.input_ids == MASK).any()


def test_a_token_is_replaced_where_it_differs_from_the_original_and_padding_is_not_asked_for(filled):
    rows, made, _, done = filled

    assert torch.equal(done.focus, (rows > 0).flatten().nonzero()[:, 0])
    assert torch.equal(done.labels.bool(), (done.input_ids != rows).flatten()[done.focus])
    lucky = (done.input_ids.flatten()[made.focus] == made.targets).sum()
    assert lucky > 20
    assert done.labels.sum() == len(made.focus) - lucky


def test_a_generator_that_is_always_right_replaces_nothing(filled):
    rows, made, _, _ = filled
    right = nn.functional.one_hot(made.targets, PIECES) * 100.0
    done = replace(made, right, rows > 0, special=SPECIAL, generator=chance())

    assert torch.equal(done.input_ids, rows)
    assert done.labels.sum() == 0


def test_replacements_are_the_generators_choice_and_nothing_is_learned_through_them(filled):
    rows, made, logits, done = filled
    learning = logits.clone().requires_grad_()
    again = replace(made, learning, rows > 0, special=SPECIAL, generator=chance(6))
    other = replace(made, learning, rows > 0, special=SPECIAL, generator=chance(7))

    assert torch.equal(again.input_ids, done.input_ids)
    assert not torch.equal(other.input_ids, done.input_ids)
    assert not again.labels.requires_grad
    assert (made.input_ids == MASK).any()  # what was masked is left alone


def test_the_loss_is_50_times_the_mean_cross_entropy_over_all_tokens():
    done = Replaced(torch.zeros(1, 4), torch.tensor([0, 1, 2]), torch.tensor([1.0, 0.0, 0.0]))
    logits = torch.tensor([[0.0], [0.0], [100.0]])
    two = 2 * torch.log(torch.tensor(2.0))

    assert detection_loss(logits, done).item() == pytest.approx(50 * (two + 100).item() / 3)
    assert detection_loss(logits, done, weight=1.0).item() == pytest.approx((two + 100).item() / 3)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_discriminator_on_any_encoder_learns_to_tell_replacements(name):
    """The words that are put in are rare ones: a look at the token is enough."""
    torch.manual_seed(0)
    model = build(name, CONFIGS[name], "masked_lm")
    model.head = Discriminator(model.encoder.config)
    pieces = model.encoder.config.vocab_size
    rows = torch.randint(SPECIAL, pieces // 2, (16, 24), generator=chance(1))
    lengths = torch.full((16,), 24)
    made = mask(rows, special=SPECIAL, mask_id=MASK, vocab_size=pieces // 2, generator=chance(2))
    logits = torch.zeros(len(made.focus), pieces).index_fill(1, torch.arange(pieces // 2), -100.0)
    done = replace(made, logits, rows > 0, special=SPECIAL, generator=chance(3))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(40):
        loss = detection_loss(model(done.input_ids, torch.zeros_like(rows), lengths, done.focus), done)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())

    assert losses[0] == pytest.approx(50 * 0.693, abs=4)
    assert losses[-1] < 0.75 * losses[0]
