"""Tests of contrastive training: reading pairs from each kind of file, the loss, and training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from swiftlet_models.datasets import DatasetError
from swiftlet_models.heads import Model, build
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_train.examples.example import unlabelled
from swiftlet_train.examples.partners import Pair, read_pairs
from swiftlet_train.finetuning.contrastive import SCALE, contrastive_loss
from swiftlet_train.finetuning.finetune import finetune
from swiftlet_train.finetuning.logits import task_logits
from swiftlet_train.finetuning.task_training import MEAN
from swiftlet_train.recipe import Finetuning, Pretraining, Recipe, RecipeError
from tests.support.training import BODY, SILENT, make_word_tokenizer, same_state, write_lines, write_squad

PLACES = ("river", "mill", "town")


def finetuning(**train: int) -> Finetuning:
    files = {name.replace("__", "."): count for name, count in train.items()}
    return Finetuning(
        *("zero-shot", "x", (), files),
        method="contrastive",
        epochs=20,
        batch_size=6,
        learning_rate=3e-3,
        max_tokens=32,
    )


def recipe(work: Finetuning, **others: Finetuning) -> Recipe:
    pretraining = Pretraining({"text.txt": 9}, 16, 8, 0, 1e-3)
    return Recipe("tiny", "1", "A test.", 1, 48, "albert", BODY, pretraining, {"work": work, **others}, teacher="x")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_word_tokenizer()


def make_model(tokenizer: Tokenizer) -> Model:
    torch.manual_seed(9)
    return build("albert", {**BODY, "vocab_size": tokenizer.vocab_size}, "embedding", embedding=MEAN)


def test_labels_are_partners_of_their_texts(tmp_path):
    write_lines(tmp_path / "intents.jsonl", *({"text": f"text {i}", "label": "PlayMusic"} for i in range(9)))

    assert read_pairs(finetuning(intents__jsonl=2), tmp_path) == [
        Pair("text 0", "Play Music"),
        Pair("text 8", "Play Music"),
    ]


def test_hypotheses_that_follow_are_partners(tmp_path):
    relations = ("entailment", "neutral", "SUPPORTS", "contradiction")
    rows = [{"premise": f"p{i}", "hypothesis": f"h{i}", "label": label} for i, label in enumerate(relations)]
    write_lines(tmp_path / "nli.jsonl", *rows)

    assert read_pairs(finetuning(nli__jsonl=9), tmp_path) == [Pair("p0", "h0"), Pair("p2", "h2")]


def test_answers_are_partners_of_questions_and_other_sentences_are_wrong(tmp_path):
    context = "The mill is old. The river falls on the town. Snow lies over it."
    write_squad(
        tmp_path / "asked.json", ("1", "What falls?", context, ["river"]), ("2", "What is old?", context, ["mill"])
    )
    assert read_pairs(finetuning(asked__json=9), tmp_path) == [
        Pair("What falls?", "The river falls on the town.", "The mill is old."),
        Pair("What is old?", "The mill is old.", "The river falls on the town."),
    ]


def test_the_kind_of_its_subject_is_the_partner_of_an_article(tmp_path):
    text = (
        "= Acton =\n\nActon was a former Railway station in Ohio. It was closed in 1903. Nothing is left of it now.\n"
        "= Anna =\n\nThe name has many forms. One of them is old.\n"
        "= Asia =\n\nAsia (say it) is one of the largest continents, and the most populous one.\n"
    )
    (tmp_path / "wiki.txt").write_text(text, "utf-8")

    assert read_pairs(finetuning(wiki__txt=9), tmp_path) == [
        Pair("Acton was a former Railway station in Ohio. It was closed in 1903.", "former railway station"),
        Pair("Asia (say it) is one of the largest continents, and the most populous one.", "largest continents"),
    ]


@pytest.mark.parametrize("content", ['{"a": 1}\n', "no json\n", '["x"]\n'])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "odd.jsonl").write_text(content, "utf-8")
    with pytest.raises(DatasetError, match=r"odd\.jsonl: line 1"):
        read_pairs(finetuning(odd__jsonl=9), tmp_path)


def test_loss_is_the_cross_entropy_of_the_cosines(tokenizer):
    model = make_model(tokenizer).eval()
    texts, candidates = (
        unlabelled(tokenizer.encode(one, 32))
        for one in (["the old mill", "rain"], ["snow lies", "the mill", "the quiet town"])
    )
    with torch.no_grad():
        found = contrastive_loss(model, texts, candidates, torch.tensor([1, 0]))
        cosines = F.cosine_similarity(task_logits(model, texts)[:, None], task_logits(model, candidates)[None], -1)

    expected = -(SCALE * cosines).log_softmax(1)[[0, 1], [1, 0]].mean()
    assert found == pytest.approx(float(expected), rel=1e-4)


@pytest.fixture
def data(tmp_path) -> Path:
    chance = np.random.default_rng(1)
    rows = [
        {
            "text": f"{chance.choice(['rain', 'snow'])} falls on the {chance.choice(['old', 'quiet'])} {place}",
            "label": place,
        }
        for place in PLACES * 8
    ]
    write_lines(tmp_path / "places.jsonl", *rows)
    return tmp_path


def accuracy(model: Model, tokenizer: Tokenizer) -> float:
    texts = [f"the {place} and the snow" for place in PLACES]
    with torch.no_grad():
        vectors = F.normalize(task_logits(model.eval(), unlabelled(tokenizer.encode([*texts, *PLACES], 32))))
    return float(((vectors[:3] @ vectors[3:].T).argmax(1) == torch.arange(3)).float().mean())


def test_finetune_brings_texts_close_to_their_labels(tokenizer, data):
    """A batch has the same label several times, which is no negative of itself."""
    reports: list[str] = []
    model = finetune(
        recipe(finetuning(places__jsonl=99)),
        "work",
        make_model(tokenizer),
        tokenizer,
        data,
        data / "run",
        reports.append,
    )

    assert accuracy(model, tokenizer) == 1
    assert " contrast " in reports[-1]
    assert float(reports[-1].split("contrast ")[1].split()[0]) < 0.2


def test_wrong_texts_are_negatives(tokenizer, tmp_path, monkeypatch):
    seen = []

    def record(model, texts, candidates, targets):
        seen.append((len(texts), len(candidates), targets.tolist()))
        return contrastive_loss(model, texts, candidates, targets)

    monkeypatch.setattr("swiftlet_train.finetuning.contrastive.contrastive_loss", record)
    context = "The mill is old. The river falls on the town."
    write_squad(tmp_path / "asked.json", ("1", "What falls?", context, ["river"]))
    work = replace(finetuning(asked__json=9), epochs=1)
    finetune(recipe(work), "work", make_model(tokenizer), tokenizer, tmp_path, tmp_path / "run", SILENT)

    assert seen == [(1, 2, [0])]  # the sentence with the answer, and the other one


def test_finetune_resumes_to_the_result_of_an_uninterrupted_run(tokenizer, data, monkeypatch):
    plan = recipe(replace(finetuning(places__jsonl=99), epochs=2))

    def run(name: str) -> Model:
        return finetune(plan, "work", make_model(tokenizer), tokenizer, data, data / name, SILENT)

    whole, calls = run("whole"), []

    def fail(*args):
        calls.append(args)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return contrastive_loss(*args)

    with monkeypatch.context() as patch:
        patch.setattr("swiftlet_train.finetuning.contrastive.contrastive_loss", fail)
        with pytest.raises(KeyboardInterrupt):
            run("interrupted")
    assert same_state(run("interrupted"), whole)


CLASSIFY = Finetuning("classify", "x", (), {"a": 1}, method="classification", labels=("A", "B"))
EMBED = Finetuning("embed", "x", (), method="embedding", unlabelled={"text.txt": 9})


@pytest.mark.parametrize(
    ("before", "others"),
    [
        ("nothing", {}),
        ("work", {}),
        (
            "classifier",
            {"classifier": CLASSIFY},
        ),
        ("second", {"second": replace(finetuning(a=1), init_from="first"), "first": EMBED}),
    ],
)
def test_recipe_rejects_models_that_cannot_be_continued(before, others):
    with pytest.raises(RecipeError, match=f"work cannot continue '{before}'"):
        recipe(replace(finetuning(a=1), init_from=before), **others)


def test_recipe_continues_a_model_of_vectors():
    assert recipe(replace(finetuning(a=1), init_from="first"), first=EMBED).finetuning["work"].init_from == "first"


@pytest.mark.parametrize("change", [{"labels": ("A",)}, {"unlabelled": {"a": 1}}])
def test_contrastive_training_takes_pairs_only(change):
    with pytest.raises(RecipeError, match=r"contrastive takes no labels|unlabelled needs a task like classify"):
        replace(finetuning(a=1), **change)
