"""The runtime orders the models and chooses the default of each task."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from swiftlet_models.artifact import CARD
from swiftlet_serve.engines.echo import Echo
from swiftlet_serve.errors import NotFound, SetupError
from swiftlet_serve.http.app import create_app
from swiftlet_serve.inference import loading
from swiftlet_serve.inference import runtime as runtime_module
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from tests.support.apps import TASKS
from tests.support.artifacts import make_artifact, reseal


def test_runtime_orders_bundled_models_by_score(tmp_path, monkeypatch):
    for name, accuracy in (("a", 70.0), ("b", 90.0), ("c", None)):
        artifact = make_artifact(tmp_path, "classify", name)
        scores = {} if accuracy is None else {"scores": {"fp32": {"accuracy": {"value": accuracy, "n": 10}}}}
        artifact.file(CARD).write_text(json.dumps(scores), "utf-8")
        reseal(artifact)
    monkeypatch.setattr(loading, "BUNDLED", tmp_path)

    assert list(LocalRuntime.load(Settings(cores=1)).pipelines) == ["b", "a", "c"]
    assert list(LocalRuntime.load(Settings(cores=1, models=("a", "b"))).pipelines) == ["a", "b"]


def test_runtime_uses_the_first_model_of_a_task_as_default(artifact_dir, tmp_path):
    other = make_artifact(tmp_path, "classify", name="other").path
    settings = Settings(
        models=(str(other), str(artifact_dir / "tiny-classify"), str(artifact_dir / "tiny-qa")), cores=1
    )
    runtime = LocalRuntime.load(settings)

    assert list(runtime.pipelines) == ["other", "tiny-classify", "tiny-qa"]
    assert list(runtime.tasks) == ["classify", "qa"]
    assert runtime.catalog.pipeline("classify", None) is runtime.pipelines["other"]
    assert runtime.catalog.pipeline("classify", "tiny-classify") is runtime.pipelines["tiny-classify"]
    for name in ("tiny-qa", "unheard-of"):
        with pytest.raises(NotFound):
            runtime.catalog.pipeline("classify", name)


def test_runtime_rejects_two_models_with_the_same_name(artifact_dir):
    path = str(artifact_dir / "tiny-qa")

    with pytest.raises(SetupError, match="have the name 'tiny-qa'"):
        LocalRuntime.load(Settings(models=(path, path), cores=1))


def test_runtime_logs_the_engine_of_each_model_and_reports_the_current_one(artifact_dir, caplog, monkeypatch):
    caplog.set_level("INFO", runtime_module.__name__)
    settings = Settings(models=tuple(str(artifact_dir / f"tiny-{task}") for task in TASKS), engine="echo", cores=1)
    runtime = LocalRuntime.load(settings)
    monkeypatch.setattr(Echo, "kernel_faults", 0, raising=False)
    with TestClient(create_app(runtime)) as client:
        before = client.get("/metrics").text
        monkeypatch.setattr(Echo, "title", "echo (slower)")
        monkeypatch.setattr(Echo, "kernel_faults", 2)
        titles = {model["runtime"] for model in client.get("/models").json()}
        after = client.get("/metrics").text

    own = [record.message for record in caplog.records if record.name == runtime_module.__name__]
    assert own == [f"model tiny-{task} 1 ({task}) runs on echo" for task in TASKS]
    assert titles == {"echo (slower)"}
    assert "swiftlet_kernel_wrong_sums_total 0.0" in before
    assert "swiftlet_kernel_wrong_sums_total 2.0" in after
