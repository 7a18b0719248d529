"""Tests of the bundled models: architectures, tasks, sizes, cards, scores and answers."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import asdict
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from swiftlet_models.artifact import WEIGHTS, Artifact, find_artifacts, open_artifact
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve.inference.loading import BUNDLED, LoadedModel, load_model
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.offline.draft import golden_encodings
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import Batch
from swiftlet_train.run_recipe import load_recipe
from tests.support.checkpoints import relative_error
from tests.support.paths import ROOT
from tests.support.tiers import first_of_each

PATHS = list(find_artifacts(BUNDLED))
NAMES = [path.name for path in PATHS]
TASKS = {
    "classify": ("sst2", "cola", "nsmc"),
    "qa": ("qa",),
    "fill-mask": ("fill-mask",),
    "embed": ("embed",),
    "entities": ("entities",),
}
OF_BOTH = ("classify", "qa", "fill-mask")  # tasks that have a model of both architectures
MAX_BYTES = 70_000_000
MAX_BYTES_EACH = 10_000_000
# The minimum score of each bundled model in int8.
MIN_SCORES = {
    "sst2": ("accuracy", 91),
    "qa": ("f1", 76),
    "albert-fill-mask": ("top_1", 38),
    "mobilebert-fill-mask": ("top_1", 38),
    "cola": ("matthews", 35),
    "nsmc": ("accuracy", 88.5),
    "embed": ("spearman", 80),
    "entities": ("f1", 62),
}
BATCH_TOLERANCE = 1e-5  # relative error between a row in a batch and the row alone; measured: 0

pytestmark = pytest.mark.skipif(not PATHS, reason="models/swiftlet_models/bundled is empty")
each = pytest.mark.parametrize("name", NAMES)


def of_task(task: str) -> list[str]:
    """Returns the names of the models of a task."""
    return [name for name in NAMES if name.endswith(TASKS[task][0])]


@cache
def model(name: str, engine: str = "onnx_cpu") -> LoadedModel:
    return load_model(BUNDLED / name, engine)


def artifact(name: str) -> Artifact:
    return open_artifact(BUNDLED / name)


@each
def test_model_names_its_language(name):
    assert artifact(name).manifest.languages == (("ko",) if name == "albert-nsmc" else ("en",))


async def _ask(name: str, bodies: list[dict], task: str) -> list:
    runtime = LocalRuntime.of(Settings(), [load_model(BUNDLED / name, "onnx_cpu")])
    pipeline = runtime.pipelines[name].for_task(task)
    try:
        requests = [pipeline.model.task.Request.model_validate(body) for body in bodies]
        return list(await asyncio.gather(*(pipeline.answer(request, time.monotonic() + 60) for request in requests)))
    finally:
        await runtime.close()


def ask(name: str, *bodies: dict, task: str | None = None) -> list:
    """Returns the answers to requests of one task that are sent at the same time."""
    return asyncio.run(_ask(name, list(bodies), task or artifact(name).manifest.task))


def test_bundled_models_cover_both_architectures_and_all_tasks():
    every = {f"{architecture}-{TASKS[task][0]}" for architecture in ("albert", "mobilebert") for task in OF_BOTH}
    assert {*NAMES} == every | {"albert-cola", "albert-entities", "albert-nsmc", "mobilebert-embed"}
    for name in NAMES:
        manifest = artifact(name).manifest
        assert manifest.name == name
        assert name in {f"{manifest.architecture}-{kind}" for kind in TASKS[manifest.task]}
        assert manifest.precision == "int8"


def test_bundled_models_are_small_together():
    """The models are part of the repository, and so of every clone."""
    assert sum(file.stat().st_size for path in PATHS for file in path.rglob("*")) < MAX_BYTES
    assert sorted(entry.name for entry in BUNDLED.iterdir() if entry.name != "README.md") == NAMES


@each
def test_bundled_model_is_small_and_has_widths_that_fill_the_kernels_blocks(name):
    manifest = artifact(name).manifest

    assert sum(file.stat().st_size for file in (BUNDLED / name).iterdir()) <= MAX_BYTES_EACH
    widths = [size for key, size in manifest.config.items() if key.endswith("_size") and key != "vocab_size"]
    assert len(widths) >= 3
    assert all(width % 64 == 0 for width in widths)


def select(settings: Any, recorded: Any) -> Any:
    """Returns the settings that are recorded, recursively."""
    if not (isinstance(settings, dict) and isinstance(recorded, dict)):
        return settings
    return {name: select(settings.get(name), value) for name, value in recorded.items()}


@each
def test_card_matches_its_recipe(name):
    """An older card lacks the fields that were added later."""
    manifest, card = artifact(name).manifest, artifact(name).card()
    recipe = load_recipe(manifest.source["recipe"])
    work = recipe.finetuning[name]

    assert (manifest.version, card["summary"]) == (recipe.version, recipe.summary)
    assert manifest.config == {**recipe.config, "vocab_size": manifest.vocab_size}
    for table, settings in (("pretraining", recipe.pretraining), ("finetuning", work)):
        assert card[table] == select(json.loads(json.dumps(asdict(settings))), card[table])
    works = [work, recipe.finetuning[work.init_from]] if work.init_from else [work]
    files = {file for one in works for file in (*one.train, *one.unlabelled)}
    assert card["trained_on"] == sorted({*recipe.pretraining.corpora, *files})
    assert set(card["licences"]) == set(work.licences)


@pytest.mark.parametrize(
    ("name", "engine"),
    first_of_each(product(NAMES, ["onnx_cpu", "torch"]), lambda case: (case[0].partition("-")[0], case[1])),
)
def test_engine_reproduces_golden_answers(name, engine):
    found = model(name, engine)

    assert found.deviation is not None
    assert found.deviation <= found.manifest.tolerance or torch.cuda.is_available()


@each
def test_card_has_sources_scores_and_latency(name):
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
    assert card["bytes"] == (BUNDLED / name / WEIGHTS).stat().st_size


@each
def test_card_has_calibration_and_known_failures(name):
    card = artifact(name).card()

    assert card["weaknesses"]
    assert all(one["answer"] != one["right"] for one in card["weaknesses"])
    if artifact(name).manifest.task != "entities":  # the command does not calibrate their probabilities
        assert 0 < card["calibration"]["calibrated_error"] < card["calibration"]["raw_error"] < 1


@each
def test_bundled_model_beats_the_trivial_baseline(name):
    scores = artifact(name).card()["scores"]
    if name.endswith("cola"):  # one label is much more frequent, so that accuracy says little
        assert scores["int8"]["matthews"]["low"] > 0
        return
    trivial = max(scores["trivial"].values(), key=lambda score: score["high"])
    reached = next(iter(scores["int8"].values()))

    assert reached["low"] > trivial["high"] + 3


@each
def test_bundled_model_reaches_its_minimum_score(name):
    scores = artifact(name).card()["scores"]["int8"]
    ((metric, minimum),) = [one for kind, one in MIN_SCORES.items() if name.endswith(kind)]

    assert scores[metric]["value"] >= minimum


@pytest.mark.parametrize("name", of_task("qa"))
def test_qa_beats_the_trivial_baselines_on_unanswerable_questions(name):
    told = artifact(name).card()["also"]["squad-v2.0.eval.json"]

    assert len(told["trivial"]) == 2
    assert told["scores"]["f1"]["low"] > max(score["value"] for score in told["trivial"].values())
    assert told.get("native", told["scores"])["f1"]["value"] >= 64  # the card of albert-qa has ONNX Runtime's only


@each
def test_bundled_model_names_no_local_paths(name):
    for file in (BUNDLED / name).iterdir():
        content = file.read_bytes()
        here = str(ROOT).encode()
        assert not any(trace in content for trace in (here, b"/home/", b"/root/", b"/Users/", b"site-packages"))


@each
def test_bundled_model_stores_matrices_once_in_int8(name):
    tensors = load_file(artifact(name).weights)
    large = [name for name, tensor in tensors.items() if tensor.ndim == 2 and tensor.dtype == np.float32]

    assert not [name for name in large if len(tensors[name]) >= 16 and not name.endswith(".scale")]


@pytest.mark.parametrize("name", of_task("classify"))
def test_classify_tells_praise_from_complaint(name):
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
def test_qa_answer_is_a_slice_of_its_context(name, context):
    (answers,) = ask(
        name, {"inputs": {"question": "Who built the bridge?", "context": context}, "parameters": {"top_k": 5}}
    )

    assert answers
    for answer in answers:
        assert context[answer["start"] : answer["end"]] == answer["answer"] != ""


@pytest.mark.parametrize("name", of_task("qa"))
def test_qa_finds_a_person_and_a_year(name):
    context = "The old bridge was built by Marta Keller in 1874, after the great flood had taken the wooden one."
    asked = [
        {"inputs": {"question": text, "context": context}} for text in ("Who built the bridge?", "When was it built?")
    ]
    who, when = ask(name, *asked)

    assert "Keller" in who["answer"]
    assert "1874" in when["answer"]


@pytest.mark.parametrize("name", of_task("fill-mask"))
def test_fill_mask_finds_fitting_words(name):
    text = "He was born in the united [MASK] of America in 1950."
    many = "The capital [MASK] France is [MASK]."
    one, two = ask(name, {"inputs": text, "parameters": {"top_k": 10}}, {"inputs": many})

    assert "states" in [candidate["token_str"] for candidate in one]
    assert len(two) == 2
    assert two[0][0]["token_str"] in {"of", "in", ",", "and", "for", "is", "to"}


def test_entities_finds_names_of_each_kind():
    text = "Clara Keller moved from Bern to New York to work for the United Nations."
    found, nothing = ask("albert-entities", {"inputs": text}, {"inputs": "nothing to see here"})

    assert [(one["entity_group"], text[one["start"] : one["end"]].strip()) for one in found] == [
        ("PER", "Clara Keller"),
        ("LOC", "Bern"),
        ("LOC", "New York"),
        ("ORG", "United Nations"),
    ]
    assert nothing == []


@each
def test_bundled_model_answers_a_row_in_a_batch_as_alone(name):
    found = model(name)
    encodings = golden_encodings(Tokenizer.load(found.artifact.file("tokenizer.json")), found.manifest)
    together = found.engine.run(Batch.of(encodings))
    alone = [found.engine.run(Batch.of([one]))[0] for one in encodings]

    assert len({len(one.input_ids) for one in encodings}) > 1
    for one, other in zip(together, alone, strict=True):
        axis = 0 if found.manifest.task == "qa" else 1  # the best token of a span, or the best label or word
        assert np.array_equal(one.argmax(axis), other.argmax(axis))
        assert relative_error(torch.from_numpy(one), torch.from_numpy(other)) <= BATCH_TOLERANCE


@pytest.mark.parametrize("name", of_task("embed"))
def test_embed_puts_texts_of_one_meaning_close_together(name):
    texts = ["How do I reset my password?", "I forgot my login.", "It is sunny.", "The weather is nice today."]
    (vectors,) = ask(name, {"inputs": texts})
    cosines = np.array(vectors) @ np.array(vectors).T

    assert np.allclose(np.diag(cosines), 1)
    assert min(cosines[0, 1], cosines[2, 3]) > cosines[:2, 2:].max() + 0.05


@pytest.mark.parametrize(
    ("text", "labels", "best"),
    [
        ("The new phone has a better camera and a larger screen.", ["technology", "cooking", "politics"], "technology"),
        ("Chop the onions and fry them in butter.", ["sports", "cooking", "the weather"], "cooking"),
        ("I was charged twice for my order.", ["billing", "delivery", "praise", "spam"], "billing"),
        ("It will rain until the evening.", ["the weather", "music", "travel"], "the weather"),
    ],
)
def test_zero_shot_chooses_the_fitting_label(text, labels, best):
    body = {"inputs": text, "parameters": {"candidate_labels": labels}}
    (found,) = ask("mobilebert-embed", body, task="zero-shot")

    assert found[0]["label"] == best
    assert sum(one["score"] for one in found) == pytest.approx(1)


@pytest.mark.parametrize("file", ["dbpedia14.test_5k.jsonl.gz", "snips.test.jsonl.gz"])
def test_embedding_model_chooses_among_labels_that_it_never_saw(file):
    told = artifact("mobilebert-embed").card()["also"][f"{file}, zero-shot"]

    assert told["scores"]["accuracy"]["low"] > 70


def test_embedding_model_ranks_better_than_bm25():
    told = artifact("mobilebert-embed").card()["also"]["wikiqa.dev.jsonl.gz, rerank"]

    assert told["scores"]["mrr_10"]["value"] > told["trivial"]["BM25"]["value"] + 10


def test_embedding_model_is_calibrated_on_labels_that_it_never_saw():
    assert artifact("mobilebert-embed").card()["calibration"]["calibrated_error"] <= 0.05


def test_embedding_model_ranks_the_text_that_answers_first():
    texts = ["The harbour was closed in 1912.", "Bees dance to tell the others where flowers are.", "Rain is wet."]
    body = {"inputs": {"query": "How do bees tell the way?", "texts": texts}}
    (found,) = ask("mobilebert-embed", body, task="rerank")

    assert found[0]["index"] == 1


def test_bundled_folder_is_that_of_the_package():
    assert ROOT / "models/swiftlet_models/bundled" == BUNDLED
