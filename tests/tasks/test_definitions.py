"""Every task module has the members that the rest of the service uses, and refuses an artifact that does not fit it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swiftlet_models.artifact import MANIFEST, ArtifactError
from swiftlet_serve import evaluation, tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.loading import open_model
from tests.support.artifacts import WIDTHS, make_artifact, make_tokenizer

NAMES = ("classify", "embed", "entities", "fill-mask", "qa", "rerank", "score", "zero-shot")


def change(path: Path, **fields: Any) -> Path:
    """Overwrites fields of an artifact's manifest."""
    manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    (path / MANIFEST).write_text(json.dumps(manifest | fields), "utf-8")
    return path


def test_names_are_the_modules() -> None:
    assert tuple(tasks.names()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_golden_inputs_are_valid_requests(name: str, tmp_path: Path) -> None:
    task = tasks.load(name).create(make_tokenizer(), make_artifact(tmp_path, name).manifest)
    for body in evaluation.create(name, task).golden_bodies():
        assert task.encode(task.Request.model_validate(body))


def test_head_width_is_a_number_or_counts_labels_or_tokens() -> None:
    widths = [tasks.head_width(outputs, 3, 211, 48) for outputs in (2, "labels", "vocabulary", "hidden")]

    assert widths == [2, 3, 211, 48]


@pytest.mark.parametrize("name", ["translate", "fill_mask", "__init__", "", "os"])
def test_unknown_task_is_refused(name: str) -> None:
    with pytest.raises(SetupError, match=rf"The tasks are {', '.join(NAMES)}\.$"):
        tasks.load(name)


def test_artifact_of_unknown_task_is_refused(tmp_path: Path) -> None:
    path = change(make_artifact(tmp_path, "classify").path, task="translate")

    with pytest.raises(SetupError, match="There is no task 'translate'"):
        open_model(path, "onnx_cpu")


@pytest.mark.parametrize(
    ("name", "fields", "reason"),
    [
        ("classify", {"problem": None}, "a classifier needs labels and a problem"),
        ("classify", {"labels": [], "problem": None}, "a classifier needs labels and a problem"),
        ("entities", {"labels": []}, "a token classifier needs labels"),
        ("qa", {"labels": ["a", "b"]}, "a model for qa has no labels"),
        ("qa", {"width": 3}, "qa needs 2 outputs per token, and the artifact has 3"),
        ("score", {"labels": ["a"] * WIDTHS["score"]}, "a model for score has no labels"),
        ("embed", {"labels": [f"{i}" for i in range(8)]}, "a model for embed has no labels"),
        ("embed", {"head": "token", "embedding": None}, "embed needs a network with the head embedding"),
        ("fill-mask", {"width": 2, "labels": ["a", "b"]}, "a model for fill-mask has no labels"),
    ],
)
def test_artifact_that_does_not_fit_its_task_is_refused(
    tmp_path: Path, name: str, fields: dict[str, Any], reason: str
) -> None:
    path = change(make_artifact(tmp_path, name).path, **fields)

    with pytest.raises(ArtifactError, match=f"^tiny-{name}: {reason}"):
        open_model(path, "onnx_cpu")
