"""Training of an embedding model: the teacher's vectors, and a student that learns them."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer

from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import Example, unlabelled
from swiftlet_train.examples.sentences import read_sentences
from swiftlet_train.finetuning import sentence_vectors, task_training
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.sentence_vectors import VECTORS_FILE, load_sentence_teacher
from swiftlet_train.recipe import Finetuning, Pretraining, Recipe, RecipeError
from tests.support.sentence_checkpoints import save_encoder
from tests.support.tiers import first
from tests.support.training import SILENT, interrupted_train, make_word_tokenizer, same_state, teacher_package

TEACHER = "sentence_teacher_of_the_tests"
PLAIN_TEACHER = "plain_teacher_of_the_tests"
WORDS = ["rain", "falls", "on", "the", "old", "mill", "and", "river", "snow", "lies", "over", "quiet", "town"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sentences, an embedding model that can be imported, and a BERT that is none."""
    data = tmp_path_factory.mktemp("vectors")
    chance = np.random.default_rng(1)
    lines = [" ".join(chance.choice(WORDS, 6)) + "." for _ in range(120)]
    (data / "text.txt").write_text("\n".join(lines), "utf-8")
    (data / "packages").mkdir()
    save_encoder(data / "packages" / TEACHER)
    (data / "packages" / TEACHER / "__init__.py").write_text("")
    teacher_package(data / "packages", PLAIN_TEACHER)
    sys.path.insert(0, str(data / "packages"))
    yield data
    sys.path.remove(str(data / "packages"))


def recipe(width: int, epochs: int = 1, **changes) -> Recipe:
    work = Finetuning(
        *("embed", "x", ()),
        method="embedding",
        unlabelled={"text.txt": 100},
        epochs=epochs,
        batch_size=10,
        learning_rate=5e-3,
        max_tokens=32,
    )
    body = {"embedding_size": 16, "hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 4}
    body |= {"intermediate_size": 64, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0}
    pretraining = Pretraining({"text.txt": 9}, 16, 8, 0, 1e-3)
    plan = Recipe("tiny", "1", "A test.", 1, 48, "albert", body, pretraining, {"work": work}, teacher=TEACHER)
    return replace(plan, **changes)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_word_tokenizer()


def run_finetuning(plan: Recipe, tokenizer: Tokenizer, folder: Path, directory: Path, report=SILENT) -> Model:
    torch.manual_seed(3)
    pretrained = build(plan.architecture, {**plan.config, "vocab_size": tokenizer.vocab_size}, "masked_lm")
    return finetune(plan, "work", pretrained, tokenizer, folder, directory, report)


@torch.no_grad()
def mean_cosine(model: Model, examples: list[Example], vectors: np.ndarray) -> float:
    return float(F.cosine_similarity(task_logits(model, examples), torch.from_numpy(vectors).float()).mean())


@pytest.fixture(scope="module")
def width(folder) -> int:
    model, _, _ = load_sentence_teacher(TEACHER)
    return model.encoder.config.hidden_size


def test_finetune_learns_the_vectors_of_the_teacher(folder, tokenizer, width, tmp_path):
    plan = recipe(width, epochs=10)
    reports: list[str] = []
    model = run_finetuning(plan, tokenizer, folder, tmp_path, reports.append)
    sentences = read_sentences(plan.finetuning["work"], folder)
    examples = unlabelled(tokenizer.encode(sentences, 32))
    vectors = np.load(tmp_path / "teacher" / VECTORS_FILE)

    assert reports[0] == "teacher: computing the vectors of 100 sentences"
    assert " distance " in reports[-1]
    assert model.pooling == "mean"
    assert mean_cosine(model, examples, vectors) > 0.95
    untrained = build("albert", {**plan.config, "vocab_size": tokenizer.vocab_size}, "masked_lm").encoder
    model.encoder.load_state_dict(untrained.state_dict())
    assert mean_cosine(model, examples, vectors) < 0.9


def test_finetune_takes_the_vectors_of_sentence_transformers(folder, tokenizer, width, tmp_path):
    plan = recipe(width)
    run_finetuning(plan, tokenizer, folder, tmp_path)
    theirs = SentenceTransformer(str(folder / "packages" / TEACHER / "model"), device="cpu")
    expected = theirs.encode(read_sentences(plan.finetuning["work"], folder), normalize_embeddings=True)

    assert np.abs(np.load(tmp_path / "teacher" / VECTORS_FILE) - expected).max() < 1e-3


def test_finetune_computes_vectors_once(folder, tokenizer, width, tmp_path, monkeypatch):
    first = run_finetuning(recipe(width), tokenizer, folder, tmp_path / "a")
    shutil.copytree(tmp_path / "a/teacher", tmp_path / "b/teacher")
    monkeypatch.setattr("swiftlet_train.finetuning.sentence_vectors.load_sentence_teacher", None)
    second = run_finetuning(recipe(width), tokenizer, folder, tmp_path / "b")

    assert same_state(first, second)


@pytest.mark.parametrize("stage", first(["vectors", "student"], "student"))
def test_finetune_resumes_to_the_result_of_an_uninterrupted_run(folder, tokenizer, width, tmp_path, monkeypatch, stage):
    whole = run_finetuning(recipe(width), tokenizer, folder, tmp_path / "whole")

    def write_partially(path, vectors):
        path.with_name(path.name + ".new").write_bytes(b"a part of the vectors")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if stage == "vectors":
            patch.setattr(sentence_vectors, "write_array_atomically", write_partially)
        else:
            patch.setattr(task_training, "train", interrupted_train)
        with pytest.raises(KeyboardInterrupt):
            run_finetuning(recipe(width), tokenizer, folder, tmp_path / "interrupted")

    assert same_state(run_finetuning(recipe(width), tokenizer, folder, tmp_path / "interrupted"), whole)


def test_finetune_rejects_the_vectors_of_other_texts(folder, tokenizer, width, tmp_path):
    run_finetuning(recipe(width), tokenizer, folder, tmp_path)
    (tmp_path / "text.txt").write_text((folder / "text.txt").read_text("utf-8").replace("rain", "snow"), "utf-8")
    with pytest.raises(RecipeError, match="teacher holds a run of a different recipe"):
        run_finetuning(recipe(width), tokenizer, tmp_path, tmp_path)


def test_finetune_rejects_vectors_of_another_width(folder, tokenizer, width, tmp_path):
    with pytest.raises(RecipeError, match=f"the teacher's vectors have {width} numbers: set hidden_size to that."):
        run_finetuning(recipe(2 * width), tokenizer, folder, tmp_path)


def test_finetune_rejects_a_teacher_that_is_no_embedding_model(folder, tokenizer, width, tmp_path):
    with pytest.raises(RecipeError, match=f"{PLAIN_TEACHER} holds no embedding model"):
        run_finetuning(recipe(width, teacher=PLAIN_TEACHER), tokenizer, folder, tmp_path)


@pytest.mark.parametrize("changes", [{"unlabelled": {}}, {"train": {"text.txt": 1}}, {"labels": ("a", "b")}])
def test_recipe_rejects_other_data(changes):
    with pytest.raises(RecipeError, match="a task like embed needs unlabelled"):
        Finetuning("embed", "x", (), **{"method": "embedding", "unlabelled": {"text.txt": 1}} | changes)
