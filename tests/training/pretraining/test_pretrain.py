"""Pre-training: its objectives, its teacher and its resumption."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from swiftlet_models.heads import build
from swiftlet_train.loop.learning_curve import read_curve
from swiftlet_train.loop.trainer import train
from swiftlet_train.pretraining.batch_sampler import BatchSampler
from swiftlet_train.pretraining.corpus import prepare_sequences, prepare_vocabulary
from swiftlet_train.pretraining.pretrain import pretrain
from swiftlet_train.recipe import KnowledgeTransfer, RecipeError
from swiftlet_train.run_recipe import load_recipe
from tests.support.tiers import first
from tests.support.training import SILENT, same_state, tiny


def test_pretrain_loads_a_completed_run(pretrained, project, tmp_path):
    recipe = load_recipe(str(project / "tiny.toml"))
    reports: list[str] = []
    again, _ = pretrain(recipe, project / "data", project / "runs" / "tiny", reports.append)
    anew, _ = pretrain(recipe, project / "data", tmp_path, SILENT)

    assert reports == []
    assert same_state(again, anew)


PLAN = KnowledgeTransfer(
    teacher_recipe="teacher",
    feature_weight=1.0,
    attention_weight=1.0,
    hard_label_weight=0.5,
    mean_weight=1.0,
    variance_weight=1.0,
)


TRANSFERRED = {"features", "means", "variances", "attention"}


@pytest.mark.parametrize(
    ("strategy", "losses"),
    [
        pytest.param("auxiliary", [{"mlm", *TRANSFERRED}] * 6, marks=pytest.mark.exhaustive),
        ("joint", [TRANSFERRED] * 3 + [{"mlm"}] * 3),
        ("progressive", [TRANSFERRED] * 4 + [{"mlm"}] * 2),
    ],
)
def test_pretrain_follows_the_phases_of_a_strategy(project, teacher_model, tmp_path, monkeypatch, strategy, losses):
    fraction = 2 / 3 if strategy == "progressive" else 0.5
    recipe = tiny(project, knowledge_transfer=replace(PLAN, strategy=strategy, transfer_fraction=fraction))
    seen, trained = [], []

    def recording_train(model, compute_losses, *arguments, **named):
        def record(number):
            parts = [model.encoder.embeddings, *model.encoder.layers]
            trained.append([all(p.requires_grad for p in part.parameters()) for part in parts])
            found = compute_losses(number)
            seen.append(set(found))
            trained[-1] = [all(p.requires_grad for p in part.parameters()) for part in parts]
            return found

        train(model, record, *arguments, **named)

    monkeypatch.setattr("swiftlet_train.pretraining.pretrain.train", recording_train)
    pretrain(recipe, project / "data", tmp_path, SILENT, teacher_model=teacher_model)

    assert seen == losses
    second = [False, False, True] if strategy == "progressive" else [True] * 3
    assert trained == [[True] * 3] * 2 + [second] * 2 + [[True] * 3] * 2


def test_pretrain_scales_the_learning_rate_of_lower_layers(project, teacher_model, tmp_path, monkeypatch):
    """The student has two layers, and four of its six steps are transfer."""
    plan = replace(PLAN, strategy="progressive", transfer_fraction=2 / 3)
    scaled = {}

    def recording_train(model, compute_losses, *arguments, **named):
        parts = {id(model.encoder.embeddings): "embeddings", id(model.encoder.layers[0]): "first"}
        for step in range(6):
            scale, modules = named["scale_learning_rate"](step)
            scaled[step] = scale, [parts[id(module)] for module in modules]
        train(model, compute_losses, *arguments, **named)

    monkeypatch.setattr("swiftlet_train.pretraining.pretrain.train", recording_train)
    plans = [replace(plan, lower_layers_lr_scale=scale) for scale in (0.0, 0.1)]
    recipes = [tiny(project, knowledge_transfer=plan) for plan in plans]
    frozen, _ = pretrain(recipes[0], project / "data", tmp_path / "frozen", SILENT, teacher_model=teacher_model)
    assert all(modules == [] for _, modules in scaled.values())
    moving, _ = pretrain(recipes[1], project / "data", tmp_path / "moving", SILENT, teacher_model=teacher_model)

    assert [scaled[step][1] for step in range(6)] == [[], [], ["embeddings", "first"], ["embeddings", "first"], [], []]
    assert scaled[2][0] == 0.1
    assert not same_state(frozen, moving)


def test_pretrain_learns_from_a_teachers_predictions(project, teacher_model, tmp_path):
    alone, _ = pretrain(tiny(project), project / "data", tmp_path / "alone", SILENT)
    plan = KnowledgeTransfer(teacher_recipe="teacher", hard_label_weight=0.5)
    guided, _ = pretrain(
        tiny(project, knowledge_transfer=plan),
        project / "data",
        tmp_path / "guided",
        SILENT,
        teacher_model=teacher_model,
    )

    assert not same_state(alone, guided)
    assert all(not p.requires_grad for p in teacher_model.parameters())


def test_pretrain_initialises_a_bottleneck_student_from_its_teacher(pretrained, project, tmp_path):
    plan = KnowledgeTransfer(teacher_recipe="albert", hard_label_weight=0.5, init_from_teacher=True)
    recipe = tiny(project, knowledge_transfer=plan, learning_rate=1e-12, steps=1)
    model, _ = pretrain(recipe, project / "data", tmp_path, SILENT, teacher_model=pretrained)

    words = model.encoder.embeddings.word.weight, pretrained.encoder.embeddings.word.weight
    assert torch.allclose(*words, atol=1e-6)
    assert torch.allclose(model.head.bias, pretrained.head.bias, atol=1e-6)
    assert words[0].data_ptr() != words[1].data_ptr()


@pytest.mark.parametrize("role", ["initial_model", "teacher_model"])
def test_pretrain_rejects_a_run_with_other_models(pretrained, project, teacher_model, tmp_path, role):
    """The recipe names another recipe, whose model may have changed."""
    changes = (
        {"knowledge_transfer": KnowledgeTransfer(teacher_recipe="teacher", hard_label_weight=0.5)}
        if role == "teacher_model"
        else {"init_from_recipe": "teacher"}
    )
    recipe = tiny(project, **changes)
    other = teacher_model
    if role == "initial_model":
        other, _ = pretrain(tiny(project), project / "data", tmp_path / "initial", SILENT)
    pretrain(recipe, project / "data", tmp_path / "run", SILENT, **{role: other})
    pretrain(recipe, project / "data", tmp_path / "run", SILENT, **{role: other})
    altered = copy.deepcopy(other)
    next(altered.parameters()).data[0] += 1e-3

    with pytest.raises(RecipeError, match="holds a run of a different recipe"):
        pretrain(recipe, project / "data", tmp_path / "run", SILENT, **{role: altered})


def test_pretrain_starts_from_random_weights_without_init_from_teacher(project, tmp_path):
    recipe = tiny(project, learning_rate=1e-12, steps=1, init_from_teacher=False)
    model, _ = pretrain(recipe, project / "data", tmp_path / "nothing", SILENT)
    fitted, _ = pretrain(tiny(project, learning_rate=1e-12, steps=1), project / "data", tmp_path / "fitted", SILENT)

    torch.manual_seed(recipe.seed)
    anew = build("mobilebert", {**recipe.config, "vocab_size": len(model.head.bias)}, "masked_lm")
    for name, value in anew.encoder.state_dict().items():
        assert torch.allclose(model.encoder.state_dict()[name], value, atol=1e-6), name
    assert not same_state(model, fitted)


def test_pretrain_rejects_an_initial_model_of_another_shape(pretrained, project, tmp_path):
    initial = build("mobilebert", {**tiny(project).config, "vocab_size": 50, "num_hidden_layers": 1}, "masked_lm")

    with pytest.raises(RecipeError, match="the same architecture and config"):
        pretrain(tiny(project), project / "data", tmp_path, SILENT, initial_model=initial)


@pytest.mark.parametrize(
    ("sentences", "masking"),
    first(
        product(["sentence_order", "next_sentence"], ["whole_words", "ngrams"]),
        ("sentence_order", "ngrams"),
        ("next_sentence", "whole_words"),
    ),
)
def test_pretrain_learns_sentence_objectives_and_spans(pretrained, project, tmp_path, sentences, masking):
    recipe = tiny(project, sentence_objective=sentences, masking=masking)
    reports: list[str] = []
    model, _ = pretrain(recipe, project / "data", tmp_path, reports.append)

    assert re.fullmatch(r"step 6/6 mlm [\d.]+ sentences [\d.]+ \(.*", reports[-1])
    assert set(model.state_dict()) == set(build("mobilebert", recipe.config, "masked_lm").state_dict())


def test_pretrain_reports_held_out_losses(pretrained, project, tmp_path):
    recipe = tiny(project, held_out_sequences=16, sentence_objective="sentence_order")
    model, _ = pretrain(recipe, project / "data", tmp_path, SILENT)
    tokenizer = prepare_vocabulary(recipe, project / "data", tmp_path).tokenizer
    sampler = BatchSampler(recipe, tokenizer, prepare_sequences(recipe, tokenizer, project / "data", tmp_path))
    losses = []
    with torch.no_grad():
        for batch in (sampler.held_out(0), sampler.held_out(1)):
            hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.is_token).flatten(0, 1)[batch.focus]
            logits = model.head(hidden, model.encoder.embeddings.word.weight)
            losses.append(float(nn.functional.cross_entropy(logits, batch.targets)))
    (point,) = read_curve(tmp_path / "losses.csv")

    assert point.losses["held_out_mlm"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert point.losses.keys() == {"mlm", "sentences", "held_out_mlm", "held_out_sentences"}


def test_pretrain_rejects_too_many_held_out_sequences(pretrained, project, tmp_path):
    with pytest.raises(RecipeError, match="have 49 sequences, and 48 of them are held out"):
        pretrain(tiny(project, held_out_sequences=48), project / "data", tmp_path, SILENT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 49}, "vocabulary of the teacher has another size"),
        ({"hidden_size": 16, "num_attention_heads": 4}, "the student's hidden_size"),
        ({"num_attention_heads": 2}, "the student's num_attention_heads"),
    ],
)
def test_pretrain_rejects_a_teacher_of_another_shape(pretrained, project, tmp_path, change, message):
    recipe = tiny(project, knowledge_transfer=PLAN)
    teacher = build("mobilebert", {**recipe.config, "vocab_size": 50} | change, "masked_lm")

    with pytest.raises(RecipeError, match=message):
        pretrain(recipe, project / "data", tmp_path, SILENT, teacher_model=teacher)


def test_pretrain_rejects_impossible_knowledge_transfer(pretrained, project, teacher_model, tmp_path):
    recipe = load_recipe(str(project / "tiny.toml"))
    plan = KnowledgeTransfer(strategy="progressive", feature_weight=1.0)
    work = replace(recipe.pretraining, knowledge_transfer=plan, init_from_teacher=False)
    for shared in ("all", "attention", "feed_forward"):
        own = replace(recipe, pretraining=work, config=recipe.config | {"shared_parameters": shared})
        with pytest.raises(RecipeError, match="cannot train shared layers"):
            pretrain(own, project / "data", tmp_path / shared, SILENT)
    with pytest.raises(RecipeError, match="a student with bottlenecks"):
        pretrain(
            *(
                tiny(project, knowledge_transfer=replace(PLAN, init_from_teacher=True)),
                project / "data",
                tmp_path / "begin",
                SILENT,
            ),
            teacher_model=teacher_model,
        )
    with pytest.raises(RecipeError, match="predicts no words"):
        pretrain(
            tiny(project, knowledge_transfer=KnowledgeTransfer(hard_label_weight=0.5)),
            project / "data",
            tmp_path / "silent",
            SILENT,
        )
