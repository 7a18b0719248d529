"""The shipped recipes, each followed in a short version of itself: from corpora to answers that are served."""

from __future__ import annotations

import asyncio
import io
import json
import lzma
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from swiftlet_serve.models.artifact import Artifact
from swiftlet_serve.models.training.recipe import Finetuning, Recipe, read_recipe
from swiftlet_serve.models.training.study import read_study
from swiftlet_serve.service.offline import train as trains
from swiftlet_serve.service.offline.release import release
from swiftlet_serve.service.offline.study import STUDIES
from swiftlet_serve.service.offline.train import RECIPES, follow
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from tests.models.training.test_training import WORDS, teacher_package

TEACHER = "tiny_teacher_of_the_recipes"
NARROW = {"embedding_size": 16, "hidden_size": 32, "intra_bottleneck_size": 16, "intermediate_size": 64}
NARROW |= {"num_attention_heads": 4, "num_hidden_layers": 2, "num_hidden_groups": 2}
SHIPPED = {path.stem: read_recipe(path) for path in sorted(RECIPES.glob("*.toml"))}
# A model guides that another of them makes: those come last.
MAKERS = sorted(
    (name for name, recipe in SHIPPED.items() if recipe.finetuning),
    key=lambda name: SHIPPED[name].pretraining.transfer is not None,
)
# A recipe that makes no artifact may still make who teaches in a study.
STUDIED = [recipe for path in STUDIES.glob("*.toml") for recipe in read_study(path).variants.values()]
PLANS = [recipe.pretraining.transfer for recipe in STUDIED]
GUIDES = sorted({plan.recipe for plan in PLANS if plan is not None and plan.recipe})
BODIES = {
    "classify": {"inputs": "the rain falls on the old mill"},
    "qa": {"inputs": {"question": "the mill", "context": "snow lies over the quiet town"}},
    "fill-mask": {"inputs": "the [MASK] falls on the old mill"},
}


def short(recipe: Recipe, out: Path) -> Recipe:
    """The same stages and choices, in a network, of data and for a time that are hardly anything."""
    work, plan = recipe.pretraining, recipe.pretraining.transfer
    config = dict(recipe.config) | {name: NARROW[name] for name in NARROW.keys() & recipe.config.keys()}
    if plan is not None and plan.model:
        plan = replace(plan, model=str(out / plan.model))
    return replace(
        recipe,
        config=config | {"max_position_embeddings": 128},
        vocabulary=50 if recipe.teacher else 90,
        teacher=TEACHER if recipe.teacher else "",
        pretraining=replace(
            work,
            corpora=dict.fromkeys(work.corpora, 12),
            row_tokens=16,
            batch_rows=4,
            steps=min(work.steps, 3),
            held_out=min(work.held_out, 4),
            transfer=plan,
        ),
        finetuning={name: _short(task) for name, task in recipe.finetuning.items()},
    )


def _short(work: Finetuning) -> Finetuning:
    return replace(
        work,
        train=dict.fromkeys(work.train, 12),
        unlabelled=dict.fromkeys(work.unlabelled, 8),
        elsewhere=min(work.elsewhere, 4),
        epochs=1,
        batch_rows=4,
        max_tokens=48,
        skip=min(work.skip, 20),
        limit=4,
        distillation=work.distillation and replace(work.distillation, epochs=1),
    )


def write_data(folder: Path) -> None:
    """A little of every file that a shipped recipe names."""
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

    works = [work for recipe in SHIPPED.values() for work in recipe.finetuning.values()]
    named = {file for recipe in SHIPPED.values() for file in recipe.pretraining.corpora}
    named |= {file for work in works for file in (*work.train, *work.unlabelled, work.evaluate, *work.also)}
    for name in sorted(named):  # what stands in a file does not depend on chance
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            path.write_text(asked(), "utf-8")
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
def made(tmp_path_factory) -> Iterator[dict[str, list[Artifact]]]:
    """What each recipe makes. What int8 loses on so little data is a matter of luck."""
    folder = tmp_path_factory.mktemp("recipes")
    write_data(folder / "data")
    teacher_package(folder / "packages", TEACHER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder / "packages"), *sys.path])
        patch.setattr(trains, "_recipe", lambda name: short(SHIPPED[name], folder / "out"))
        patch.setattr(trains, "release", partial(release, max_loss=100))
        places = folder / "data", folder / "runs", folder / "out"
        for name in GUIDES:
            follow(name, (), *places, lambda text: None)
        yield {name: follow(name, (), *places, lambda text: None) for name in MAKERS}


@pytest.mark.parametrize("name", MAKERS)
def test_a_short_version_of_a_shipped_recipe_ends_in_answers_that_are_served(made, name):
    artifacts = made[name]

    async def ask() -> list[object]:
        runtime = Runtime.load(Settings(models=tuple(str(artifact.path) for artifact in artifacts)))
        try:
            pipelines = [runtime.pipelines[artifact.manifest.name] for artifact in artifacts]
            requests = [
                pipeline.model.task.Request.model_validate(BODIES[pipeline.model.manifest.task])
                for pipeline in pipelines
            ]
            return [
                await pipeline.answer(request, time.monotonic() + 60)
                for pipeline, request in zip(pipelines, requests, strict=True)
            ]
        finally:
            await runtime.close()

    assert [artifact.manifest.name for artifact in artifacts] == list(SHIPPED[name].finetuning)
    answers = asyncio.run(ask())
    for artifact, answer in zip(artifacts, answers, strict=True):
        labels = artifact.manifest.labels
        assert {one["label"] for one in answer[0]} == set(labels) if labels else answer


def test_every_recipe_is_followed_for_an_artifact_or_a_study_or_on_the_way_there(made):
    (runs,) = {artifact.path.parent.parent / "runs" for artifacts in made.values() for artifact in artifacts}

    assert {path.name for path in runs.iterdir()} == SHIPPED.keys()
