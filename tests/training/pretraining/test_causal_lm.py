"""Causal language modelling, and static masking: what a batch holds, what a network sees, and resumed runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from swiftlet_models.encodings import Encoding
from swiftlet_models.heads import CausalLM, build
from swiftlet_train.examples.example import Example
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.pretraining.batch_sampler import BatchSampler
from swiftlet_train.pretraining.corpus import load_documents, prepare_sequences, prepare_vocabulary
from swiftlet_train.pretraining.objectives.causal_lm import predict_next
from swiftlet_train.pretraining.pretrain import pretrain
from swiftlet_train.recipe import Recipe, RecipeError
from tests.support.tiers import first
from tests.support.training import SILENT, interrupted_train, logits_alone, same_state, tiny

GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def gpt(project, **changes) -> Recipe:
    """Returns the recipe of a small GPT-2, without its task for masked words."""
    recipe = tiny(project, init_from_teacher=False, corpora={"text.txt.xz": 60})
    tasks = {name: work for name, work in recipe.finetuning.items() if work.task != "fill-mask"}
    work = replace(recipe.pretraining, **{"objective": "causal_lm"} | changes)
    return replace(recipe, architecture="gpt2", config=GPT2, finetuning=tasks, pretraining=work)


def test_predict_next_targets_every_token_but_the_first():
    sequences = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0], [2, 3, 0, 0]])
    batch = predict_next(sequences)

    assert torch.equal(batch.input_ids, sequences)
    assert batch.focus.tolist() == [0, 1, 2, 4, 5, 8]
    assert batch.targets.tolist() == [7, 8, 3, 9, 3, 3]


def test_causal_predictions_do_not_see_their_targets():
    torch.manual_seed(0)
    model = build("gpt2", GPT2 | {"vocab_size": 50}, "causal_lm").eval()
    ids = torch.randint(5, 50, (2, 16))
    changed = ids.clone()
    changed[:, 9:] = torch.randint(5, 50, (2, 7))
    every = torch.arange(32)

    def logits(sequences):
        return model(sequences, torch.zeros_like(ids), torch.tensor([16, 16]), every).view(2, 16, 50)

    with torch.no_grad():
        one, other = logits(ids), logits(changed)
    assert torch.equal(one[:, :9], other[:, :9])  # the prediction of the first changed token is at position 8
    assert not torch.equal(one[:, 9], other[:, 9])


def test_pretrain_learns_a_causal_language_model(project, tmp_path):
    recipe = gpt(project, steps=40, learning_rate=3e-3, held_out_sequences=8)
    model, _ = pretrain(recipe, project / "data", tmp_path, SILENT)
    first, last = read_curve(tmp_path / "losses.csv")

    assert isinstance(model.head, CausalLM)
    assert first.losses.keys() == {"clm"}
    assert last.losses.keys() == {"clm", "held_out_clm"}
    assert last.losses["clm"] < first.losses["clm"]


def test_labels_of_a_causal_network_are_read_at_the_last_token():
    torch.manual_seed(0)
    model = build("gpt2", GPT2 | {"vocab_size": 50}, "classification", 2).eval()
    texts = [np.array([2, 7, 8, 9, 3]), np.array([2, 7, 3])]
    examples = [Example(Encoding(ids, np.zeros_like(ids), np.zeros(1, np.int64)), (0,)) for ids in texts]
    with torch.no_grad():
        together = task_logits(model, examples)
        for row, ids in zip(together, texts, strict=True):
            alone = logits_alone(model, Example(Encoding(ids, ids * 0, np.array([len(ids) - 1])), (0,)))
            assert torch.allclose(row, alone[:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "objective", "message"),
    [
        ("gpt2", "masked_lm", "see only earlier ones: set objective = 'causal_lm'"),
        ("gpt2", "replaced_token", "see only earlier ones"),
        ("mobilebert", "causal_lm", "causal_lm needs a causal network such as gpt2, not mobilebert"),
    ],
)
def test_pretrain_rejects_an_objective_that_the_network_does_not_fit(
    project, tmp_path, architecture, objective, message
):
    recipe = gpt(project, objective=objective)
    if architecture != "gpt2":
        recipe = replace(tiny(project), pretraining=recipe.pretraining, finetuning=recipe.finetuning)
    with pytest.raises(RecipeError, match=message):
        pretrain(recipe, project / "data", tmp_path, SILENT)


def test_recipe_rejects_fill_mask_after_causal_lm(project):
    recipe = tiny(project)
    with pytest.raises(RecipeError, match="causal_lm trains no masked-LM head, which tiny-mask needs"):
        replace(recipe, pretraining=replace(recipe.pretraining, objective="causal_lm"))


SETTINGS = {
    "blocks": {},
    "sentence_order": {"sentence_objective": "sentence_order"},
    "full_sentences": {"input_format": "full_sentences"},
    "segment_pairs": {"input_format": "segment_pairs", "sentence_objective": "next_sentence"},
    "sentence_pairs": {"input_format": "sentence_pairs", "sentence_objective": "next_sentence"},
}


def epochs(project, folder, count: int, **changes) -> list[list[tuple[list[int], int]]]:
    """Returns the masked ids and labels of each epoch."""
    corpora = {"text.txt.xz": 24}
    recipe = tiny(project, **{"corpora": corpora, "sequence_length": 32} | changes)
    tokenizer = prepare_vocabulary(recipe, project / "data", folder).tokenizer
    sequences = prepare_sequences(recipe, tokenizer, project / "data", folder)
    sampler = BatchSampler(recipe, tokenizer, sequences, load_documents(folder))
    found = []
    for epoch in range(count):
        rows = []
        for number in range(len(sampler.training)):
            batch = sampler(epoch * len(sampler.training) + number)
            labels = batch.labels.tolist() if batch.labels is not None else [0] * len(batch.input_ids)
            for ids, label in zip(batch.input_ids, labels, strict=True):
                rows.append((ids[ids != 0].tolist(), label))
        found.append(rows)
    return found


@pytest.mark.parametrize("name", first(SETTINGS, "blocks", "segment_pairs"))
def test_static_masks_repeat_every_ten_epochs(project, tmp_path, name):
    found = epochs(project, tmp_path, 21, static_masking=True, **SETTINGS[name])

    assert found[0] == found[10] == found[20]
    assert found[3] == found[13]
    assert all(found[0] != other for other in found[1:10])


def test_dynamic_masks_do_not_repeat(project, tmp_path):
    found = epochs(project, tmp_path, 21)

    assert all(one != other for number, one in enumerate(found) for other in found[:number])


def test_static_masking_masks_as_many_tokens_as_dynamic_masking(project, tmp_path):
    shares = []
    for static in (True, False):
        recipe = tiny(project, corpora={"text.txt.xz": 60}, static_masking=static, sequence_length=32)
        tokenizer = prepare_vocabulary(recipe, project / "data", tmp_path).tokenizer
        sequences = prepare_sequences(recipe, tokenizer, project / "data", tmp_path)
        batches = [BatchSampler(recipe, tokenizer, sequences)(number) for number in range(60)]
        for batch in batches:
            assert torch.equal(batch.targets, batch.original_ids.flatten()[batch.focus])
            changed = (batch.input_ids != batch.original_ids).flatten().nonzero()[:, 0]
            assert set(changed.tolist()) <= set(batch.focus.tolist())
        words = sum(int((batch.original_ids > 4).sum()) for batch in batches)
        shares.append(sum(len(batch.focus) for batch in batches) / words)

    assert shares == pytest.approx([0.15, 0.15], abs=0.015)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["causal", "static_pairs", "document_sentences"])
def test_pretrain_resumes_to_the_same_result(project, tmp_path, monkeypatch, kind):
    paired = {"input_format": "sentence_pairs", "sentence_objective": "next_sentence", "static_masking": True}
    changes = {"sequence_length": 32, "corpora": {"text.txt.xz": 40}}
    recipe = {
        "causal": lambda: gpt(project),
        "static_pairs": lambda: tiny(project, **changes | paired),
        "document_sentences": lambda: tiny(project, **changes, input_format="document_sentences"),
    }[kind]()

    with monkeypatch.context() as patch:
        patch.setattr("swiftlet_train.pretraining.pretrain.train", interrupted_train)
        with pytest.raises(KeyboardInterrupt):
            pretrain(recipe, project / "data", tmp_path / "killed", SILENT)
    killed, _ = pretrain(recipe, project / "data", tmp_path / "killed", SILENT)
    whole, _ = pretrain(recipe, project / "data", tmp_path / "whole", SILENT)

    assert same_state(killed, whole)
