"""A teacher of entities, with tokens of its own or those of its student."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.entities import read_entities
from swiftlet_train.examples.example import NO_LABEL
from swiftlet_train.finetuning import finetune as finetune_module
from swiftlet_train.finetuning.entity_teacher import TaggedChunk, read_tagged_chunks
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.recipe import Distillation, Finetuning, Pretraining, Recipe
from swiftlet_train.teachers.encoders import load_own_tokenizer
from swiftlet_train.vocabulary.pruning import SPECIALS
from swiftlet_train.vocabulary.tokenizer_training import make_unigram
from tests.support.artifacts import make_tokenizer
from tests.support.training import BODY, SILENT, teacher_package, wordpiece

CHARACTERS = make_tokenizer()  # the student's
WORDS = Tokenizer(json.loads(wordpiece([*SPECIALS, "ana", "rio", "left", "##s", "a", "##n"]).to_str()))
SPACES = Tokenizer(
    json.loads(
        make_unigram(
            [
                *((special, 0.0) for special in SPECIALS),
                *(("▁", -3.0), ("▁ana", -4.0), ("▁rio", -4.0), ("left", -5.0), ("A", -6.0), ("na", -6.0)),
            ],
            SPECIALS.index("[UNK]"),
            normalizers.NFKC(),
        ).to_str()
    )
)  # its tokens begin with a space
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TEACHER, OTHER = "teacher_of_the_entity_tests", "other_teacher_of_the_entity_tests"
PLAN = Distillation(
    hard_label_weight=0.2,
    temperature=1.0,
    teacher_epochs=30,
    teacher_learning_rate=3e-3,
    task_teacher_epochs=30,
    task_teacher_learning_rate=3e-3,
)

words = st.lists(st.sampled_from(["ana", "rio", "left", "lefts", "an", "\u110b\u1161\u11ab", "e\u0301"]), max_size=12)


def finetuning(**changes) -> Finetuning:
    kinds = {"person": "PER", "place": "LOC"}
    settings = {"labels": LABELS, "entity_kinds": kinds, "max_tokens": 32, "epochs": 2, "batch_size": 4} | changes
    return Finetuning("entities", "x", (), {"ner.conll": 90}, method="entities", **settings)


def read_pairs(texts: list[str], max_tokens: int, folder: Path) -> list[TaggedChunk]:
    rows = ("\n".join(f"{word} O" for word in text.split()) for text in texts)
    (folder / "ner.conll").write_text("\n\n".join(rows) + "\n", "utf-8")
    return read_tagged_chunks(finetuning(max_tokens=max_tokens), folder, CHARACTERS, WORDS)


@given(words, st.integers(8, 40))
def test_align_takes_the_logits_of_tokens_that_start_at_the_same_character(tmp_path_factory, found, max_tokens):
    folder = tmp_path_factory.mktemp("aligned")
    for pair in read_pairs([" ".join(["ana", *found])], max_tokens, folder):
        own, theirs = (one.encoding.tokens.offsets[:, 0] for one in (pair.student, pair.teacher))
        logits = np.random.default_rng(0).normal(size=(len(theirs), len(LABELS))).astype(np.float32)
        aligned = pair.align(logits)
        at = {int(start): row for start, row in zip(theirs, logits, strict=True)}
        assert aligned.shape == (len(own), len(LABELS))
        assert not np.isnan(aligned[0]).any()
        for start, row in zip(own - own[0], aligned, strict=True):
            expected = at.get(int(start), np.full(len(LABELS), np.nan))
            assert np.array_equal(row, expected.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("tokenizer", [CHARACTERS, SPACES], ids=["characters", "spaces"])
def test_align_of_the_same_tokenizer_changes_nothing(tmp_path, tokenizer):
    (tmp_path / "ner.conll").write_text("Ana B-person\nleft O\nana O\n", "utf-8")
    (pair,) = read_tagged_chunks(finetuning(), tmp_path, tokenizer, tokenizer)
    logits = np.random.default_rng(0).normal(size=(len(pair.student.target), 5)).astype(np.float32)

    assert np.array_equal(pair.align(logits), logits)
    assert np.array_equal(pair.student.encoding.input_ids, pair.teacher.encoding.input_ids)


def test_align_leaves_out_the_space_before_a_token(tmp_path):
    (tmp_path / "ner.conll").write_text("ana O\nleft O\nrio O\n", "utf-8")
    (pair,) = read_tagged_chunks(finetuning(), tmp_path, WORDS, SPACES)
    read = [SPACES.tokens[i] for i in pair.teacher.encoding.input_ids[1:-1]]
    logits = np.arange(len(read), dtype=np.float32)[:, None].repeat(5, 1)

    assert read == ["▁ana", "▁", "left", "▁rio"]
    assert pair.align(logits)[:, 0].tolist() == [0, 2, 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts with the names of two people and a place, sentences, and teachers that can be imported."""
    data = tmp_path_factory.mktemp("entity_teacher")
    lines = ["the B-person\nrain O\nfalls O\n", "old B-place\nmill I-place\nsnow O\n", "snow O\nfalls O\n"]
    (data / "ner.conll").write_text("\n".join(lines * 8), "utf-8")
    (data / "long.txt").write_text("the rain falls on the old mill and the river. snow lies on it.\n" * 9, "utf-8")
    for name in (TEACHER, OTHER):
        teacher_package(data / "packages", name)
    sys.path.insert(0, str(data / "packages"))
    yield data
    sys.path.remove(str(data / "packages"))


