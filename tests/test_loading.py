"""Artifacts are verified and reproduce their golden answers before they are served."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from swiftlet_models.artifact import GOLDEN, TOKENIZER, ArtifactError
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference import loading
from swiftlet_serve.inference.loading import load_model, locate, open_model
from tests.support.artifacts import make_artifact, reseal


def test_load_model_replays_the_golden_answers(artifact_dir):
    model = load_model(artifact_dir / "tiny-classify", "onnx_cpu")

    assert model.deviation == 0.0
    assert model.manifest.name == "tiny-classify"


def test_load_model_replays_nothing_on_the_echo_engine(artifact_dir):
    assert load_model(artifact_dir / "tiny-classify", "echo").deviation is None


def test_load_model_rejects_a_network_with_other_answers(tmp_path):
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
def test_load_model_rejects_invalid_golden_answers(fault, tmp_path):
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


def test_load_model_rejects_the_tokenizer_of_another_model(tmp_path):
    path = reseal(make_artifact(tmp_path, "classify"), vocab_size=10)

    with pytest.raises(ArtifactError, match="belongs to another"):
        load_model(path, "onnx_cpu")


def test_load_model_names_the_model_with_a_broken_tokenizer(tmp_path):
    artifact = make_artifact(tmp_path, "classify")
    artifact.file(TOKENIZER).write_text("{}")
    path = reseal(artifact)

    with pytest.raises(ArtifactError, match=r"tiny-classify: tokenizer\.json cannot be read as a tokenizer"):
        load_model(path, "onnx_cpu")


def test_load_model_lists_the_engines_if_the_engine_is_unknown(artifact_dir):
    with pytest.raises(SetupError, match=r"no 'abacus' in engines\. Choose one of echo, native, onnx_cpu"):
        load_model(artifact_dir / "tiny-classify", "abacus")


def test_load_model_shares_equal_tokenizers(artifact_dir):
    tokenizers = {}
    first, second = (load_model(artifact_dir / f"tiny-{task}", "echo", tokenizers) for task in ("classify", "qa"))

    assert first.task.tokenizer is second.task.tokenizer
    assert len(tokenizers) == 1


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}] * 600, "leave no room"),
        ([{"SpecialToken": {"id": "[CLS]", "type_id": 2}}], "more token types"),
    ],
)
def test_open_model_rejects_sequences_that_no_network_reads(tmp_path, template, reason):
    artifact = make_artifact(tmp_path, "classify")
    tokenizer = json.loads(artifact.file(TOKENIZER).read_text("utf-8"))
    tokenizer["post_processor"]["single"] = [*template, {"Sequence": {"id": "A", "type_id": 0}}]
    artifact.file(TOKENIZER).write_text(json.dumps(tokenizer), "utf-8")

    with pytest.raises(ArtifactError, match=reason):
        open_model(reseal(artifact, architecture="bert"), "echo")


def with_reading(source, folder, side="right", tokens=()):
    """Copies an artifact, whose manifest then says how texts are read."""
    path = shutil.copytree(source, folder / source.name)
    manifest = json.loads((path / "manifest.json").read_text("utf-8"))
    manifest["reading"] = {"truncation_side": side, "special_tokens": list(tokens)}
    (path / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return path


def test_models_that_read_texts_otherwise_share_no_tokenizer(artifact_dir, tmp_path):
    tokenizers = {}
    source = artifact_dir / "tiny-classify"
    first = open_model(source, "echo", tokenizers)
    second = open_model(with_reading(source, tmp_path, "left", ["[SEP]"]), "echo", tokenizers)
    texts = ["a [SEP] b " * 2000]

    ours, others = (model.task.tokenizer.encode(texts, 9)[0].input_ids.tolist() for model in (first, second))
    separator = first.task.tokenizer.token_to_id("[SEP]")
    assert (ours.count(separator), others.count(separator)) == (1, 3)


def test_special_tokens_of_a_manifest_must_exist(artifact_dir, tmp_path):
    with pytest.raises(ArtifactError, match=r"tiny-classify: .*'\[E9\]' is not a special token"):
        open_model(with_reading(artifact_dir / "tiny-classify", tmp_path, tokens=["[E9]"]), "echo")


def test_locate_finds_bundled_models_and_directories(artifact_dir, tmp_path, monkeypatch):
    shutil.copytree(artifact_dir / "tiny-qa", tmp_path / "tiny-qa")
    monkeypatch.setattr(loading, "BUNDLED", artifact_dir)

    assert locate([]) == sorted(artifact_dir.iterdir())
    assert locate(["tiny-qa", str(tmp_path / "tiny-qa")]) == [artifact_dir / "tiny-qa", tmp_path / "tiny-qa"]
    with pytest.raises(SetupError, match=r"no model 'huge'\. Give a directory, .* or one of the bundled models: tiny-"):
        locate(["huge"])


def test_locate_rejects_an_installation_without_models(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "BUNDLED", tmp_path)

    with pytest.raises(SetupError, match="no models to serve"):
        locate([])


def test_a_command_for_one_model_takes_no_list_of_several(tmp_path):
    models = [f'[[models]]\nsource = "{name}"\n' for name in ("albert-sst2", "albert-qa")]
    (tmp_path / "one.toml").write_text(models[0], "utf-8")
    (tmp_path / "two.toml").write_text("".join(models), "utf-8")

    assert loading.locate_one(str(tmp_path / "one.toml")) == loading.locate_one("albert-sst2")
    with pytest.raises(SetupError, match=r"two\.toml lists 2 models, but the command takes one"):
        loading.locate_one(str(tmp_path / "two.toml"))
