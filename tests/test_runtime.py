"""What is served was verified and proved first; a pipeline answers a request whole, in time, or not at all."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftlet_serve.models.artifact import CARD, GOLDEN, TOKENIZER, Artifact, ArtifactError, seal
from swiftlet_serve.service import loading
from swiftlet_serve.service.errors import DeadlineExceeded, Internal, NotFound, SetupError, Unprocessable
from swiftlet_serve.service.loading import load_model, locate
from swiftlet_serve.service.pipeline import Pipeline
from swiftlet_serve.service.runtime import Runtime
from swiftlet_serve.service.scheduling.dispatcher import Dispatcher
from swiftlet_serve.service.settings import Settings
from swiftlet_serve.service.tasks.classify import ClassifyRequest
from swiftlet_serve.service.tasks.qa import QaRequest
from swiftlet_serve.service.telemetry import request_record
from swiftlet_serve.service.telemetry.request_record import RequestRecord
from swiftlet_serve.service.telemetry.request_stats import RequestStats
from tests.support.artifacts import make_artifact
from tests.support.fakes import PATIENCE_S, ManualExecutor, Scheduler


def reseal(artifact: Artifact, **changes) -> Path:
    """Seals a directory that was changed, as if it had been made so."""
    return seal(artifact.path, replace(artifact.manifest, **changes)).path


def soon() -> float:
    return time.monotonic() + PATIENCE_S


# Loading


def test_a_model_is_loaded_and_its_golden_answers_replayed(artifact_dir):
    model = load_model(artifact_dir / "tiny-classify", "onnx_cpu")

    assert model.deviation == 0.0
    assert model.manifest.name == "tiny-classify"


def test_the_echo_engine_replays_nothing(artifact_dir):
    assert load_model(artifact_dir / "tiny-classify", "echo").deviation is None


def test_a_network_that_answers_otherwise_is_refused(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    arrays = dict(np.load(artifact.file(GOLDEN)))
    arrays["rows"][1, 1] += 0.5
    np.savez(artifact.file(GOLDEN), **arrays)
    path = reseal(artifact)

    with pytest.raises(ArtifactError, match=r"differ from the golden answers by 0\.5\. The tolerance is 1e-05"):
        load_model(path, "onnx_cpu")


@pytest.mark.parametrize(
    "fault", ["not a zip", "a missing array", "an array too many", "no answers", "pickled", "foreign ids"]
)
def test_golden_answers_that_are_none_are_refused(fault, tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    arrays = dict(np.load(artifact.file(GOLDEN)))
    if fault == "a missing array":
        del arrays["columns"]
    elif fault == "an array too many":
        arrays["more"] = np.zeros(1)
    elif fault == "no answers":
        arrays |= {"offsets": np.array([0]), "focus_offsets": np.array([0])}
    elif fault == "foreign ids":
        arrays["input_ids"] += 10_000
    elif fault == "pickled":
        arrays["rows"] = np.array([{"a": 1}], object)
    np.savez(artifact.file(GOLDEN), **arrays)
    if fault == "not a zip":
        artifact.file(GOLDEN).write_bytes(b"no")
    path = reseal(artifact)

    with pytest.raises(ArtifactError, match=r"golden\.npz"):
        load_model(path, "onnx_cpu")


def test_the_tokenizer_of_another_model_is_refused(tmp_path):
    path = reseal(make_artifact(tmp_path, "classify"), vocab_size=10)

    with pytest.raises(ArtifactError, match="belongs to another"):
        load_model(path, "onnx_cpu")


def test_a_broken_tokenizer_is_refused_by_name(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    artifact.file(TOKENIZER).write_text("{}")
    path = reseal(artifact)

    with pytest.raises(ArtifactError, match=r"tiny-classify: tokenizer\.json cannot be read as a tokenizer"):
        load_model(path, "onnx_cpu")


def test_an_engine_that_is_not_there_is_refused_with_those_that_are(artifact_dir):
    with pytest.raises(SetupError, match="no 'abacus' in engines: choose one of echo, native, onnx_cpu"):
        load_model(artifact_dir / "tiny-classify", "abacus")


def test_models_with_the_same_tokenizer_share_it(artifact_dir):
    tokenizers = {}
    first, second = (load_model(artifact_dir / f"tiny-{task}", "echo", tokenizers) for task in ("classify", "qa"))

    assert first.task.tokenizer is second.task.tokenizer
    assert len(tokenizers) == 1


# Which models


def test_of_the_embedded_models_the_better_answers_first(tmp_path, monkeypatch):
    for name, accuracy in (("a", 70.0), ("b", 90.0), ("c", None)):
        artifact = make_artifact(tmp_path, "classify", name)
        scores = {} if accuracy is None else {"scores": {"fp32": {"accuracy": {"value": accuracy, "n": 10}}}}
        artifact.file(CARD).write_text(json.dumps(scores), "utf-8")
        reseal(artifact)
    monkeypatch.setattr(loading, "BUNDLED", tmp_path)

    assert list(Runtime.load(Settings(cores=1)).pipelines) == ["b", "a", "c"]
    assert list(Runtime.load(Settings(cores=1, models=("a", "b"))).pipelines) == ["a", "b"]


def test_models_are_embedded_names_or_directories_and_by_default_all_embedded(artifact_dir, tmp_path, monkeypatch):
    shutil.copytree(artifact_dir / "tiny-qa", tmp_path / "tiny-qa")
    monkeypatch.setattr(loading, "BUNDLED", artifact_dir)

    assert locate([]) == sorted(artifact_dir.iterdir())
    assert locate(["tiny-qa", str(tmp_path / "tiny-qa")]) == [artifact_dir / "tiny-qa", tmp_path / "tiny-qa"]
    with pytest.raises(SetupError, match=r"no model 'huge': it is no directory, and the embedded ones are: tiny-"):
        locate(["huge"])


def test_nothing_to_serve_is_said_plainly(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "BUNDLED", tmp_path)

    with pytest.raises(SetupError, match="no model to serve"):
        locate([])


def test_the_first_model_of_a_task_is_its_default(artifact_dir, tmp_path):
    other = make_artifact(tmp_path, "classify", name="other").path
    settings = Settings(
        models=(str(other), str(artifact_dir / "tiny-classify"), str(artifact_dir / "tiny-qa")), cores=1
    )
    runtime = Runtime.load(settings)

    assert list(runtime.pipelines) == ["other", "tiny-classify", "tiny-qa"]
    assert list(runtime.tasks) == ["classify", "qa"]
    assert runtime.pipeline("classify", None) is runtime.pipelines["other"]
    assert runtime.pipeline("classify", "tiny-classify") is runtime.pipelines["tiny-classify"]
    for name in ("tiny-qa", "unheard-of"):
        with pytest.raises(NotFound):
            runtime.pipeline("classify", name)


def test_two_models_of_one_name_are_refused(artifact_dir):
    path = str(artifact_dir / "tiny-qa")

    with pytest.raises(SetupError, match="have the name 'tiny-qa'"):
        Runtime.load(Settings(models=(path, path), cores=1))


# A pipeline


def pipeline(artifact_dir: Path, task: str, submit, max_tokens: int = 1000) -> Pipeline:
    """A pipeline whose encodings are answered one by one by `submit(encoding, deadline)`."""

    def submit_all(encodings, deadline, priority):
        return [submit(encoding, deadline) for encoding in encodings]

    model = load_model(artifact_dir / f"tiny-{task}", "echo")
    scheduler = Scheduler(Dispatcher(ManualExecutor(1)), model.manifest.name)
    stats = RequestStats({model.manifest.name: task})
    return Pipeline(model, scheduler.admission, submit_all, stats, ThreadPoolExecutor(1), max_tokens)


def test_an_answer_has_the_time_of_every_stage(artifact_dir):
    async def scenario():
        runtime = Runtime.load(Settings(models=(str(artifact_dir / "tiny-classify"),), cores=1))
        pipeline, body = runtime.pipelines["tiny-classify"], ClassifyRequest(inputs="hello")
        with request_record.recording(RequestRecord(model="tiny-classify")) as record:
            answer = await pipeline.answer(body, soon(), record=record)
        await runtime.close()

        assert {one["label"] for one in answer[0]} == {"bad", "good", "neither"}
        assert list(record.stages) == ["encode", "queue", "batch", "infer", "decode"]
        assert (record.accepted, record.sequences, record.tokens) == (True, 1, 7)
        assert next(iter(runtime.stats.copy().models.values())).accepted == 1
        assert runtime.draining

    asyncio.run(scenario())


def test_where_one_window_fails_nobody_works_on_the_others(artifact_dir):
    async def scenario():
        calls, given_up = [], []

        async def submit(encoding, deadline):
            calls.append(encoding)
            if len(calls) == 3:
                raise Internal("internal", "It failed.")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                given_up.append(encoding)
                raise

        context = "one two three four five six seven eight nine ten " * 4
        with pytest.raises(Internal):
            await pipeline(artifact_dir, "qa", submit).answer(
                QaRequest.model_validate({"inputs": {"question": "which?", "context": context}}), soon()
            )
        await asyncio.sleep(0)

        assert len(given_up) == len(calls) - 1 > 2

    asyncio.run(scenario())


def test_a_request_is_answered_at_its_deadline_whatever_holds_it_up(artifact_dir):
    async def scenario():
        async def submit(encoding, deadline):
            await asyncio.Event().wait()

        with pytest.raises(DeadlineExceeded):
            await pipeline(artifact_dir, "classify", submit).answer(
                ClassifyRequest(inputs="hello"), time.monotonic() + 0.02
            )

    asyncio.run(scenario())


def test_a_request_that_could_never_be_admitted_is_not_told_to_come_again(artifact_dir):
    async def scenario():
        async def submit(encoding, deadline):
            raise AssertionError("nothing may be submitted")

        with pytest.raises(Unprocessable) as refusal:
            await pipeline(artifact_dir, "classify", submit, max_tokens=4).answer(
                ClassifyRequest(inputs="hello"), soon()
            )

        assert refusal.value.code == "input_too_long"
        assert refusal.value.field_errors[0].limit == 4

    asyncio.run(scenario())