def train(folder: Path, directory: Path, **changes) -> tuple[Model, Recipe]:
    work = finetuning(**{"distillation": PLAN} | changes)
    recipe = Recipe(
        *("tiny", "1", "A test.", 1, 48, "albert", BODY, Pretraining({"x": 9}, 16, 8, 1, 1e-3), {"work": work}),
        teacher=TEACHER,
    )
    tokenizer = load_own_tokenizer(TEACHER)
    torch.manual_seed(9)
    pretrained = build("albert", {**BODY, "vocab_size": tokenizer.vocab_size}, "masked_lm")
    return finetune(recipe, "work", pretrained, tokenizer, folder, directory, SILENT), recipe


@pytest.mark.exhaustive
@pytest.mark.parametrize("task_teacher", ["", OTHER])
def test_student_learns_the_predictions_of_its_teacher(folder, tmp_path, task_teacher):
    plan = replace(PLAN, task_teacher=task_teacher, hard_label_weight=0.0, init_from_teacher=True)
    model, recipe = train(
        folder, tmp_path, distillation=plan, unlabelled={"long.txt": 12}, epochs=12, learning_rate=3e-3
    )
    work, tokenizer = recipe.finetuning["work"], load_own_tokenizer(TEACHER)
    teacher_folder = tmp_path / ("task_teacher" if task_teacher else "teacher")
    (file,) = teacher_folder.glob("unlabelled-*.npy")
    pairs = read_tagged_chunks(work, folder, tokenizer, tokenizer)
    assert len(pairs) == 24 + 12
    assert sum(set(pair.student.target) == {NO_LABEL} for pair in pairs) == 12
    rows = np.load(file)
    assert rows.shape == (sum(len(pair.teacher.target) for pair in pairs), len(LABELS))
    ours = task_logits(model, [pair.student for pair in pairs])
    assert (ours.argmax(1).numpy() == rows.argmax(1)).mean() > 0.95

    labelled = read_entities(work, folder, tokenizer)
    right = ours[: sum(len(one.target) for one in labelled)].argmax(1).numpy()
    assert (right == np.concatenate([one.target for one in labelled])).mean() > 0.95


@pytest.mark.exhaustive
def test_two_teachers_teach_the_weighted_mean_of_their_probabilities(folder, tmp_path, monkeypatch):
    taught: list[np.ndarray] = []
    monkeypatch.setattr(finetune_module, "train_on_examples", lambda *given: taught.extend(given[2]))
    plan = replace(PLAN, task_teacher=OTHER, recipe_teacher_share=0.25, teacher_epochs=1, task_teacher_epochs=3)
    train(folder, tmp_path, distillation=plan, unlabelled={"long.txt": 2})
    own, other = (
        np.load(next((tmp_path / name).glob("unlabelled-*.npy"))).astype(np.float64)
        for name in ("teacher", "task_teacher")
    )

    def probabilities(logits):
        return np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    expected = 0.25 * probabilities(own) + 0.75 * probabilities(other)
    assert not np.allclose(own, other)
    np.testing.assert_allclose(np.exp(np.concatenate(taught)), expected, atol=1e-6)
