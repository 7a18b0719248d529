"""The shipped recipes: their data, and a short version of each from the corpus to served answers."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swiftlet_models.artifact import TOKENIZER, Artifact
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.offline.release import release
from swiftlet_train import run_recipe as recipe_module
from swiftlet_train.finetuning.distillation import TaskTeacher
from swiftlet_train.finetuning.task_training import Run
from swiftlet_train.pretraining.corpus import PRUNING_DOCUMENTS
from swiftlet_train.recipe import Finetuning, Recipe
from swiftlet_train.run_recipe import RECIPES, load_recipe, run_recipe
from swiftlet_train.run_study import STUDIES
from swiftlet_train.study import read_study
from tests.support.articles_read import lineage, read_counts, readings
from tests.support.sentence_checkpoints import make_sentence_encoder
from tests.support.tiers import first
from tests.support.training import BODIES, SILENT, WORDS, answer_requests, teacher_package

SHIPPED = {path.stem: load_recipe(str(path)) for path in sorted(RECIPES.glob("*.toml"))}


@pytest.fixture(params=SHIPPED)
def shipped(request) -> Recipe:
    return SHIPPED[request.param]


# The evaluation files of ../shared/data.
EVALUATION_FILES = {
    "squad/squad-v1.1.eval.json",
    "squad/squad-v2.0.eval.json",
    "sst2/dev.tsv",
    "cola/in_domain_dev.tsv",
    "nsmc/test.tsv",
    "qa/fairytaleqa.test.json",
    "stsb/dev.csv",
    "labels/dbpedia14.test_5k.jsonl.gz",
    "labels/snips.test.jsonl.gz",
    "retrieval/wikiqa.dev.jsonl.gz",
    "ner/uner_ewt.dev.iob2.gz",
    "nli/mnli.dev_matched.jsonl.gz",
    "nli/snli.dev.jsonl.gz",
}
# Those of GLUE, which are the user's.
GLUE = {  # the columns of a file of each task, with the label last
    "MRPC": ("#1 String", "#2 String", "Quality"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "QNLI": ("question", "sentence", "label"),
    "RTE": ("sentence1", "sentence2", "label"),
    "WNLI": ("sentence1", "sentence2", "label"),
    "MNLI": ("sentence1", "sentence2", "gold_label"),
}
EVALUATION_FILES |= {f"glue/{name}/dev.tsv" for name in GLUE if name != "MNLI"}
EVALUATION_FILES |= {f"glue/MNLI/dev_{kind}.tsv" for kind in ("matched", "mismatched")}


def test_shipped_recipes_do_not_train_on_evaluation_data(shipped):
    files = set[str]()
    for recipe in lineage(shipped):
        read = (file for work in recipe.finetuning.values() for file in (*work.train, *work.unlabelled))
        files |= {*recipe.pretraining.corpora, *read}

    assert not files & EVALUATION_FILES
    held_out = re.compile(
        r"\.eval\.|dev\.tsv|test\.tsv|test\.json|(nli|ner|stsb|retrieval|ko)/.*dev|labels/.*(dev|test|valid)\b"
    )
    assert not set(filter(held_out.search, files)) - {"qa/qamr.test.json"}
    for work in shipped.finetuning.values():
        assert work.evaluate in EVALUATION_FILES or work.evaluate_skip > 0
        assert EVALUATION_FILES.issuperset(work.also_evaluate)


def test_shipped_recipes_name_the_licences_of_their_data(shipped):
    sources = {
        "corpora/enwiki": "Wikipedia",
        "corpora/kowiki": "Wikipedia",
        "corpora/imdb": "IMDb",
        "sst2": "SST-2",
        "cola": "CoLA",
        "squad": "SQuAD",
        "qa/qamr": "QAMR",
    }
    sources |= {"nli/snli": "SNLI", "nli/mnli": "MultiNLI", "nli/fever": "FEVER", "nli/conjnli": "ConjNLI"}
    sources |= {"nli/counterfactual_snli": "Counterfactual SNLI", "retrieval/wikiqa": "WikiQA"}
    sources |= {"ner/broad_twitter": "Broad Twitter Corpus", "ner/crossner": "CrossNER", "ner/wnut17": "WNUT 17"}
    sources |= {"ner/spacy_": "spaCy"}
    sources |= {
        "labels/dbpedia14": "DBpedia",
        "labels/clinc150": "CLINC150",
        "labels/hwu64": "HWU64",
        "labels/snips": "Snips",
    }
    sources |= {
        "labels/goemotions": "GoEmotions",
        "qa/fairytale": "Fairytale",
        "qa/covid": "COVID",
        "corpora/gutenberg": "Gutenberg",
        "nsmc": "NSMC",
    }
    sources |= {
        "glue/MRPC": "Paraphrase",
        "glue/QQP": "Quora",
        "glue/QNLI": "QNLI",
        "glue/RTE": "RTE",
        "glue/WNLI": "WNLI",
        "glue/MNLI": "MultiNLI",
    }
    for work in shipped.finetuning.values():
        for file in (*shipped.pretraining.corpora, *work.train, *work.unlabelled):
            (name,) = (name for start, name in sources.items() if file.startswith(start))
            assert any(name in licence for licence in work.licences), (file, work.licences)


def test_shipped_recipes_evaluate_on_unread_articles(shipped):
    articles_read = read_counts()
    for skipped, reading in readings(shipped):
        assert reading in articles_read, "count again: python -m tests.support.articles_read"
        assert articles_read[reading] <= skipped
        assert skipped > PRUNING_DOCUMENTS


def test_recipes_that_share_a_task_teacher_train_it_alike(tmp_path):
    """A teacher's directory refuses a recipe with other settings for the teacher. The test trains no teacher."""
    tokenizer = Tokenizer.load(BUNDLED / "albert-qa" / TOKENIZER)
    run = Run(tmp_path, torch.device("cpu"), SILENT, None, teachers=tmp_path)
    tasks = [(recipe, work) for recipe in SHIPPED.values() for work in recipe.finetuning.values()]
    trainings = [(recipe, training) for recipe, work in tasks for training in work.trainings()]
    shared = [(recipe, work) for recipe, work in trainings if work.distillation and work.distillation.task_teacher_run]
    for recipe, work in shared:
        TaskTeacher.prepare_other(recipe, work, tokenizer, [], run)

    assert 0 < len(list(tmp_path.iterdir())) < len(shared)


