"""A teacher of character n-grams: its predictions, and a fine-tuning that learns from them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from swiftlet_models.heads import build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.ngram_teacher import FOLDS, cross_fit
from swiftlet_train.recipe import Distillation, Finetuning, Pretraining, Recipe, RecipeError
from swiftlet_train.recipe.recipe import TokenizerTraining
from swiftlet_train.vocabulary.pruning import SPECIALS
from tests.support.training import BODY, SILENT, wordpiece

MOODS = ("lonely", "warm", "quiet")
PLACES = ("town", "hill", "river", "lane", "sea", "field", "sky")
TEXTS = [f"the {place} is {mood}" for place in PLACES for mood in MOODS]
LABELS = [number for _ in PLACES for number in range(len(MOODS))]


def test_cross_fit_finds_the_labels_of_texts_that_it_did_not_see():
    found = cross_fit(TEXTS, LABELS, 3, SILENT)

    assert found.shape == (21, 3)
    assert found.dtype == np.float32
    assert np.allclose(np.exp(found).sum(1), 1, atol=1e-5)
    assert found.argmax(1).tolist() == LABELS


def test_cross_fit_cannot_repeat_a_label_that_contradicts_all_other_texts():
    labels = list(LABELS)
    labels[0] = 2  # the text says 0

    assert cross_fit(TEXTS, labels, 3, SILENT)[0].argmax() == 0


def test_cross_fit_gives_the_same_each_time_and_reports_each_fold():
    reports: list[str] = []
    first = cross_fit(TEXTS, LABELS, 2, reports.append)

    assert np.array_equal(first, cross_fit(TEXTS, LABELS, 2, SILENT))
    assert reports == [f"n-grams: fold {number} of {FOLDS}, accuracy 100.0 %" for number in range(1, FOLDS + 1)]


def recipe(**changes) -> Recipe:
    work = Finetuning(
        *("classify", "mood.tsv", (), {"mood.tsv": 99}),
        method="classification",
        labels=("LONELY", "WARM", "QUIET"),
        batch_size=8,
        max_tokens=32,
        epochs=120,
        learning_rate=5e-3,
        distillation=Distillation(hard_label_weight=0.0, temperature=1.0, character_ngrams=3),
    )
    pretraining = Pretraining({"text.txt": 9}, 16, 8, 0, 1e-3)
    return Recipe(
        *("tiny", "1", "A test.", 1, 64, "albert", BODY, pretraining, {"work": replace(work, **changes)}),
        tokenizer=TokenizerTraining("wordpiece"),
    )


@pytest.fixture
def tokenizer():
    pieces = [*SPECIALS, *sorted({word for text in TEXTS for word in text.split()})]
    return Tokenizer(json.loads(wordpiece(pieces).to_str()))


@pytest.fixture
def folder(tmp_path):
    rows = "".join(f"{label}\t{text}\n" for label, text in zip(LABELS, TEXTS, strict=True))
    (tmp_path / "mood.tsv").write_text("label\ttext\n" + rows, "utf-8")
    return tmp_path


def run(plan, tokenizer, folder, report=SILENT):
    torch.manual_seed(2)
    pretrained = build("albert", {**BODY, "vocab_size": tokenizer.vocab_size}, "masked_lm")
    return finetune(plan, "work", pretrained, tokenizer, folder, folder / "run", report)


def test_finetune_learns_from_ngrams_and_keeps_their_predictions(folder, tokenizer):
    reports: list[str] = []
    model = run(recipe(), tokenizer, folder, reports.append)

    with torch.no_grad():
        encodings = tokenizer.encode(TEXTS, 32)
        outputs = [
            model(
                *(torch.from_numpy(row)[None] for row in (one.input_ids, one.token_type_ids)),
                torch.tensor([len(one.input_ids)]),
                torch.tensor([0]),
            )
            for one in encodings
        ]
    assert torch.cat(outputs).argmax(1).tolist() == LABELS
    assert np.load(folder / "run/ngrams.npy").shape == (21, 3)
    assert reports[0].startswith("n-grams: fold 1 of")

    reports.clear()
    run(recipe(), tokenizer, folder, reports.append)
    assert not any("n-grams" in line for line in reports)


@pytest.mark.parametrize("field", ["init_from_teacher", "task_teacher", "teacher_engine", "init_from_model"])
def test_recipe_without_a_teacher_takes_ngrams_only(field):
    plan = Distillation(character_ngrams=3, **{field: True if field == "init_from_teacher" else "x"})

    with pytest.raises(RecipeError, match="distillation needs a teacher, and this recipe names none"):
        recipe(distillation=plan)


def test_finetune_rejects_a_label_that_is_too_rare_for_the_folds(folder, tokenizer):
    plan = recipe(labels=("LONELY", "WARM", "QUIET", "LOUD"))

    with pytest.raises(RecipeError, match="the label LOUD needs at least 5 training texts"):
        run(plan, tokenizer, folder)
