"""The input formats: what a text holds, where it ends, and the batches that are made of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from swiftlet_train.pretraining import input_formats
from swiftlet_train.pretraining.batch_plan import BatchPlan, fill_batches
from swiftlet_train.pretraining.batch_sampler import BatchSampler
from swiftlet_train.pretraining.corpus import load_documents, prepare_sequences, prepare_vocabulary
from swiftlet_train.pretraining.pretrain import pretrain
from swiftlet_train.recipe import RecipeError
from tests.support.tiers import first
from tests.support.training import SILENT, tiny

FORMATS = ["full_sentences", "document_sentences", "segment_pairs", "sentence_pairs"]
LENGTH, SEP, FULL_STOP, SIZE = 32, 3, 5, 8

# 30 documents of 1 to 12 sentences with 2 to 14 tokens, the last of which is a full stop. Ids count up from 10.
CHANCE = np.random.default_rng(0)
SIZES = [CHANCE.integers(2, 15, CHANCE.integers(1, 13)).tolist() for _ in range(30)]
STARTS = np.cumsum([0, *(sum(one) for one in SIZES)]) + 10
DOCUMENTS = []
for _start, _sizes in zip(STARTS, SIZES, strict=False):
    _ids = torch.arange(_start, _start + sum(_sizes))
    _ids[np.cumsum(_sizes) - 1] = FULL_STOP
    DOCUMENTS.append(list(_ids.split(_sizes)))


def packed(name: str) -> list[input_formats.Text]:
    return list(input_formats.load(name).pack(DOCUMENTS, LENGTH, SEP))


def all_ids(name: str) -> list[int]:
    return torch.cat([text.ids for text in packed(name)]).tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_texts_fit_the_sequence(name):
    longest = input_formats.load(name).max_tokens(LENGTH)

    assert longest == LENGTH - (3 if "pairs" in name else 2)
    assert all(0 < len(text.ids) <= longest for text in packed(name))


@pytest.mark.parametrize("name", FORMATS)
def test_texts_consist_of_whole_sentences(name):
    wholes = {tuple(segment.tolist()) for document in DOCUMENTS for segment in document}
    for text in packed(name):
        left = text.ids[text.ids != SEP]
        stops = (left == FULL_STOP).nonzero()[:, 0] + 1
        assert {tuple(part.tolist()) for part in left.tensor_split(stops)[:-1]} <= wholes
        assert stops[-1] == len(left)


def test_full_sentences_cross_documents_with_a_separator():
    texts = packed("full_sentences")
    ids = all_ids("full_sentences")
    crossing = [text for text in texts if SEP in text.ids]

    assert [one for one in ids if one != SEP] == torch.cat([torch.cat(one) for one in DOCUMENTS]).tolist()
    assert len(crossing) > 10
    for text in texts:
        owners = np.searchsorted(STARTS, text.ids[text.ids >= 10].numpy(), side="right") - 1
        assert owners.size == 0 or (text.ids == SEP).sum() >= owners[-1] - owners[0]
        assert text.ids[0] != SEP != text.ids[-1]
    sentences = [segment for document in DOCUMENTS for segment in document]
    used = 0
    for text in texts[:-1]:  # the next sentence would not have fitted
        used += int((text.ids == FULL_STOP).sum())
        assert len(text.ids) + len(sentences[used]) > LENGTH - 3


def test_document_sentences_end_with_their_document():
    texts = packed("document_sentences")

    assert all_ids("document_sentences") == torch.cat([torch.cat(one) for one in DOCUMENTS]).tolist()
    for text in texts:
        inside = text.ids[text.ids >= 10]
        assert ((inside >= STARTS[text.document]) & (inside < STARTS[text.document + 1])).all()
    assert {text.document for text in texts} == set(range(30))


@pytest.mark.parametrize("name", ["segment_pairs", "sentence_pairs"])
def test_pairs_hold_two_sentences_of_one_document(name):
    for text in packed(name):
        joined = [torch.cat(DOCUMENTS[text.document]).tolist()]
        at = [i for i in range(len(joined[0])) if joined[0][i : i + len(text.ids)] == text.ids.tolist()]
        count = (text.ids == FULL_STOP).sum()
        assert at
        assert count == 2 if name == "sentence_pairs" else count >= 2


@pytest.mark.parametrize("name", ["segment_pairs", "sentence_pairs"])
def test_pairs_leave_out_long_sentences_and_do_not_span_them(name):
    first, long, *rest = (torch.arange(start, start + size) for start, size in ((10, 5), (20, 20), (50, 5), (60, 5)))
    (text,) = input_formats.load(name).pack([[first, long, *rest]], LENGTH, SEP)

    assert torch.equal(text.ids, torch.cat(rest))


def test_fill_batches_gives_each_batch_the_same_tokens():
    lengths = CHANCE.integers(3, 33, 500)
    order = CHANCE.permutation(500)[:400]
    plan = fill_batches(order, lengths, 8, 8 * 32)
    sums = [int(lengths[plan.take(number)[0]].sum()) for number in range(len(plan))]
    taken = np.concatenate([plan.take(number)[0] for number in range(len(plan))])

    assert all(abs(one - 256) <= 32 for one in sums)
    assert taken.tolist() == order[: len(taken)].tolist()
    assert lengths[order[len(taken) :]].sum() < 256
    assert max(len(plan.take(number)[0]) for number in range(len(plan))) > 8
    assert plan.take(len(plan) + 1)[0].tolist() == plan.take(1)[0].tolist()
    assert (plan.take(len(plan) + 1)[1] == 1).all()


def test_batch_plan_continues_into_the_next_epoch():
    plan = BatchPlan(np.array([4, 2, 0]), 2)

    assert [plan.take(number)[0].tolist() for number in range(3)] == [[4, 2], [0, 4], [2, 0]]
    assert [plan.take(number)[1].tolist() for number in range(3)] == [[0, 0], [0, 1], [1, 1]]


@pytest.fixture(scope="module")
def samplers(project, tmp_path_factory):
    made = {}
    for name in FORMATS:
        pairs = "next_sentence" if "pairs" in name else "none"
        corpora = {"text.txt.xz": 120}
        recipe = tiny(
            project,
            input_format=name,
            sentence_objective=pairs,
            sequence_length=LENGTH,
            corpora=corpora,
            held_out_sequences=16,
        )
        folder = tmp_path_factory.mktemp(name)
        tokenizer = prepare_vocabulary(recipe, project / "data", folder).tokenizer
        sequences = prepare_sequences(recipe, tokenizer, project / "data", folder)
        made[name] = BatchSampler(recipe, tokenizer, sequences, load_documents(folder))
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_batches_hold_texts_and_padding(samplers, name):
    sampler = samplers[name]
    for number in range(6):
        batch = sampler(number)
        lengths = batch.is_token.sum(1)
        assert batch.original_ids.shape[1] == lengths.max() <= LENGTH
        assert (batch.original_ids[:, 0] == sampler.cls).all()
        assert (batch.original_ids[torch.arange(len(lengths)), lengths - 1] == sampler.sep).all()
        assert batch.is_token.flatten()[batch.focus].all()
        if name in ("document_sentences", "sentence_pairs"):
            assert len(lengths) >= SIZE - 1
        else:
            assert len(lengths) == SIZE
        seps = (batch.original_ids == sampler.sep).sum(1)
        assert (seps == 2).all() if "pairs" in name else (seps >= 1).all()
        assert (batch.labels is None) == ("pairs" not in name)


@pytest.mark.parametrize("name", ["segment_pairs", "sentence_pairs"])
def test_half_of_the_pairs_follow_in_their_document(samplers, name):
    sampler = samplers[name]
    rows = {}
    for row, ids in enumerate(sampler.sequences):
        rows[tuple(one for one in ids.tolist() if one > 4)] = sampler.documents[row]
    labels, known = [], 0
    for number in range(60):
        batch = sampler(number)
        labels += batch.labels.tolist()
        for ids, label in zip(batch.original_ids, batch.labels.tolist(), strict=True):
            joined = tuple(one for one in ids.tolist() if one > 4)
            assert joined in rows or label == 1  # a pair that follows is a whole text
            known += label == 1 and joined in rows  # ends of cut sentences may equal those of another document
            assert name == "segment_pairs" or sampler.sentence_ends[ids].sum() <= 2

    assert np.mean(labels) == pytest.approx(0.5, abs=0.08)
    assert known < 0.05 * len(labels)


def test_pairs_of_one_document_have_no_other(project, samplers, tmp_path):
    sampler = samplers["segment_pairs"]
    recipe = tiny(
        project,
        input_format="segment_pairs",
        sentence_objective="next_sentence",
        sequence_length=LENGTH,
        corpora={"text.txt.xz": 60},
    )
    tokenizer = prepare_vocabulary(recipe, project / "data", tmp_path).tokenizer
    with pytest.raises(RecipeError, match="two documents at least"):
        BatchSampler(recipe, tokenizer, sampler.sequences, np.zeros(len(sampler.sequences), np.int64))


@pytest.mark.parametrize("name", first(FORMATS, "document_sentences", "segment_pairs"))
def test_pretrain_accepts_every_input_format(project, tmp_path, name):
    reports = []
    pairs = "next_sentence" if "pairs" in name else "none"
    recipe = tiny(project, input_format=name, sentence_objective=pairs, sequence_length=LENGTH, steps=1)
    recipe = replace(recipe, pretraining=replace(recipe.pretraining, corpora={"text.txt.xz": 60}))
    pretrain(recipe, project / "data", tmp_path, reports.append)

    assert (" sentences " in reports[-1]) == (pairs != "none")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_format": "segment_pairs"}, "segment_pairs needs a sentence_objective"),
        ({"input_format": "full_sentences", "sentence_objective": "next_sentence"}, "has no pairs of texts"),
        ({"input_format": "document_sentences", "sentence_objective": "sentence_order"}, "has no pairs of texts"),
        ({"input_format": "pages"}, "input_format must be one of blocks, segment_pairs"),
        ({"input_format": "full_sentences", "sequence_length": 4}, "sequence_length of at least 8"),
        ({"static_masking": True, "sentence_objective": "next_sentence"}, "static_masking with next_sentence needs"),
        ({"objective": "causal_lm", "sentence_objective": "sentence_order"}, "cannot be combined with a sentence"),
        ({"objective": "causal_lm", "static_masking": True}, "masks nothing"),
        ({"objective": "causal_lm", "masking": "ngrams"}, "masks nothing"),
    ],
    ids=str,
)
def test_recipe_rejects_combinations_without_sense(project, changes, message):
    with pytest.raises(RecipeError, match=message):
        tiny(project, **{"corpora": {"text.txt.xz": 60}} | changes)


def test_pretrain_rejects_a_corpus_without_text_of_the_format(project, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "text.txt").write_text("rain\nsnow\n", "utf-8")
    recipe = tiny(
        project,
        input_format="segment_pairs",
        sentence_objective="sentence_order",
        sequence_length=LENGTH,
        corpora={"text.txt": 10},
    )
    with pytest.raises(RecipeError, match="hold no text for the input_format segment_pairs"):
        pretrain(recipe, tmp_path / "data", tmp_path / "run", SILENT)