TEACHER = "tiny_teacher_of_the_recipes"

NARROW = {"embedding_size": 16, "hidden_size": 32, "intra_bottleneck_size": 16, "intermediate_size": 64}
NARROW |= {"num_attention_heads": 4, "num_hidden_layers": 1, "num_hidden_groups": 1, "num_feedforward_networks": 1}
NARROW |= {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 128}  # GPT-2's


MAKERS = [name for name, recipe in SHIPPED.items() if recipe.finetuning]


# A recipe without artifacts may make the teacher of a study.
STUDIED = [recipe for path in STUDIES.glob("*.toml") for recipe in read_study(path).variants.values()]


PLANS = [recipe.pretraining.knowledge_transfer for recipe in STUDIED]


TEACHERS = sorted({plan.teacher_recipe for plan in PLANS if plan is not None and plan.teacher_recipe})


def short(recipe: Recipe, out: Path) -> Recipe:
    """Returns a recipe with the same stages and objectives, but a tiny network, little data and few steps."""
    work, plan = recipe.pretraining, recipe.pretraining.knowledge_transfer
    config = dict(recipe.config) | {name: NARROW[name] for name in NARROW.keys() & recipe.config.keys()}
    if plan is not None and plan.teacher_model:
        plan = replace(plan, teacher_model=str(out / plan.teacher_model))
    return replace(
        recipe,
        config=config if "n_positions" in config else config | {"max_position_embeddings": 128},
        vocab_size=50 if recipe.teacher else 90,
        teacher=TEACHER if recipe.teacher else "",
        pretraining=replace(
            work,
            corpora=dict.fromkeys(work.corpora, 12),
            sequence_length=16 if work.input_format == "blocks" else 96,  # two sentences must fit
            batch_size=4,
            steps=min(work.steps, 3),
            held_out_sequences=min(work.held_out_sequences, 4),
            knowledge_transfer=plan,
        ),
        finetuning={name: _short(task, out) for name, task in recipe.finetuning.items()},
    )


def _short(work: Finetuning, out: Path) -> Finetuning:
    plan = work.distillation
    if plan is not None and plan.init_from_model:
        plan = replace(plan, init_from_model=str(out / plan.init_from_model))
    return replace(
        work,
        train=dict.fromkeys(work.train, 12),
        unlabelled=dict.fromkeys(work.unlabelled, 8),
        unanswerable_questions=min(work.unanswerable_questions, 4),
        epochs=1,
        batch_size=4,
        max_tokens=48,
        evaluate_skip=min(work.evaluate_skip, 20),
        evaluate_limit=4,
        distillation=plan
        and replace(
            plan,
            teacher_epochs=1,
            task_teacher=TEACHER if plan.task_teacher else "",
            task_teacher_batch_size=min(plan.task_teacher_batch_size, 4),
        ),
    )


