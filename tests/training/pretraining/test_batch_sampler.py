"""The batches of pre-training."""

from __future__ import annotations

import torch

from swiftlet_train.pretraining.batch_sampler import BatchSampler
from swiftlet_train.pretraining.corpus import prepare_sequences, prepare_vocabulary
from tests.support.training import tiny


def test_batch_sampler_is_reproducible_by_number(pretrained, project):
    recipe = tiny(project, sentence_objective="sentence_order", masking="whole_words")
    tokenizer = prepare_vocabulary(recipe, project / "data", project / "runs" / "tiny").tokenizer
    sequences = prepare_sequences(recipe, tokenizer, project / "data", project / "runs" / "tiny")
    sampler = BatchSampler(recipe, tokenizer, sequences)
    batch, again, other = sampler(3), sampler(3), sampler(4)
    masked = batch.input_ids != batch.original_ids

    assert torch.equal(batch.input_ids, again.input_ids)
    assert not torch.equal(batch.input_ids, other.input_ids)
    assert torch.equal(batch.targets, batch.original_ids.flatten()[batch.focus])
    assert set(masked.flatten().nonzero()[:, 0].tolist()) <= set(batch.focus.tolist())
    assert batch.token_type_ids.max() == 1
    assert batch.labels.shape == (8,)


def test_batch_sampler_excludes_held_out_sequences(pretrained, project):
    plain = tiny(project, held_out_sequences=16)
    changed = tiny(project, held_out_sequences=16, masking="whole_words", mask_probability=0.5)
    tokenizer = prepare_vocabulary(plain, project / "data", project / "runs" / "tiny").tokenizer
    sequences = prepare_sequences(plain, tokenizer, project / "data", project / "runs" / "tiny")
    samplers = [BatchSampler(recipe, tokenizer, sequences) for recipe in (plain, changed)]
    held_out = [samplers[0].held_out(number) for number in (0, 1)]
    trained = {tuple(row) for number in range(20) for row in samplers[0](number).original_ids.tolist()}

    assert len(trained) == len(sequences) - 16
    assert not trained & {tuple(row) for batch in held_out for row in batch.original_ids.tolist()}
    for number, batch in enumerate(held_out):
        assert torch.equal(batch.input_ids, samplers[1].held_out(number).input_ids)
    probability = len(samplers[1](0).focus) / (samplers[1](0).original_ids >= 5).sum()
    assert probability > 0.3


def test_batch_sampler_masks_held_out_sequences_independently_of_the_objective(pretrained, project):
    tokenizer = prepare_vocabulary(tiny(project), project / "data", project / "runs" / "tiny").tokenizer
    sequences = prepare_sequences(tiny(project), tokenizer, project / "data", project / "runs" / "tiny")
    alone, paired = [
        BatchSampler(tiny(project, held_out_sequences=16, sentence_objective=kind), tokenizer, sequences).held_out(0)
        for kind in ("none", "sentence_order")
    ]

    assert torch.equal(alone.input_ids, paired.input_ids)
    assert (alone.labels, paired.labels) == (None, None)


def test_batch_sampler_drops_incomplete_sentences(pretrained, project):
    recipe = tiny(project, sentence_objective="sentence_order")
    tokenizer = prepare_vocabulary(recipe, project / "data", project / "runs" / "tiny").tokenizer
    sampler = BatchSampler(
        recipe, tokenizer, prepare_sequences(recipe, tokenizer, project / "data", project / "runs" / "tiny")
    )
    sampler.sentence_ends = torch.arange(50) == 9
    whole = torch.tensor([7, 9, 10, 11, 9, 12, 13, 14, 9, 15, 16, 9])

    assert [part.tolist() for part in sampler._split_sentences(whole)] == [[10, 11, 9], [12, 13, 14, 9], [15, 16, 9]]
    assert [part.tolist() for part in sampler._split_sentences(whole[:-1])] == [[10, 11, 9], [12, 13, 14, 9]]
    assert [len(part) for part in sampler._split_sentences(whole[:8])] == [3, 3, 2]  # only one whole sentence
    assert [len(part) for part in sampler._split_sentences(torch.arange(20, 24))] == [2, 2]
