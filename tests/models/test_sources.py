"""Sources are recognised by their files and names, and each refusal ends with the next command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swiftlet_models import sources
from swiftlet_serve.cli.main import main

BERT = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}


def write(path: Path, **files: Any) -> Path:
    """Writes files, whose names have `__` for a full stop. Content that is no text becomes JSON."""
    path.mkdir(parents=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, "utf-8")
    return path


def make(path: Path, kind: str) -> str:
    """Writes a source of this kind, and returns its name."""
    files: dict[str, dict[str, Any]] = {
        "checkpoint": {"config__json": BERT, "model__safetensors": ""},
        "checkpoint of words": {
            "config__json": {"architectures": ["BertForTokenClassification"]},
            "pytorch_model__bin": "",
        },
        "shards": {"config__json": BERT, "model__safetensors__index__json": {}},
        "sentence-transformers": {"config__json": BERT, "modules__json": [], "model__safetensors": ""},
        "old sentence-transformers": {"modules__json": []},
        "adapter": {"adapter_config__json": {"task_type": "SEQ_CLS"}, "adapter_model__safetensors": ""},
        "setfit": {"config__json": BERT, "modules__json": [], "config_setfit__json": {}, "model_head__pkl": ""},
        "checkpoint in onnx": {"config__json": BERT, "model__onnx": ""},
        "onnx": {"config__json": BERT, "model_quantized__onnx": ""},
        "onnx alone": {"model__onnx": ""},
        "tensorflow": {"config__json": BERT, "tf_model__h5": ""},
        "weights alone": {"model__safetensors": ""},
        "artifact": {"manifest__json": {}},
        "nothing": {},
        "text": {"notes__txt": "x"},
    }
    if kind in files:
        return str(write(path / "it", **files[kind]))
    if kind.startswith("trainer"):
        best = (
            {} if kind == "trainer" else {"trainer_state__json": {"best_model_checkpoint": "elsewhere/checkpoint-500"}}
        )
        for step in (500, 1000, 90):
            write(path / f"it/checkpoint-{step}", **files["checkpoint"], **best)
    elif kind == "cache":
        for commit in ("0123", "0124"):
            write(path / "it/snapshots" / commit, **files["checkpoint"])
        write(path / "it/refs", main="0123")
    elif kind == "folder":
        for name in ("a", "b"):
            write(path / "it" / name, **files["artifact"])
    elif kind == "onnx folder":
        write(path / "it/onnx", **files["onnx alone"])
    elif kind == "onnx file":
        return str(write(path / "it", **files["onnx alone"]) / "model.onnx")
    elif kind == "weights file":
        return str(write(path / "it", **files["checkpoint"]) / "model.safetensors")
    return str(path / "it")


SERVED = {  # what `swiftlet serve` says of each kind, and the command that it ends with
    "onnx": ("a model in ONNX", "swiftlet serve DIRECTORY"),
    "onnx alone": ("a model in ONNX", "swiftlet serve DIRECTORY"),
    "onnx folder": ("a model in ONNX", "swiftlet serve DIRECTORY"),
    "onnx file": ("a model in ONNX", "swiftlet serve DIRECTORY"),
    "tensorflow": ("a checkpoint whose weights are tf_model.h5", "swiftlet serve NEW"),
    "weights alone": ("a directory of weights without config.json", "and serve that."),
    "trainer": ("the output directory of a Trainer", "swiftlet serve {0}/checkpoint-1000"),
    "trainer with a best": ("the output directory of a Trainer", "swiftlet serve {0}/checkpoint-500"),
    "cache": ("a repository in the cache of the hub", "swiftlet serve {0}/snapshots/0123"),
    "folder": ("a folder of artifacts", "swiftlet serve {0}/a {0}/b"),
    "weights file": ("a file of weights", "Serve it: swiftlet serve {1}"),
}


def run(*command: str) -> str:
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    return result.output.strip()


@pytest.mark.parametrize("kind", SERVED)
def test_serve_names_the_next_command(tmp_path: Path, kind: str) -> None:
    source = make(tmp_path, kind)
    output = run("serve", "--models", source, "--port", "0")
    what, command = SERVED[kind]

    assert f"{source} is {what}" in output
    assert output.endswith(command.format(source, Path(source).parent))


@pytest.mark.parametrize(
    "kind", ["checkpoint", "checkpoint of words", "checkpoint in onnx", "shards", "adapter", "setfit"]
)
def test_checkpoints_are_imported(tmp_path: Path, kind: str) -> None:
    source = make(tmp_path, kind)
    assert sources.identify(source).kind == "checkpoint"
    assert sources.refusal(source) is None


@pytest.mark.parametrize("kind", SERVED)
def test_import_names_the_next_command(tmp_path: Path, kind: str) -> None:
    source = make(tmp_path, kind)
    what, command = SERVED[kind]
    output = run("import", source, "--task", "classify", "--out", str(tmp_path / "out"))

    assert f"{source} is {what}" in output
    assert output.endswith(command.format(source, Path(source).parent))


def test_names_of_the_hub_are_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "'org/name' is not in the local cache and cannot be downloaded" in run("serve", "org/name", "--port", "0")
    address = "https://huggingface.co/org/name/tree/main"
    assert run("serve", address, "--port", "0").endswith("swiftlet serve org/name")


@pytest.mark.parametrize("name", ["./gone", "/gone/a", "../a/b", "gone", "a/b/c", "a b/c", "https://example.com/a/b"])
def test_other_names_are_no_models(name: str) -> None:
    assert f"There is no model '{name}'." in run("serve", "--models", name, "--port", "0")


@pytest.mark.parametrize("command", [("serve", "--port", "0", "--models"), ("import", "--task", "qa")])
def test_too_long_name_is_refused(command: tuple[str, ...]) -> None:
    assert "is a path that cannot be read (File name too long). Give another one." in run(*command, "a" * 300)


def test_artifacts_are_not_imported(tmp_path: Path) -> None:
    source = make(tmp_path, "artifact")
    assert run("import", source, "--task", "qa").endswith(f"Serve it: swiftlet serve {source}")
    assert sources.identify(source).kind == "artifact"


@pytest.mark.parametrize("kind", ["nothing", "text"])
def test_other_directories_are_left_to_the_reader(tmp_path: Path, kind: str) -> None:
    source = make(tmp_path, kind)
    assert "it has neither manifest.json nor config.json. Give the directory that" in run("check", source)
    assert "config.json is missing." in run("import", source, "--task", "classify", "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        *((name, f"model_type {name!r} is not supported; supported are") for name in ("deberta", "longformer")),
        (None, "there is no model_type. Set that of the model:"),
    ],
)
def test_other_networks_are_refused_before_torch(tmp_path: Path, model_type: str | None, reason: str) -> None:
    source = str(write(tmp_path / "it", config__json={"model_type": model_type}, model__safetensors=""))
    refusal = sources.refusal(source)
    assert refusal is not None
    assert refusal.startswith(f"config.json: {reason} albert, bert,")


@pytest.mark.parametrize(
    ("name", "labels", "task"),
    [
        ("BertForSequenceClassification", ["a", "b"], "classify"),
        ("BertForSequenceClassification", ["LABEL_0"], "rerank"),
        ("BertForSequenceClassification", ["CONTRADICTION", "entailment"], "zero-shot"),
        ("RobertaForTokenClassification", ["O"], "entities"),
        ("DistilBertForQuestionAnswering", [], "qa"),
        ("AlbertForMaskedLM", [], "fill-mask"),
        ("GPT2LMHeadModel", [], "score"),
        ("BertModel", [], None),
    ],
)
def test_heads_tell_the_task(name: str, labels: list[str], task: str | None) -> None:
    config = {"architectures": [name], "id2label": dict(enumerate(labels))}
    assert sources.seems_for(config) == task


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_a_named_problem_with_one_label_is_no_ranking(problem: str) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "toxic"}, "problem_type": problem}
    assert sources.seems_for(config) == "classify"
    assert sources.seems_for(config | {"sentence_transformers": {}}) == "rerank"


@pytest.mark.parametrize("config", [{}, {"architectures": None}, {"architectures": [3]}, {"architectures": "Bert"}])
def test_other_configurations_tell_no_task(config: dict[str, Any]) -> None:
    assert sources.seems_for(config) is None