def write_data(folder: Path) -> None:
    """Writes a small version of every file that a shipped recipe names."""
    chance = np.random.default_rng(0)

    def sentences(count: int) -> str:
        return " ".join(" ".join(chance.choice(WORDS, 9)) + "." for _ in range(count))

    def labels(count: int = 16) -> list[tuple[int, str]]:
        return [(number % 2, sentences(1)) for number in range(count)]

    def asked() -> str:
        contexts = [sentences(2) for _ in range(8)]
        answers = [context.split()[3] for context in contexts]
        entries = [
            {"text": answer, "answer_start": context.index(answer)}
            for answer, context in zip(answers, contexts, strict=True)
        ]
        paragraphs = [
            {"context": context, "qas": [{"id": str(i), "question": "the mill", "answers": [entry]}]}
            for i, (context, entry) in enumerate(zip(contexts, entries, strict=True))
        ]
        return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})

    def rows(name: str) -> list[dict[str, Any]]:
        if name.startswith("nli/"):
            pairs = [(sentences(1), sentences(1), label) for label in ("entailment", "neutral") for _ in range(8)]
            return [{"premise": one, "hypothesis": other, "label": label} for one, other, label in pairs]
        if name.startswith("labels/"):
            return [{"text": text, "label": WORDS[label]} for label, text in labels()]
        return [{"query": f"the {WORDS[i % 4]}", "text": sentences(1), "label": i % 2} for i in range(16)]

    glue_labels = {name.partition("-")[2]: work.labels for name, work in SHIPPED["albert-glue"].finetuning.items()}
    works = [work for recipe in SHIPPED.values() for work in recipe.finetuning.values()]
    named = {file for recipe in SHIPPED.values() for file in recipe.pretraining.corpora}
    named |= {file for work in works for file in (*work.train, *work.unlabelled, work.evaluate, *work.also_evaluate)}
    for name in sorted(named):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            path.write_text(asked(), "utf-8")
        elif ".jsonl" in name:
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows(name)).encode()))
        elif name.startswith("ner/"):
            words = [("1\t" if ".iob2" in name else "") + f"{word}\tB-PER\n" for word in sentences(1).split()]
            path.write_bytes(gzip.compress("\n".join("".join(words) for _ in range(12)).encode()))
        elif name.endswith(".csv"):
            path.write_text("".join(f"{sentences(1)},{sentences(1)},{number % 5}\n" for number in range(8)), "utf-8")
        elif name.startswith("glue/"):
            header, choices = GLUE[path.parent.name], glue_labels[path.parent.name.lower()]
            pairs = ((sentences(1), sentences(1), choices[label % len(choices)]) for label, _ in labels())
            path.write_text("".join("\t".join(row) + "\n" for row in (header, *pairs)), "utf-8")
        elif name.startswith("cola/"):
            path.write_text("".join(f"x\t{label}\t\t{text}\n" for label, text in labels()), "utf-8")
        elif name.endswith(".tsv"):
            path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in labels()), "utf-8")
        elif name.endswith(".tar.xz"):
            content = "".join(f"{label}\t{sentences(6)}\n" for label, _ in labels()).encode()
            with tarfile.open(path, "w:xz") as archive:
                member = tarfile.TarInfo("reviews/train.tsv")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        else:
            articles = [f"= {number} =\n{sentences(8)}" for number in range(30)]
            path.write_bytes(lzma.compress("\n".join(articles).encode()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Iterator[Callable[[str], list[Artifact]]]:
    """Returns the artifacts of a recipe, which trains after those that it builds on.

    The loss of int8 on so little data is random, and therefore not limited.
    """
    folder = tmp_path_factory.mktemp("recipes")
    write_data(folder / "data")
    teacher_package(folder / "packages", TEACHER)
    make_sentence_encoder(folder / "packages" / TEACHER / "model", "mean")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder / "packages"), *sys.path])
        patch.setattr(recipe_module, "load_recipe", lambda name: short(SHIPPED[name], folder / "out"))
        patch.setattr(recipe_module, "release", partial(release, max_loss=100))
        places = folder / "data", folder / "runs", folder / "out"

        @cache
        def train(name: str) -> list[Artifact]:
            for other in lineage(SHIPPED[name])[1:]:
                if other.finetuning:
                    train(other.name)
            return run_recipe(name, (), *places, lambda text: None)

        yield train


@pytest.mark.parametrize("name", first(MAKERS, "gpt", "mobilebert-meaning"))
def test_shipped_recipes_make_artifacts_that_can_be_served(trained, name):
    artifacts = trained(name)

    assert [artifact.manifest.name for artifact in artifacts] == list(SHIPPED[name].finetuning)
    answers = answer_requests(artifacts, BODIES)
    for artifact in artifacts:
        answer = answers[artifact.manifest.name]
        match artifact.manifest.task:
            case "classify":
                assert {one["label"] for one in answer[0]} == set(artifact.manifest.labels)
            case "zero-shot":
                assert {one["label"] for one in answer} == {"rain", "snow"}
            case "rerank":
                assert sorted(one["index"] for one in answer) == [0, 1]
            case "entities":
                assert {one["entity_group"] for one in answer} <= {"PER", "ORG", "LOC"}
            case _:
                assert answer


@pytest.mark.exhaustive
def test_shipped_recipes_are_all_used(trained):
    for name in TEACHERS:
        trained(name)
    (runs,) = {artifact.path.parent.parent / "runs" for name in MAKERS for artifact in trained(name)}

    assert {path.name for path in runs.iterdir()} - {recipe_module.TEACHERS} == SHIPPED.keys()
    shared = {path.name for path in (runs / recipe_module.TEACHERS).iterdir()}
    distillations = [work.distillation for recipe in SHIPPED.values() for work in recipe.finetuning.values()]
    assert shared == {plan.task_teacher_run for plan in distillations if plan is not None} - {""}
